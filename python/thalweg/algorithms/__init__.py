"""The algorithms of federated and decentralized learning. Importing this package imports no ML framework.

``ALGORITHMS`` has those that a plan can name, by their name in ``[algorithm]``. ``FUNCTIONS`` has those that a program
calls instead. Each is defined once, at the end of its own file.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from thalweg.algorithms import (
    choco,
    diloco,
    dpsgd,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedbuff,
    fednova,
    fedprox,
    fedyogi,
    qfedavg,
    scaffold,
)
from thalweg.algorithms.algorithm import Algorithm
from thalweg.errors import PlanError

__all__ = ["ALGORITHMS", "FUNCTIONS", "GRAPH_ALGORITHMS", "GRAPH_DEFAULT", "SETTINGS", "Algorithm", "find"]

# The default algorithm of jobs on a graph, and all algorithms that such a job can have.
GRAPH_DEFAULT: Final = dpsgd.ALGORITHM.name
GRAPH_ALGORITHMS: Final = (GRAPH_DEFAULT, choco.ALGORITHM.name)
# In the order in which documents list them.
_ALL: Final = (
    fedavg.ALGORITHM,
    fedavgm.ALGORITHM,
    fedadam.ALGORITHM,
    fedadagrad.ALGORITHM,
    fedyogi.ALGORITHM,
    fedprox.ALGORITHM,
    fednova.ALGORITHM,
    qfedavg.ALGORITHM,
    scaffold.ALGORITHM,
    dpsgd.ALGORITHM,
    choco.ALGORITHM,
)
ALGORITHMS: Final = {one.name: one for one in _ALL}
#: Algorithms that are functions of ``thalweg``. No plan can name them.
FUNCTIONS: Final = (fedbuff.FUNCTION, diloco.FUNCTION)

# The keys of [algorithm] that are settings of some algorithm with a server.
SETTINGS: Final = tuple(dict.fromkeys(key for one in ALGORITHMS.values() for key in one.settings))


def find(name: str) -> Algorithm:
    """Return the algorithm called ``name``. Raises PlanError if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = get_close_matches(name, ALGORITHMS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise PlanError(f"unknown algorithm {name!r}", f"{guess}Known: {', '.join(ALGORITHMS)}")
