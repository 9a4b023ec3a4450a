"""D-PSGD in plain NumPy: a reference for tests of the core's nodes, and for simulations. Jobs do not use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.graphs import measures, mixing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg.graphs.schedule import Schedule

    Models = NDArray[np.float64]
    # Maps an iteration and the models, shape (nodes, chunks, width), to the models after local training.
    Train = Callable[[int, Models], Models]
    # Maps an iteration to the chunks that arrive, for ``mixing.effective``: shape (nodes, nodes, chunks).
    Delivered = Callable[[int], NDArray[np.bool_]]


@dataclass(frozen=True)
class Step:
    """One iteration: its number, the models after mixing, and the measures of mixing.

    ``used`` is the share of all sent chunks that arrived and were mixed, 0 to 1.
    """

    number: int
    models: Models
    drift: float
    disagreement: float
    used: float


def mix(models: Models, weights: mixing.Matrix) -> Models:
    """Return the weighted sums, chunk by chunk: shape (nodes, chunks, width), weights (nodes, nodes, chunks)."""
    import numpy as np

    return np.asarray(np.einsum("ijc,jcw->icw", weights, models))


def dpsgd(
    models: Models,
    schedule: Schedule,
    *,
    iterations: int,
    rule: mixing.Rule = "metropolis",
    train: Train | None = None,
    delivered: Delivered | None = None,
) -> Iterator[Step]:
    """Yield iterations: each node trains, sends to its neighbours, and mixes received models (Lian et al. 2017).

    ``models``, float64 of shape (nodes, chunks, width), are the initial models. Without ``train`` nodes only mix.
    Without ``delivered`` all chunks arrive.
    """
    import numpy as np

    nodes, chunks, _ = models.shape
    for number in range(1, iterations + 1):
        before = models if train is None else train(number, models)
        arrived = np.ones((nodes, nodes, chunks), dtype=np.bool_) if delivered is None else delivered(number)
        weights = mixing.effective(rule, schedule.at(number), arrived)
        models = mix(before, weights)
        flat = before.reshape(nodes, -1), models.reshape(nodes, -1)
        used = _used(weights, sum(map(len, schedule.at(number).sends)) * chunks)
        yield Step(number, models, measures.drift(*flat), measures.disagreement(flat[1]), used)


def _used(weights: mixing.Matrix, sent: int) -> float:
    import numpy as np

    own = np.arange(len(weights))
    others = np.count_nonzero(weights) - np.count_nonzero(weights[own, own, :])
    return float(others / sent) if sent else 1.0
