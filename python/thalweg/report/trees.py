"""Reports the work of each node of an aggregation tree, over all rounds of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thalweg.record.facts import Facts
from thalweg.report.series import natural
from thalweg.report.source import json_object
from thalweg.report.workers import Work, did

if TYPE_CHECKING:
    from thalweg.report.source import Run


@dataclass
class TreeNode:
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
    numbers: set[int] = field(default_factory=set)

    def add_round(self, part: Facts) -> None:
        """Add the node's part of a round's entry."""
        self.clients = part.whole("clients")
        self.counted = (self.counted or 0) + (part.whole("counted") or 0)
        why = part.text("reason")
        self.reasons += [why] if why and why not in self.reasons else []

    def add_work(self, stretch: Work) -> None:
        """Add one piece of work of one of the node's workers."""
        if stretch.what == "fold":
            self.folds += 1
            self.fold_seconds += stretch.end - stretch.start
        self.numbers |= {stretch.worker} if stretch.worker else set()

    @property
    def workers(self) -> int:
        """How many workers the node had."""
        return len(self.numbers)


def nodes(run: Run) -> list[TreeNode]:
    """Return the nodes by name."""
    by_name: dict[str, TreeNode] = {}

    def of(name: object) -> TreeNode:
        return by_name.setdefault(str(name), TreeNode(str(name)))

    for row in run.rounds:
        fold = Facts(json_object(row.fold))
        for one in fold.parts("nodes"):
            of(one.text("node")).add_round(one)
        for stretch in did(fold.part("timeline")):
            of(stretch.node).add_work(stretch)
        if "top" in fold:
            of(fold.values["top"]).top += 1
    return sorted(by_name.values(), key=lambda node: natural(node.node))


def sentence(run: Run) -> str | None:
    """Return the text on the tree's system, nodes and workers; None if the record has no tree."""
    if "tree" not in run.manifest:
        return None
    tree = run.manifest.part("tree")
    used = nodes(run)
    workers = sum(node.workers for node in used)
    words = f"{(tree.text('system') or '').upper()} tree on {_many(len(used) or 1, 'node')}, {_many(workers, 'worker')}"
    died = tree.whole("died")
    return words + (f"; {died} of its workers died" if died else "")


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
