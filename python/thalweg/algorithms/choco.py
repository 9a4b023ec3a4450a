"""CHOCO-SGD: nodes of a graph exchange rounded differences of models. What rounding leaves out is sent later.

Node i has its model x_i, the replica y_i (what its neighbours know of x_i), and s_i, the sum of w_ij y_j. In an
iteration it trains x_i and sends q_i = C(x_i - y_i), where C rounds. It receives the sum of w_ij q_j, with its own q_i
included. Then it adds q_i to y_i, the received sum to s_i, and gamma (s_i - y_i) to x_i.

All nodes begin with the same model, and y and s begin as that model; in a resumed job y and s begin as 0. With
gamma = 1 it is DCD-PSGD (Tang et al. 2018). y and s are float64, because an error in s_i - y_i would move x_i in every
later iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from thalweg.algorithms.algorithm import NEEDS_GRAPH, Algorithm
from thalweg.errors import RoundError
from thalweg.tensors.arena import Arena

if TYPE_CHECKING:
    from thalweg import _core
    from thalweg.graphs import Schedule


NAME: Final = "choco"
# The rounding error of each format of layers.compress: how far C moves a vector, as a fraction of the vector's norm.
# The value for f16 is an upper bound. That for int8 assumes normally distributed values: the largest of 256 is then
# about three standard deviations, a step is at most 1/64 of it, and the error is 1/70 or less. With a few values that
# are much larger than the others, the error may be up to eight times as much.
ERRORS: Final[Mapping[str | None, float]] = {None: 0.0, "f16": 2.0**-11, "int8": 1 / 64}


def step_size(schedule: Schedule, compression: str | None) -> float:
    """Return gamma for a graph that does not change, from its spectral gap and the rounding error.

    Let a be the rounding error (``ERRORS``), g the spectral gap, and m the norm of 1 - W. Let u be the distance of the
    models from their mean, and v that of the models from their replicas. After one exchange u is at most
    (1 - gamma g) u + gamma m a v, and v at most gamma m u + a (1 + gamma m) v. Both shrink if
    gamma < g (1 - a) / (a m (m + g)). The result is half of that limit, and at most 1.
    """
    import numpy as np

    from thalweg.graphs import mixing

    error, gap = ERRORS[compression], mixing.gap(schedule)
    if not error or gap is None:
        return 1.0
    norm = float(np.linalg.norm(np.eye(schedule.nodes) - mixing.metropolis(schedule.at(1)), ord=2))
    return min(1.0, gap * (1 - error) / (2 * error * norm * (norm + gap)))


class Replicas:
    """A node's state for CHOCO-SGD: a copy of the trained model, and in float64 its replica y and the sum s.

    They have only the model's float32 values. Other values are averaged, as with D-PSGD.
    """

    def __init__(self, arena: _core.Arena, gamma: float, compression: str | None, *, alike: bool = True) -> None:
        """Begin with the model in the arena if all nodes have the same (``alike``), else with 0."""
        import numpy as np

        self._arena, self.gamma, self._compression = arena, gamma, compression
        kinds = {name: kind for name, kind, _, _ in arena.layout.tensors}
        self._values = [array.reshape(-1) for name, array in Arena(arena).items() if kinds[name] == "F32"]
        self._trained = [values.copy() for values in self._values]
        self._known = [
            values.astype("float64") if alike else np.zeros_like(values, "float64") for values in self._values
        ]
        self._sums = [replica.copy() for replica in self._known]
        # The neighbours whose update did not arrive, as text for the error; empty if all updates arrived.
        self._missing = ""

    def before(self) -> None:
        """Replace the trained model in the arena by the rounded difference."""
        import numpy as np

        self._check()
        for values, trained, replica in zip(self._values, self._trained, self._known, strict=True):
            trained[:] = values
            values[:] = trained - replica
        if self._compression is not None:
            self._arena.compress(self._compression)
        for values, replica in zip(self._values, self._known, strict=True):
            np.add(replica, values, out=replica)

    def after(self, missing: Sequence[str], *, fresh: bool) -> None:
        """Replace the weighted sum of differences in the arena by the next model.

        Raises RoundError if a difference is missing, because the nodes' replicas would differ from then on.
        """
        import numpy as np

        if missing or fresh:
            self._missing = ", ".join(missing) or "the iterations before"
        self._check()
        kept = zip(self._values, self._trained, self._known, self._sums, strict=True)
        for values, trained, replica, sums in kept:
            np.add(sums, values, out=sums)
            values[:] = trained + self.gamma * (sums - replica)

    def _check(self) -> None:
        if self._missing:
            raise RoundError(
                f"CHOCO-SGD cannot go on without the update of {self._missing}",
                "Start the job anew; with D-PSGD, the algorithm dpsgd, nodes go on without those that are gone",
            )


ALGORITHM: Final = Algorithm(
    name=NAME,
    meaning=(
        "as dpsgd, but nodes send by how much their model differs from what their neighbours know of it, in few bits "
        "with `layers.compress`; what rounding leaves out is sent later"
    ),
    source="Koloskova, Stich and Jaggi 2019, algorithm 2; with gamma = 1 Tang et al. 2018 (DCD-PSGD)",
    refused=NEEDS_GRAPH,
)
