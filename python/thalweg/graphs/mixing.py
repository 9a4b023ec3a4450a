"""The weights with which a node mixes its neighbours' models, and how fast mixing makes all models equal.

In all matrices, row i has the weights with which node i mixes the models of all nodes; entry (i, i) is that of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from thalweg.graphs.schedule import Exchange, Schedule

    Matrix: TypeAlias = NDArray[np.float64]

Rule: TypeAlias = Literal["metropolis", "paper", "renormalise", "symmetric"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)
# Number of iterations from which the spectral gap is computed if the graph is drawn anew in each iteration.
DRAWN: Final = 32
# Maximum number of nodes for which the spectral gap is computed: for 1,024 nodes it takes some seconds.
MOST_NODES: Final = 1_024


def metropolis(exchange: Exchange) -> Matrix:
    """Return the Metropolis-Hastings weights by static degrees: w_ij = 1 / (1 + max(d_i, d_j)), shape (n, n).

    The degree is the number of nodes from which a node receives in this iteration. Rows sum to 1. Columns do too if
    exchanges are mutual or all degrees are equal.
    """
    import numpy as np

    nodes = len(exchange.sends)
    weights = np.zeros((nodes, nodes))
    for node in range(nodes):
        for source, weight in metropolis_row(exchange, node).items():
            weights[node, source] = weight
    return weights


def metropolis_row(exchange: Exchange, node: int) -> dict[int, float]:
    """Return a node's weights: one for each neighbour from which it receives, and its own, so that they sum to 1."""
    sources = exchange.hears[node]
    weights = {source: 1.0 / (1 + max(len(sources), len(exchange.hears[source]))) for source in sources}
    return {**weights, node: 1.0 - sum(weights.values())}


def effective(rule: Rule, exchange: Exchange, delivered: NDArray[np.bool_]) -> Matrix:
    """Return the weights by which a rule mixes if only some chunks arrive: shape (n, n, c), for c chunks.

    ``delivered[i, j, k]``: whether chunk k of node j reached node i; where nothing is sent it has no meaning.

    - ``metropolis``: the own chunk stands in for a missing one (udp-dpsgd, algorithm 9).
    - ``paper``: the same, with w_ij = 1 / (1 + max(d_j, heard)); ``heard`` counts the neighbours from which any chunk
      arrived (udp-dpsgd, algorithm 8 and section 3.5.2).
    - ``renormalise``: the weights of the chunks that arrived, and of the own chunk, are scaled to a sum of 1.
    - ``symmetric``: as metropolis, but only with chunks that arrived in both directions.
    """
    import numpy as np

    sent = _sent(exchange)[:, :, np.newaxis] & delivered
    if rule == "symmetric":
        sent &= sent.transpose(1, 0, 2)
    base = _paper(exchange, sent) if rule == "paper" else metropolis(exchange)
    weights: Matrix = np.where(sent, base[:, :, np.newaxis], 0.0)
    own = np.arange(len(base))
    if rule == "renormalise":
        weights[own, own, :] = np.diag(base)[:, np.newaxis]
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))
    weights[own, own, :] = 1.0 - weights.sum(axis=1)
    return weights


def gap(schedule: Schedule) -> float | None:
    """Return the spectral gap of lossless Metropolis-Hastings mixing: 0 if models never become equal, 1 if at once.

    For one graph it is 1 - |second largest eigenvalue| of the weights. If iterations differ, it is the average per
    iteration: 1 - |P - 1/n| ^ (1/T), with the product P of the weights of T iterations and the spectral norm. None
    above MOST_NODES.
    """
    import numpy as np

    nodes = schedule.nodes
    if nodes > MOST_NODES:
        return None
    mean = np.full((nodes, nodes), 1.0 / nodes)
    if not schedule.changes:
        values = np.linalg.eigvalsh(metropolis(schedule.at(1)) - mean)
        return float(np.clip(1.0 - np.abs(values).max(), 0.0, 1.0))
    period = schedule.period or DRAWN
    product = np.eye(nodes)
    for iteration in range(1, period + 1):
        product = metropolis(schedule.at(iteration)) @ product
    left = float(np.linalg.norm(product - mean, ord=2))
    # Differences that rounding explains count as 0.
    left = 0.0 if left < nodes * np.finfo(np.float64).eps else left
    return float(np.clip(1.0 - left ** (1.0 / period), 0.0, 1.0))


def _sent(exchange: Exchange) -> NDArray[np.bool_]:
    import numpy as np

    sent: Any = np.zeros((len(exchange.sends), len(exchange.sends)), dtype=np.bool_)
    for node, sources in enumerate(exchange.hears):
        sent[node, list(sources)] = True
    return sent  # type: ignore[no-any-return]


def _paper(exchange: Exchange, sent: NDArray[np.bool_]) -> Matrix:
    import numpy as np

    degrees = np.array([len(sources) for sources in exchange.hears])
    heard = sent.any(axis=2).sum(axis=1)
    return np.asarray(1.0 / (1.0 + np.maximum(degrees[np.newaxis, :], heard[:, np.newaxis])))
