"""``thalweg run`` with a graph: a job without a server. All nodes are on this machine, each in its own process.

This process starts the nodes (``thalweg.job.graph.node``), sends each its neighbours' addresses and writes the record.
No model passes through it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from thalweg import trackers
from thalweg.errors import RecordError, RoundError
from thalweg.job.common.failure import recording
from thalweg.job.common.fleet import END_SECONDS, Fleet, client_threads
from thalweg.job.common.messages import Failure, Line
from thalweg.job.common.metrics import RoundCounts, exposing
from thalweg.job.common.parties import modules_of
from thalweg.job.common.session import Session, session
from thalweg.job.common.tracking import tracking
from thalweg.job.graph.entries import Collector
from thalweg.job.graph.iterations import iteration_weights_of
from thalweg.job.graph.lines import Done, Ended, Finished, Listening, Met, NodeLine, decode
from thalweg.job.graph.order import NodeOrder
from thalweg.job.graph.result import GraphResult
from thalweg.machine import grace
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome import Entry
from thalweg.plan import check_transport
from thalweg.plan.on_graphs import facts_of, gamma_of, graph_line, schedule_of
from thalweg.plan.options import node_options
from thalweg.plan.run_facts import RunFacts
from thalweg.record import RunRecord
from thalweg.record.folder import utc_now
from thalweg.record.of_nodes import Due, start_of
from thalweg.transports import links, registry
from thalweg.transports.links import Trust
from thalweg.ui.progress import iteration_line

if TYPE_CHECKING:
    from thalweg.graphs import Schedule
    from thalweg.plan import Plan
    from thalweg.ui.progress import Progress

# The module that a node's process runs.
PROGRAM: Final = "thalweg.job.graph.node"
# Maximum number of restarts of all nodes. They restart if one is killed before all are connected.
RESTARTS: Final = 3
# Maximum number of lines in the queue from the nodes to the record. A thread that adds one more blocks.
MOST_LINES: Final = 1024
AnyLine = TypeVar("AnyLine", bound=NodeLine)


@dataclass(frozen=True)
class Orders:
    """What the orders of a run's nodes have in common; makes the order of each node."""

    plan: Plan
    schedule: Schedule
    # Each node's tokens and certificates, by name.
    trusts: Mapping[str, Trust]
    session: Session
    record: RunRecord
    # The iteration after which a resumed job continues; 0 for a new job.
    done: int = 0
    job: int = field(default_factory=lambda: secrets.randbits(63))

    def of(self, name: str, number: int) -> NodeOrder:
        """Return the order of node ``name``. ``number`` is its place, from 1."""
        plan, weights = self.plan, iteration_weights_of(self.schedule, self.plan.members, name, self.plan.weights)
        digests, folder = {"plan": plan.digest(), "graph": self.schedule.digest()}, self.record.path
        options = node_options(
            plan, self.trusts[name], number=number, job=self.job, digests=digests, emulate=self.session.layers
        )
        return NodeOrder(
            name=name,
            threads=None if plan.is_payload else client_threads(plan.training.threads, plan.job.clients),
            place=self.session.place(name),
            plan=plan.given(),
            url=self.session.listening(name),
            options=options,
            weights=None if weights.drawn is not None else list(weights.cycle),
            sends=list(weights.sends),
            gamma=gamma_of(plan, self.schedule),
            record=str(folder.resolve()),
            done=self.done,
            start=str(start_of(folder, number, len(plan.members), self.done).resolve()) if self.done else None,
        )


