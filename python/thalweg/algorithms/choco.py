"""CHOCO-SGD: nodes of a graph exchange rounded differences of models, in a way that makes up for rounding errors later.

Node i has its model x_i, the replica y_i that its neighbours have of x_i, and s_i, the sum of w_ij y_j. It trains x_i
and sends q_i = C(x_i - y_i), where C rounds. The exchange gives it the sum of w_ij q_j, its own q_i included. Then q_i
is added to y_i, the sum to s_i, and gamma (s_i - y_i) to x_i. All nodes begin with the same model, which is then also
the first y and s; in a resumed job y and s begin as 0. With gamma = 1 it is DCD-PSGD (Tang et al. 2018).

An error of s_i - y_i would move x_i in every later iteration, so y and s have float64 values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from thalweg.algorithms.algorithm import AMONG_NODES, Algorithm
from thalweg.errors import RoundError
from thalweg.tensors.arena import Arena

if TYPE_CHECKING:
    from thalweg import _core
    from thalweg.graphs import Schedule


NAME: Final = "choco"
# For each format of layers.compress: by which fraction of its norm C changes a vector. For f16 it is an upper bound.
# For int8 it holds for normally distributed values: the largest of 256 values is about three standard deviations, and a
# step is at most a 64th of it, which gives a 70th or less. If single values stand out, it may be up to eight times as
# much.
ERRORS: Final[Mapping[str | None, float]] = {None: 0.0, "f16": 2.0**-11, "int8": 1 / 64}


def step_size(schedule: Schedule, compression: str | None) -> float:
    """Return gamma for a graph that does not change, from its spectral gap and the error of rounding.

    Let a be the rounding error (``ERRORS``), g the spectral gap, m the norm of 1 - W, u the distance of the models from
    their mean, and v the distance of the models from their replicas. One exchange changes u to at most (1 - gamma g) u
    + gamma m a v, and v to at most gamma m u + a (1 + gamma m) v. Both shrink if gamma < g (1 - a) / (a m (m + g)). The
    result is half of that limit, and at most 1.
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

    They have only the model's float32 values. Other values are averaged, as with D-PSGD.
    """

    def __init__(self, arena: _core.Arena, gamma: float, compression: str | None, *, alike: bool = True) -> None:
        """Begin with the model in the arena, which all nodes must have; if models are not ``alike``, begin with 0."""
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
        """Put the next model into the arena, in the place of the weighted sum of differences.

        Raises RoundError if a difference is missing, because the replicas would differ from then on.
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
    refused=AMONG_NODES,
)
