"""CHOCO-SGD: nodes of a graph exchange rounded differences, and lose nothing by rounding.

Node i has its model x_i, y_i, which is what its neighbours know of x_i, and s_i, the sum of w_ij y_j. It trains x_i and
sends q_i = C(x_i - y_i), where C rounds. An exchange gives it the sum of w_ij q_j, its own q_i included. Then y_i gains
q_i, s_i that sum, and x_i gains gamma (s_i - y_i). All models begin alike, so y and s begin as that model; in a resumed
job they begin as 0. With gamma = 1 it is DCD-PSGD (Tang et al. 2018).

An error of s_i - y_i moves x_i in every iteration that follows, so y and s have float64 values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from thalweg.algorithms.fedavg import rounds
from thalweg.errors import RoundError
from thalweg.tensors.arena import Arena

if TYPE_CHECKING:
    from thalweg import _core
    from thalweg.graphs import Schedule

__all__ = ["MEANING", "NAME", "SOURCE", "Replicas", "rounds", "step_size"]

NAME: Final = "choco"
MEANING: Final = (
    "as dpsgd, but nodes send by how much their model differs from what their neighbours know of it, in few bits with "
    "`layers.compress`; what rounding leaves out is sent later"
)
SOURCE: Final = "Koloskova, Stich and Jaggi 2019, algorithm 2; with gamma = 1 Tang et al. 2018 (DCD-PSGD)"
# By format of layers.compress: by how much C changes a vector, as a fraction of its norm. f16: at most. int8: normally
# distributed values by a 70th or less, for the largest of 256 is about three deviations and steps are a 64th of it at
# most; where single values stand out, up to eight times as much.
ERRORS: Final[Mapping[str | None, float]] = {None: 0.0, "f16": 2.0**-11, "int8": 1 / 64}


def step_size(schedule: Schedule, compression: str | None) -> float:
    """Return gamma for a graph that does not change, from its spectral gap and what rounding may change.

    Let a be the rounding's error (``ERRORS``), g the gap, m the norm of 1 - W, u the distance of the models from their
    mean, and v that of models from what is known of them. In one exchange u becomes at most (1 - gamma g) u + gamma m a
    v, and v at most gamma m u + a (1 + gamma m) v. Both fall if gamma < g (1 - a) / (a m (m + g)). Half of that is
    taken, at most 1.
    """
    import numpy as np

    from thalweg.graphs import mixing

    error, gap = ERRORS[compression], mixing.gap(schedule)
    if not error or gap is None:
        return 1.0
    norm = float(np.linalg.norm(np.eye(schedule.nodes) - mixing.metropolis(schedule.at(1)), ord=2))
    return min(1.0, gap * (1 - error) / (2 * error * norm * (norm + gap)))


class Replicas:
    """What a node keeps for CHOCO-SGD beside its model: the trained model, and two of twice its size.

    They are of its float32 values alone; others are averaged, as with D-PSGD.
    """

    def __init__(self, arena: _core.Arena, gamma: float, compression: str | None, *, alike: bool = True) -> None:
        """Begin with the model in the arena, which must be that of all nodes; with 0 if models are not ``alike``."""
        import numpy as np

        self._arena, self.gamma, self._compression = arena, gamma, compression
        kinds = {name: kind for name, kind, _, _ in arena.layout.tensors}
        self._values = [array.reshape(-1) for name, array in Arena(arena).items() if kinds[name] == "F32"]
        self._trained = [values.copy() for values in self._values]
        self._known = [
            values.astype("float64") if alike else np.zeros_like(values, "float64") for values in self._values
        ]
        self._sums = [known.copy() for known in self._known]
        # The neighbours whose update did not arrive, as text for the error; empty if all updates arrived.
        self._missing = ""

    def before(self) -> None:
        """Replace the trained model in the arena by the rounded difference."""
        import numpy as np

        self._check()
        for values, trained, known in zip(self._values, self._trained, self._known, strict=True):
            trained[:] = values
            values[:] = trained - known
        if self._compression is not None:
            self._arena.compress(self._compression)
        for values, known in zip(self._values, self._known, strict=True):
            np.add(known, values, out=known)

    def after(self, missing: Sequence[str], *, fresh: bool) -> None:
        """Put the next model into the arena, in the place of the weighted sum of differences.

        Raises RoundError if one of these is missing: what a neighbour knows would be wrong from then on.
        """
        import numpy as np

        if missing or fresh:
            self._missing = ", ".join(missing) or "the iterations before"
        self._check()
        kept = zip(self._values, self._trained, self._known, self._sums, strict=True)
        for values, trained, known, sums in kept:
            np.add(sums, values, out=sums)
            values[:] = trained + self.gamma * (sums - known)

    def _check(self) -> None:
        if self._missing:
            raise RoundError(
                f"CHOCO-SGD cannot go on without the update of {self._missing}",
                "Start the job anew; with D-PSGD, the algorithm dpsgd, nodes go on without those that are gone",
            )
