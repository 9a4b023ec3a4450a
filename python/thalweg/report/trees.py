"""Reports the work of each node of an aggregation tree, over all rounds of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from thalweg.report.series import natural
from thalweg.report.source import json_object
from thalweg.report.workers import ONE_NODE, did

if TYPE_CHECKING:
    from thalweg.report.source import Run


@dataclass
class _Node:
    """A node: its clients, how many of their updates are in the mean, and the work of its workers.

    None means unknown.
    """

    node: str
    clients: int | None = None
    counted: int | None = None
    folds: int = 0
    fold_seconds: float = 0.0
    # Rounds in which the node computed the mean.
    top: int = 0
    reasons: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def heard(self, said: Mapping[str, Any]) -> None:
        """Add the node's part of a round's entry."""
        self.clients = said.get("clients")
        self.counted = (self.counted or 0) + (said.get("counted") or 0)
        why = said.get("reason")
        self.reasons += [str(why)] if why and str(why) not in self.reasons else []

    def worked(self, stretch: Mapping[str, Any]) -> None:
        """Add one piece of work of one of the node's workers."""
        if stretch["what"] == "fold":
            self.folds += 1
            self.fold_seconds += stretch["end"] - stretch["start"]
        self.names |= {str(stretch["worker"])} if stretch.get("worker") else set()

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "workers": len(self.names)}


def nodes(run: Run) -> list[dict[str, Any]]:
    """Return a row for each node."""
    found: dict[str, _Node] = {}

    def of(name: object) -> _Node:
        return found.setdefault(str(name), _Node(str(name)))

    for row in run.rounds:
        fold = json_object(row["fold"])
        said, worked = fold.get("nodes"), fold.get("timeline")
        for one in said if isinstance(said, list) else ():
            if isinstance(one, dict):
                of(one.get("node")).heard(one)
        for stretch in did(worked) if isinstance(worked, dict) else ():
            of(stretch.get("node", ONE_NODE)).worked(stretch)
        if "top" in fold:
            of(fold["top"]).top += 1
    return [node.row() for node in sorted(found.values(), key=lambda node: natural(node.node))]


def sentence(run: Run) -> str | None:
    """Return the tree's system, nodes and workers in words; None if the record has no tree."""
    tree = run.manifest.get("tree")
    if not isinstance(tree, dict):
        return None
    used = nodes(run)
    workers = sum(node["workers"] for node in used)
    words = f"{str(tree.get('system', '')).upper()} tree on {_many(len(used) or 1, 'node')}, {_many(workers, 'worker')}"
    died = tree.get("died")
    return words + (f"; {died} of its workers died" if died else "")


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
