"""DiLoCo's outer step at a peer: the model's values in fragments, each moved by an optimizer towards the peers' mean.

A peer keeps for each fragment the values after the last outer step. When the mean of all peers' values arrives, their
difference to it is the outer optimizer's gradient (Douillard et al. 2023, algorithm 1). With several fragments only
one is exchanged at a time; and if training has gone on meanwhile, the result is mixed with the values trained since
(Douillard et al. 2025, Streaming DiLoCo, algorithm 2).

Peers exchange values and not differences, so a peer whose values after the last step differ, because it came late or
missed an exchange, is pulled towards the others at each exchange, and does not stay apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from thalweg.algorithms.algorithm import STRATEGY, Called
from thalweg.algorithms.server_step import MakeRule, Rule, Values
from thalweg.errors import RoundError
from thalweg.tensors.arena import Arena

#: Bytes by which the core cuts a model into parts. A fragment's size is a multiple, so that it is such a part.
UNIT: Final = 64
#: Bytes that share a scale if values are rounded on the way (``layers.compress``).
BLOCK: Final = 1024
# How far the mean of equal values may be from them, as a share of their norm: int8 rounds by up to a hundredth.
NEAR: Final = 0.05


class Fragments:
    """The floating-point values of a model's tensors as one vector, cut into fragments of equal size.

    Each fragment as it travels has one value more, its share: 1 from a peer that has the peers' values, and 0, with
    all other values 0, from a newcomer that does not have them yet. So the mean of what peers send, divided by the
    mean of their shares, is the mean over those that have values. Values are float64 if the model has float64, else
    float32.
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
        #: Number of values that training changes; in the vector all others follow them.
        self.trained = sum(arena[name].size for name in first)
        self.total = sum(tensor.size for tensor in self._tensors)
        #: Number of the model's values in a fragment; the last fragments may have fewer.
        self.size = -(-self.total // count)
        block = BLOCK // self.dtype.itemsize
        #: Number of values of a fragment as it travels: its values, zeros, and its share as the last one. The share has
        #: a block of its own: it is far larger than most values, and would make them coarse where int8 rounds a block.
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
        """Yield each tensor that has values of a fragment, with their place in the tensor and in the fragment."""
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
        """Begin with the model's values; ``make`` returns a fragment's rule for its trained values."""
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
        #: Whether this peer has values of each fragment that may count in a mean.
        self.ready = [True] * fragments.count

    def fill(self, fragment: int, place: Values) -> None:
        """Write a fragment as it travels to ``place``; zeros if this peer has no values that may count."""
        place[:] = 0
        if self.ready[fragment]:
            self.fragments.read(fragment, place)
            place[-1] = 1

    def mean_of(self, fragment: int, place: Values) -> Values | None:
        """Return the peers' mean of a fragment from the mean of what they sent; None if no peer had values."""
        share = float(place[-1])
        if not share > 0:
            return None
        begin, end = self.fragments.bounds(fragment)
        return np.asarray(place[: end - begin] / self.fragments.dtype.type(share))

    def begins_with(self, fragment: int, mean: Values) -> bool:
        """Return whether the peers' mean of what they begin with is this peer's, but for the rounding on the way."""
        values = self._values[fragment]
        return bool(np.linalg.norm(values - mean) <= NEAR * np.linalg.norm(values))

    def adopt(self, fragment: int, mean: Values | None) -> None:
        """Begin with the peers' ``mean``, as a newcomer; if no peer had values, with the model's own."""
        values = self._values[fragment]
        if mean is None:
            self.fragments.read(fragment, values)
        else:
            values[:] = mean
            self.fragments.write(fragment, values)
        self.ready[fragment] = True

    def step(self, fragment: int, mean: Values, keep: float) -> None:
        """Take an outer step, and give the model the result, mixed with a share ``keep`` of the values that it has now.

        Values that are not trained by gradients become their mean. Raises RoundError if the step gives values that are
        not finite; the model is then as it was.
        """
        values, rule = self._values[fragment], self._rules[fragment]
        if rule is not None:
            trained = max(
                0, min(self.fragments.bounds(fragment)[1], self.fragments.trained) - fragment * self.fragments.size
            )
            gradient: Sequence[Values] = [values[:trained] - mean[:trained]]
            with np.errstate(all="ignore"):  # what is not finite is refused below
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


CALLED: Final = Called(
    name="diloco",
    meaning="peers train for many steps between two exchanges, and take an outer step from the mean of their values",
    source="Douillard et al. 2023 (DiLoCo), algorithm 1; Douillard et al. 2025 (Streaming DiLoCo), algorithm 2",
    refused={"flower": STRATEGY},
)
