"""The facts that a run adds to its record's manifest when it begins. docs/reference/record.md explains the keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from thalweg.apps import AppFacts
    from thalweg.plan.bound import Bound


class Unbound(TypedDict):
    """Why the bound of a job is not known."""

    source: str


class GraphFacts(TypedDict):
    """The graph of a job: its nodes' names by place, its edges as pairs of places, and what follows from them."""

    word: str | None
    nodes: Sequence[str]
    edges: Sequence[Sequence[int]]
    spectral_gap: float | None
    gamma: float | None


class SystemFacts(TypedDict):
    """The other system that did the rounds of a bench's run."""

    name: str
    command: Sequence[str]
    options: Mapping[str, object]


class RunFacts(TypedDict, total=False):
    """The facts that are known when a run begins. ``resent`` stays null until the last round is over."""

    address: str
    tls: bool
    bound: Bound | Unbound
    resent: None
    update_bytes: int
    tensors: int
    app: AppFacts
    graph: GraphFacts
    node: str
    emulation: str
    network: object
    flower: str
    system: SystemFacts
