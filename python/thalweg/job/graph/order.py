"""The order of a node's process of ``thalweg run`` on a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.job.common.messages import Order
from thalweg.wire import Table

if TYPE_CHECKING:
    from thalweg.plan.options import CoreOptions


@dataclass(frozen=True, kw_only=True)
class NodeOrder(Order):
    """What a node's process reads when it starts.

    ``plan`` has the keys that the user set, and ``options`` the core's options. ``weights`` and ``sends`` are the
    ``cycle`` and ``sends`` of ``iterations.IterationWeights``. Without ``weights`` the node draws the graph of each
    iteration itself. ``gamma`` is the step size of CHOCO-SGD, if the job uses it. ``record`` is the record's folder,
    ``done`` the last finished iteration, and ``start`` the checkpoint to load.
    """

    plan: Table
    url: str
    options: CoreOptions
    weights: Sequence[Mapping[str, float]] | None
    sends: Sequence[Sequence[str]]
    gamma: float | None
    record: str
    done: int
    start: str | None
