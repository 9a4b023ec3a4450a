"""The order of a process of ``thalweg flower run`` that serves nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.job.common.messages import Line, Order

if TYPE_CHECKING:
    from thalweg.plan.options import CoreOptions


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """A node's name, its options for the core, and the configuration that its ClientApp gets."""

    name: str
    options: CoreOptions
    config: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ProcessOrder(Order):
    """What a process reads when it starts: the server's URL, the app's folder, and the nodes that it serves."""

    url: str
    app: str
    nodes: Sequence[NodeSettings]

    @classmethod
    def of(cls, table: Line) -> ProcessOrder:
        return super().of({**table, "nodes": [NodeSettings(**node) for node in table["nodes"]]})
