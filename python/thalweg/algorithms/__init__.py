"""The algorithms that a plan can name, and what the parties compute. Imports no framework.

``ALGORITHMS`` has all of them by their name in ``[algorithm]``. Each is defined once, at the end of its own file.
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

__all__ = ["ALGORITHMS", "CALLED", "FOR_GRAPHS", "ON_GRAPHS", "SETTINGS", "Algorithm", "find"]

# The default algorithm of jobs on a graph, and all algorithms that such a job can have.
ON_GRAPHS: Final = dpsgd.ALGORITHM.name
FOR_GRAPHS: Final = (ON_GRAPHS, choco.ALGORITHM.name)
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
#: Those that a program calls, and that no plan can name.
CALLED: Final = (fedbuff.CALLED, diloco.CALLED)

# The keys of [algorithm] that are settings of some algorithm with a server.
SETTINGS: Final = tuple(dict.fromkeys(key for one in ALGORITHMS.values() for key in one.settings))


def find(name: str) -> Algorithm:
    """Return the algorithm called ``name``. Raises PlanError if there is none."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    near = get_close_matches(name, ALGORITHMS, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    raise PlanError(f"unknown algorithm {name!r}", f"{guess}Known: {', '.join(ALGORITHMS)}")