class GraphRun:
    """Runs the nodes of a job: starts them, lets them connect, and records their iterations.

    Threads of the fleet put the nodes' lines into a queue. The main thread takes them out.
    """

    def __init__(
        self,
        plan: Plan,
        schedule: Schedule,
        network: Session,
        record: RunRecord,
        progress: Progress,
        *,
        done: int = 0,
    ) -> None:
        """``done`` is the iteration after which a resumed job continues; 0 for a new job."""
        self._plan, self._schedule, self._network = plan, schedule, network
        self._record, self._progress = record, progress
        self._lines: Queue[tuple[str, Line | Ended]] = Queue(MOST_LINES)
        self._collector = Collector(plan.members)
        self.fleet = self._new_fleet()
        self._restarts = 0
        self._due = Due(plan.checkpoint_every, plan.job.rounds, done=done)
        self._over = False
        self.facts: Mapping[str, object] = {}
        self.lost: dict[str, str] = {}

    def _new_fleet(self) -> Fleet[NodeOrder]:
        modules = modules_of(self._plan)
        return Fleet(self._record.log_path, self._ended, program=PROGRAM, modules=modules, on_line=self._queue)

    def meet(self, orders: Orders) -> None:
        """Start all nodes, and let each connect to its neighbours. Raises RoundError if one cannot take part.

        If a node is killed meanwhile, all are started again, because the others already have its old address. That
        loses nothing, since no iteration has begun.
        """
        self._progress.note(f"starting {len(self._plan.members)} nodes")
        while not self._met(orders):
            self.drain()
            self.fleet.stop(grace=0.0)
            self.drain()
            self._over = False
            self.fleet = self._new_fleet()

    def _met(self, orders: Orders) -> bool:
        """Start all nodes and wait until each is connected to its neighbours. Return False if one was killed."""
        names = self._plan.members
        self.fleet.start(names, orders)
        here = self._each(Listening)
        if here is None:
            return False
        first = next(iter(here.values()))
        self.facts = {"update_bytes": first.update_bytes, "tensors": first.tensors, "parameters": first.parameters}
        addresses = {name: line.address for name, line in here.items()}
        for place, name in enumerate(names):
            around = [names[neighbour] for neighbour in self._schedule.links.neighbours[place]]
            self.fleet.send(name, {"neighbours": {neighbour: addresses[neighbour] for neighbour in around}})
        return self._each(Met) is not None

    def run_iterations(self) -> None:
        """Let all nodes begin, and record their iterations until all have ended.

        Raises RoundError if no iteration was recorded.
        """
        self._network.begin(self._record)
        clock = monotonic()
        self._record.note(clock_began=utc_now())
        for name in self._plan.members:
            self.fleet.send(name, {"begin": clock})
        recorded = 0
        while self._collector.working:
            name, line = self._next()
            if isinstance(line, Finished):
                recorded += self._keep(self._collector.add(name, line))
            elif isinstance(line, (Done, Ended)):
                if isinstance(line, Ended) and name in self._collector.working:
                    self._lost(name, line.why)
                recorded += self._keep(self._collector.remove(name))
        if not recorded:
            raise RoundError(
                f"no node finished an iteration: {next(iter(self.lost.values()), 'all are gone')}",
                f"See {self._record.log_path}",
            )

    def _each(self, kind: type[AnyLine]) -> dict[str, AnyLine] | None:
        """Wait until each node has sent a line of this ``kind``; return the lines by node.

        Returns None if a node was killed, so that all must be started again. Raises RoundError if a node failed, or if
        nodes were killed more than ``RESTARTS`` times.
        """
        received: dict[str, AnyLine] = {}
        while len(received) < len(self._plan.members):
            name, line = self._next()
            if isinstance(line, Ended):
                if not self.fleet.was_killed(name) or self._restarts >= RESTARTS:
                    raise RoundError(*self._reason(name, line.why))
                self._restarts += 1
                self._note(f"{name} was lost before all nodes were connected: {line.why}; starting all nodes again")
                return None
            if isinstance(line, kind):
                received[name] = line
        return received

    def _next(self) -> tuple[str, NodeLine | Ended | None]:
        """Return the next line of any node, with its name. While waiting, check for a failed network and for Ctrl-C.

        Raises LabError, and KeyboardInterrupt if a library swallowed an earlier one.
        """
        while True:
            grace.end_if_interrupted()
            self._network.check()
            with suppress(Empty):
                name, line = self._lines.get(timeout=WAIT_SLICE)
                return name, line if isinstance(line, Ended) else decode(line)

    def _keep(self, entries: Iterable[Entry]) -> int:
        """Record iterations that all nodes have finished; return how many there are."""
        kept = 0
        for row in entries:
            kept += 1
            self._record.append(row)
            marked = self._due.after(row["round"])
            if marked is not None:  # every node has written its model before it reported this iteration
                self._record.mark(marked)
            line = iteration_line(row, self._plan.job.rounds)
            self._record.log(line)
            self._progress.note(line)
        return kept

    def _queue(self, name: str, line: Line | Ended) -> None:
        """Queue a node's line. Called by a thread of the fleet, which blocks while the queue is full."""
        if not self._over:
            self._lines.put((name, line))

    def _ended(self, name: str, why: str) -> None:
        """Queue the early end of a node's process. Called by a thread of the fleet."""
        self._queue(name, Ended(why))

    def left(self) -> list[str]:
        """Return the nodes that have not ended early."""
        return [name for name in self._plan.members if name not in self.lost]

    def drain(self) -> None:
        """Drop all queued and later lines, so that no thread of the fleet blocks while nodes are being stopped."""
        self._over = True
        with suppress(Empty):
            while True:
                self._lines.get_nowait()

    def _reason(self, name: str, why: str) -> tuple[str, str]:
        """Return why a node could not take part, and a hint: those of its final report, if it wrote one."""
        report = self.fleet.reports().get(name)
        again = f", {self._restarts + 1} times" if self._restarts else ""
        failure = (report and report.error) or Failure(f"{why}{again}", f"See {self._record.log_path}")
        return f"{name} could not take part: {failure.cause}", failure.hint

    def _lost(self, name: str, why: str) -> None:
        self.lost[name] = why
        self._note(f"{name} is gone: {why}")

    def _note(self, text: str) -> None:
        self._progress.note(text)
        self._record.log(text)


