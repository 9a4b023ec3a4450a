"""DiLoCo's outer step at a peer: an optimizer moves the model, one fragment at a time, towards the peers' mean.

For each fragment a peer keeps the values after its last outer step. When the mean of all peers' values arrives, these
values minus the mean are the outer optimizer's gradient (Douillard et al. 2023, algorithm 1). With several fragments
only one is exchanged at a time. If training has gone on during the exchange, the result is mixed with the values
trained since (Douillard et al. 2025, Streaming DiLoCo, algorithm 2).

Peers exchange values and not differences. A peer that came late or missed an exchange has other values after its last
outer step than the others. With values, each exchange pulls it towards them; with differences it would stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from thalweg.algorithms.algorithm import STRATEGY, FunctionAlgorithm
from thalweg.algorithms.server_step import MakeRule, Rule, Values
from thalweg.errors import RoundError
from thalweg.tensors.arena import Arena

#: The core can cut a model only at multiples of so many bytes, so a fragment has such a size.
UNIT: Final = 64
#: Bytes of a block, whose values share one scale if they are rounded on the way (``layers.compress``).
BLOCK: Final = 1024
# How far the received mean of equal values may be from these, relative to their norm: int8 rounds by up to 1 %.
NEAR: Final = 0.05


class Fragments:
    """The floating-point values of a model's tensors as one vector, cut into fragments of equal size.

    With each fragment a peer sends one value more, its share. It is 1 from a peer that has the common values. A
    newcomer that does not have them yet sends 0 for the share and for all values. So the mean of what peers send,
    divided by the mean of their shares, is the mean over the peers that have values. Values are float64 if the model
    has float64, else float32.
    """

    def __init__(self, arena: Arena, trained: Iterable[str], count: int) -> None:
        """Cut the tensors in ``arena`` into ``count`` fragments; those in ``trained`` come first."""
        kinds = {name: kind for name, kind, *_ in arena.layout.tensors}
        first = list(trained)
        others = [name for name, kind in kinds.items() if kind.startswith(("F", "BF")) and name not in set(first)]
        self._tensors = [arena[name].reshape(-1) for name in [*first, *others]]
        self.count = count
        self.kind = "F64" if "F64" in kinds.values() else "F32"
        self.dtype = np.dtype(np.float64 if self.kind == "F64" else np.float32)
        #: Number of values that training changes by gradients. They are the first ones of the vector.
        self.trained = sum(arena[name].size for name in first)
        self.total = sum(tensor.size for tensor in self._tensors)
        #: Number of the model's values in a fragment; the last fragments may have fewer.
        self.size = -(-self.total // count)
        block = BLOCK // self.dtype.itemsize
        #: Number of values that are sent for a fragment: its values, zeros, and at the end its share. The share has a
        #: block of its own. It is far larger than most values, so int8 would round those of its block coarsely.
        self.length = (-(-self.size // block) + 1) * block

    def bounds(self, fragment: int) -> tuple[int, int]:
        """Return the positions in the vector at which a fragment begins and ends."""
        return min(self.total, fragment * self.size), min(self.total, (fragment + 1) * self.size)

    def read(self, fragment: int, into: Values) -> None:
        """Copy a fragment's values to the beginning of ``into``."""
        for tensor, inside, outside in self._pieces(fragment):
            into[outside] = tensor[inside]

    def write(self, fragment: int, values: Values) -> None:
        """Give the model a fragment's ``values``."""
        for tensor, inside, outside in self._pieces(fragment):
            tensor[inside] = values[outside]

    def _pieces(self, fragment: int) -> Iterable[tuple[Values, slice, slice]]:
        """Yield each tensor with values in a fragment, and the slices of these in the tensor and in the fragment."""
        begin, end = self.bounds(fragment)
        at = 0
        for tensor in self._tensors:
            first, last = max(begin, at), min(end, at + tensor.size)
            if first < last:
                yield tensor, slice(first - at, last - at), slice(first - begin, last - begin)
            at += tensor.size


class OuterSteps:
    """A peer's state for each fragment: the values after the last outer step, and the optimizer's own state."""

    def __init__(self, fragments: Fragments, make: MakeRule) -> None:
        """Begin with the model's values. ``make`` returns the rule that changes a fragment's trained values."""
        self.fragments = fragments
        self._values: list[Values] = []
        self._rules: list[Rule | None] = []
        for one in range(fragments.count):
            begin, end = fragments.bounds(one)
            values = np.zeros(end - begin, fragments.dtype)
            fragments.read(one, values)
            trained = max(0, min(end, fragments.trained) - begin)
            self._values.append(values)
            self._rules.append(make([values[:trained]]) if trained else None)
        #: For each fragment, whether this peer has the common values, which count in a mean.
        self.ready = [True] * fragments.count

    def fill(self, fragment: int, sent: Values) -> None:
        """Write to ``sent`` what this peer sends for a fragment: its values and share; as a newcomer all zeros."""
        sent[:] = 0
        if self.ready[fragment]:
            self.fragments.read(fragment, sent)
            sent[-1] = 1

    def mean_of(self, fragment: int, mean_sent: Values) -> Values | None:
        """Return the mean of a fragment over the peers that have values; None if no peer has.

        ``mean_sent`` is the mean of what all peers sent, shares included.
        """
        share = float(mean_sent[-1])
        if not share > 0:
            return None
        begin, end = self.fragments.bounds(fragment)
        return np.asarray(mean_sent[: end - begin] / self.fragments.dtype.type(share))

    def begins_with(self, fragment: int, mean: Values) -> bool:
        """Return whether this peer begins with the values of all peers: their ``mean`` differs by rounding at most."""
        values = self._values[fragment]
        return bool(np.linalg.norm(values - mean) <= NEAR * np.linalg.norm(values))

    def adopt(self, fragment: int, mean: Values | None) -> None:
        """Take the peers' ``mean`` as a newcomer's values; the model's own values if no peer has any."""
        values = self._values[fragment]
        if mean is None:
            self.fragments.read(fragment, values)
        else:
            values[:] = mean
            self.fragments.write(fragment, values)
        self.ready[fragment] = True

    def step(self, fragment: int, mean: Values, keep: float) -> None:
        """Take an outer step. The model becomes ``keep`` times its present values plus 1 - ``keep`` times the result.

        Values that are not trained by gradients become their mean. Raises RoundError if the step gives values that are
        not finite; the model is then as it was.
        """
        values, rule = self._values[fragment], self._rules[fragment]
        if rule is not None:
            trained = max(
                0, min(self.fragments.bounds(fragment)[1], self.fragments.trained) - fragment * self.fragments.size
            )
            gradient: Sequence[Values] = [values[:trained] - mean[:trained]]
            with np.errstate(all="ignore"):  # values that are not finite are refused below
                rule.step(gradient)
            values[trained:] = mean[trained:]
        else:
            values[:] = mean
        if not np.isfinite(values).all():
            raise RoundError(
                "the outer optimizer gives values that are not finite",
                "Lower its learning rate, or that of the inner optimizer",
            )
        if keep:
            now = np.empty_like(values)
            self.fragments.read(fragment, now)
            self.fragments.write(fragment, keep * now + (1 - keep) * values)
        else:
            self.fragments.write(fragment, values)


FUNCTION: Final = FunctionAlgorithm(
    name="diloco",
    meaning="peers train for many steps between two exchanges, and take an outer step from the mean of their values",
    source="Douillard et al. 2023 (DiLoCo), algorithm 1; Douillard et al. 2025 (Streaming DiLoCo), algorithm 2",
    refused={"flower": STRATEGY},
)
