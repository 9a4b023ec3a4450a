"""A middle node: a node of a tree that has nodes below it.

For its parent a middle node is a node whose clients are all clients below it. For the nodes below it is the root of
rounds that end with sums instead of a mean. Its clients stay below it: no client moves to another node of the parent,
or from there.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from thalweg import _core, wire
from thalweg.errors import RoundError
from thalweg.job.common import server_reports
from thalweg.job.common.resent import COUNT_SECONDS, totals
from thalweg.job.common.server_reports import ResentCounts
from thalweg.job.tree import placement
from thalweg.job.tree.known import Node
from thalweg.job.tree.messages import KnownNode, Open, Proofs
from thalweg.job.tree.root import Tree
from thalweg.outcome import core as core_outcome
from thalweg.plan.options import CoreOptions, chosen
from thalweg.transports.links import Trust
from thalweg.trees import answers
from thalweg.trees.answers import Transfer
from thalweg.trees.merging import Part
from thalweg.ui.phrases import number_of

# Maximum number of plans of leaves that an answer has, over all nodes below.
MOST_PLANS: Final = 512


class MiddleNode(Tree):
    """Runs a node's rounds on the nodes below it. The node calls it as it would call the core's server."""

    def __init__(
        self,
        opened: Open,
        url: str,
        count: int,
        trust: Trust,
        *,
        away: float | None = None,
        known: Sequence[KnownNode] = (),
    ) -> None:
        """Listen at ``url`` for ``count`` nodes. ``opened`` is the parent's request. Raises CoreError, RoundError.

        After ``away`` seconds it goes on with the nodes that are there, if there is one. ``known`` are the
        nodes below it, if they were started earlier; those that do not come back are not in ``count``.
        """
        if opened.top is not None:
            raise RoundError(
                f"this node has nodes below it, which cannot take part in a top of the kind {opened.top.kind!r}",
                'Set tree.top = "dedicated"',
            )
        if opened.admits:
            raise RoundError(
                "this node has nodes below it, and job.goal works only with nodes that have clients",
                "Remove job.goal, or give this node clients instead of nodes",
            )
        layout = _core.Layout([(name, dtype, shape) for name, dtype, shape, _ in opened.layout])
        self.model = _core.Arena(layout)
        options = chosen(opened.options, opened.options.keys() - {"expected"})
        of_job = chosen(opened.options, ("job", "liveness", "grace"))
        own: CoreOptions = {"transport": {"tls": trust.tls}, "tree": True, **trust.tokens, **of_job}
        super().__init__(self.model, url, count, options, own, top="middle", place=placement.stay)
        self._request = opened
        # Whether the log says that counters are missing.
        self._has_told = False
        self._known = {one.node: one for one in known}
        self._until = None if away is None else time.monotonic() + away
        self._sums: tuple[bytes, _core.Arena] | None = None
        # Held while nodes are opened and during a round. A round that the parent has given up may still be ending when
        # the next one begins.
        self._turn = threading.Lock()
        # The transfers between this node and those below it in the last round.
        self.between: Sequence[Transfer] = ()

    def is_for(self, opened: Open) -> bool:
        """Return whether this middle was made for such a request of the parent."""
        return opened.is_for_same_job(self._request)

    def open_below(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the nodes below, and open those that are there; return whether all are open."""
        with self._turn:
            if not self._opened and self._are_there(seconds) and self._open(None) and self._known:
                self._recall()
            return self._opened

    def _recall(self) -> None:
        """Remember which clients belong to which node. Meanwhile clients of a lost node may have gone to another."""
        here = {node.name: node for node in self._nodes}
        for name, known in self._known.items():
            if name in here:
                here[name].clients = known.clients
            else:
                loss = known.gone or "did not come back in time"
                lost = Node(name, known.clients, known.url, known.url, loss=loss, expected=known.expected)
                self._nodes = [*self._nodes, lost]
        self.tell_homes()

    def _are_there(self, seconds: float) -> bool:
        """Wait as ``_there`` does. The nodes that have stayed away too long are not awaited any more."""
        if self._there(seconds):
            return True
        here = len(set(server_reports.clients(self._server)) - self._refused)
        if self._until is None or time.monotonic() < self._until or not here:
            return False
        self.note(f"going on with {here} of {number_of(self._count, 'node')}: the others stayed away too long")
        self._count = here
        return True

    @property
    def expected_clients(self) -> int:
        """How many clients there are below."""
        return sum(node.expected for node in self._nodes)

    def draw(self, clients: Sequence[str]) -> None:
        """Let only these clients take part in the next round."""
        self._only = frozenset(clients)

    def round(self, number: int, config: str, observer: Callable[[str], None] | None) -> str:
        """Run a round on the nodes below; return the outcome as JSON, as a node answers it. Keeps the sums.

        If ``observer`` raises, the round ends with that error.
        """
        with self._turn:
            self._sums, self.between = None, ()
            try:
                outcome, done = self.run_round(number, config, observer)
            finally:
                self._only = None
            self._sums, self.between = done.sums, done.between
        return wire.encode(_for_parent(outcome, done.parts, has_sums=done.sums is not None))

    def sums(self) -> tuple[bytes, _core.Arena] | None:
        """Return the sums of the last round, their head and their cells; None if it had none."""
        return self._sums

    def proofs(self, clients: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return the proofs that these clients have shown to nodes below, with their names."""
        here = self._here()
        at_home = {client for node in here for client in node.clients}
        shown: dict[str, bytes] = {}
        for node in here:
            # A node is asked for its own clients and for those whose node is lost. Else it could answer for others'.
            guests = {client for client in node.connected if client not in at_home and client not in shown}
            wanted = [client for client in clients if client in node.clients or client in guests]
            received = self._ask_one(Proofs(wanted), node) if wanted else None
            if received is None or received.head is None:
                continue
            for client in wanted:
                with suppress(ValueError):  # no base64: it has shown none
                    if client in received.head.proofs:
                        shown[client] = base64.b64decode(received.head.proofs[client], validate=True)
        return list(shown.items())

    def resent_totals(self) -> ResentCounts:
        """Return how many segments were sent again below."""
        return totals(server_reports.resent(self, COUNT_SECONDS).values())

    def tree(self) -> str | None:
        """Return None: it has no workers. ``counters_below`` has those of the nodes below."""
        return None

    def worker_counters(self) -> dict[str, answers.Workers]:
        """Return the last counters of the workers of all nodes below, also of lost ones, by the nodes' names."""
        return self._counters_of(self._nodes)

    def counters_below(self) -> dict[str, answers.Workers]:
        """Return the counters of the workers of nodes below, as far as an answer has room for them.

        There are at most ``answers.MOST_NODES`` of them, and the fewer plans of each node the more nodes there are.
        """
        every = self.worker_counters()
        counters = dict(list(every.items())[: answers.MOST_NODES])
        if len(counters) < len(every) and not self._has_told:
            self._has_told = True
            left = number_of(len(every) - len(counters), "node")
            self.note(f"an answer has counters of {answers.MOST_NODES} nodes, and those of {left} are missing")
        most = MOST_PLANS // max(1, len(counters))
        return {name: _with_plans(one, most) for name, one in counters.items()}

    def notes(self) -> list[str]:
        """Return what happened since the last call, at most as much as an answer may hold."""
        return super().notes()[: answers.MOST_NOTES]


def _with_plans(counters: answers.Workers, most: int) -> answers.Workers:
    """Return the counters of a node with at most so many of its latest plans."""
    if counters.decisions is None or len(counters.decisions.latest) <= most:
        return counters
    return replace(counters, decisions=replace(counters.decisions, latest=counters.decisions.latest[-most:]))


def _for_parent(outcome: core_outcome.Outcome, parts: Sequence[Part], *, has_sums: bool) -> core_outcome.Outcome:
    """Return a round's outcome in the form in which a node answers it, with all clients below in one list."""
    failure = None
    if not has_sums:
        reasons = [f"{part.node}: {part.reason}" for part in parts if part.reason]
        failure = f"no node below it has updates: {'; '.join(reasons)}"[: answers.LONGEST_LINE]
    seconds = outcome.fold.completion_seconds if isinstance(outcome.fold, core_outcome.TreeFold) else None
    fold = core_outcome.Fold(None, seconds, 0.0)
    return answers.Outcome(**{**vars(outcome), "fold": fold, "failure": failure})
