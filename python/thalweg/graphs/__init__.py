"""Which nodes exchange models in decentralized learning: graphs by name, their schedule, and mixing weights.

``words`` reads ``3-regular`` or ``file:PATH``, ``making`` draws a graph, ``edges`` reads DecentralizePy's files,
``schedule`` says who sends to whom in which iteration, ``mixing`` with what weight, ``measures`` computes what mixing
does to the models, and ``reference`` is D-PSGD in plain NumPy for tests. networkx is imported when a graph is drawn.
"""

from __future__ import annotations

from thalweg.graphs.graph import Graph
from thalweg.graphs.schedule import Exchange, Schedule, schedule
from thalweg.graphs.words import FORMS, Word, parse

__all__ = ["FORMS", "Exchange", "Graph", "Schedule", "Word", "parse", "schedule"]