def run(
    plan: Plan, progress: Progress, *, resume: Path | None = None, transport_reason: str | None = None
) -> GraphResult:
    """Run a job on a graph on this machine and return its result.

    If a node ends early after the first iteration has begun, the others continue without it. With ``resume`` all nodes
    continue from that record's checkpoint, even those that had ended early. ``transport_reason`` says why the plan's
    transport was chosen, if the user named none; the record keeps it. Raises PlanError, DataError, ModelError or
    LabError before anything begins; LabError if an emulated network fails; RoundError if a node cannot take part at
    all, or if no iteration finishes; RecordError. All nodes have ended when it returns or raises.
    """
    check_transport(plan, registry.transports())
    trackers.require(plan.record.track)
    schedule = schedule_of(plan)
    trusts = links.mutual_trust(plan.security, plan.url, plan.members)
    progress.note(graph_line(plan, schedule))
    with session(plan, plan.members, progress.note) as network:
        facts = facts_of(plan, schedule, plan.url, tls=links.uses_tls(plan.security, plan.url))
        record, done = open_record(plan, resume, {**facts, **network.facts()})
        progress.note(f"record: {record.path}")
        if transport_reason is not None:
            record.note(transport_reason=transport_reason)
        graph_run = GraphRun(plan, schedule, network, record, progress, done=done)
        with recording(record, progress), exposing(plan.record.metrics, progress.note, clients=graph_run.left) as count:
            record.watch(lambda entry: count(RoundCounts.of_entry(entry)))
            with tracking(plan.record.track, record, progress.note):
                try:
                    graph_run.meet(Orders(plan, schedule, trusts, network, record, done))
                    record.note(**graph_run.facts)
                    graph_run.run_iterations()
                finally:
                    _end(graph_run, network, record, progress)
            record.note(gone=graph_run.lost)
            record.finish("complete")
    return GraphResult.of(plan, record, graph_run.fleet.reports(), graph_run.lost, network)


def open_record(plan: Plan, resume: Path | None, facts: RunFacts) -> tuple[RunRecord, int]:
    """Make a record, or open the one to resume; return it and its checkpoint's iteration, which is 0 for a new one."""
    if resume is None:
        return RunRecord.create(plan, facts), 0
    record = RunRecord.resume(resume, plan)
    return record, int(record.manifest["resumed_after_round"])


def _end(graph_run: GraphRun, network: Session, record: RunRecord, progress: Progress) -> None:
    """End all nodes, and record the network's tables.

    A RecordError becomes a note, so that it cannot replace the error that ended the job.
    """
    network.end_stress()
    graph_run.fleet.release()
    graph_run.drain()
    graph_run.fleet.stop(grace=0.0 if network.has_failed or grace.is_hurried() else END_SECONDS)
    try:
        network.finish(record, graph_run.fleet.reports())
    except RecordError as error:
        progress.note(f"the record is not complete: {error}")
