"""``thalweg run`` with a graph: a job without a server on this machine, each node in a process of its own.

This process starts the nodes, hands out their addresses and writes the record. No model passes through it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from thalweg.errors import RecordError, RoundError
from thalweg.job.collecting import Collector
from thalweg.job.ending import recording
from thalweg.job.exposing import exposing
from thalweg.job.fleet import END_SECONDS, Fleet, client_threads
from thalweg.job.graph_result import GraphResult
from thalweg.job.iterating import turns_of
from thalweg.job.session import Session, session
from thalweg.machine import grace
from thalweg.plan import check_transport
from thalweg.plan.on_graphs import facts_of, gamma_of, graph_line, schedule_of
from thalweg.plan.options import node_options
from thalweg.record import RunRecord
from thalweg.record.of_nodes import Due, start_of
from thalweg.transports import links, registry
from thalweg.ui.progress import iteration_line

if TYPE_CHECKING:
    from thalweg.graphs import Schedule
    from thalweg.plan import Plan
    from thalweg.ui.progress import Progress

# What a node's process runs.
PROGRAM: Final = "thalweg.job.node"
# How often nodes that were killed before they have met are started again.
RESTARTS: Final = 3
# Seconds after which the network and Ctrl-C are looked at.
SLICE: Final = 0.2
# Lines of nodes that wait to be recorded; a node that says more waits.
MOST_LINES: Final = 1024


@dataclass(frozen=True)
class Orders:
    """What the nodes of a run are told when they are started."""

    plan: Plan
    schedule: Schedule
    # By name.
    trusts: Mapping[str, Mapping[str, Any]]
    session: Session
    record: RunRecord
    # The iteration after which the job goes on, 0 for a new one.
    done: int = 0
    job: int = field(default_factory=lambda: secrets.randbits(63))

    def of(self, name: str, number: int) -> dict[str, Any]:
        """Return the order of one node."""
        plan, turns = self.plan, turns_of(self.schedule, self.plan.members, name, self.plan.weights)
        digests, folder = {"plan": plan.digest(), "graph": self.schedule.digest()}, self.record.path
        options = node_options(
            plan, self.trusts[name], number=number, job=self.job, digests=digests, emulate=self.session.layers
        )
        return {
            "name": name,
            "plan": plan.given(),
            "url": self.session.listening(name),
            "options": options,
            "turns": None if turns.drawn is not None else list(turns.by_turns),
            "sends": list(turns.sends),
            "gamma": gamma_of(plan, self.schedule),
            "record": str(folder.resolve()),
            "done": self.done,
            "start": str(start_of(folder, number, len(plan.members), self.done).resolve()) if self.done else None,
            "threads": None if plan.is_payload else client_threads(plan.training.threads, plan.job.clients),
            "parent": os.getpid(),
            "place": self.session.place(name),
        }


class Course:
    """A run's nodes as they go, from their addresses to their last iteration."""

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
        """``done`` is the iteration after which the job goes on."""
        self._plan, self._schedule, self._network = plan, schedule, network
        self._record, self._progress = record, progress
        self._said: Queue[tuple[str, Mapping[str, Any]]] = Queue(MOST_LINES)
        self._collector = Collector(plan.members)
        self.fleet = self._new_fleet()
        self._restarts = 0
        self._due = Due(plan.checkpoint_every, plan.job.rounds, done=done)
        self._over = False
        self.facts: Mapping[str, Any] = {}
        self.gone: dict[str, str] = {}

    def _new_fleet(self) -> Fleet:
        return Fleet(self._record.log_path, self._ended, program=PROGRAM, on_line=self._hear)

    def meet(self, orders: Orders) -> None:
        """Start all nodes, and let each meet its neighbours. Raises RoundError if one cannot take part.

        If one is killed meanwhile, all are started again: its neighbours have its address, and no iteration is lost.
        """
        self._progress.note(f"starting {len(self._plan.members)} nodes")
        while not self._met(orders):
            self.drain()
            self.fleet.stop(grace=0.0)
            self.drain()
            self._over = False
            self.fleet = self._new_fleet()

    def _met(self, orders: Orders) -> bool:
        """Start all nodes, and return whether each has met its neighbours; if one is killed they are started again."""
        names = self._plan.members
        self.fleet.start(names, orders)
        here = self._each("here")
        if here is None:
            return False
        self.facts = {key: next(iter(here.values()))[key] for key in ("update_bytes", "tensors", "parameters")}
        addresses = {name: said["address"] for name, said in here.items()}
        for place, name in enumerate(names):
            around = [names[neighbour] for neighbour in self._schedule.links.neighbours[place]]
            self.fleet.tell(name, {"neighbours": {neighbour: addresses[neighbour] for neighbour in around}})
        return self._each("met") is not None

    def go(self) -> None:
        """Let all nodes begin, and record their iterations until all have ended. Raises RoundError if none got on."""
        self._network.begin(self._record)
        clock = monotonic()
        for name in self._plan.members:
            self.fleet.tell(name, {"begin": clock})
        recorded = 0
        while self._collector.working:
            name, said = self._next()
            kind = said["say"]
            if kind == "iteration":
                recorded += self._keep(self._collector.add(name, said))
            elif kind in ("done", "ended"):
                if kind == "ended" and name in self._collector.working:
                    self._lost(name, str(said["why"]))
                recorded += self._keep(self._collector.gone(name))
        if not recorded:
            raise RoundError(
                f"no node finished an iteration: {next(iter(self.gone.values()), 'all are gone')}",
                f"See {self._record.log_path}",
            )

    def _each(self, kind: str) -> dict[str, Mapping[str, Any]] | None:
        """Wait until each node has said ``kind``; return what they said, None if all are to be started again."""
        heard: dict[str, Mapping[str, Any]] = {}
        while len(heard) < len(self._plan.members):
            name, said = self._next()
            if said["say"] == "ended":
                if not self.fleet.was_killed(name) or self._restarts >= RESTARTS:
                    raise RoundError(*self._reason(name, said["why"]))
                self._restarts += 1
                self._told(f"{name} was lost before the nodes had met: {said['why']}; starting all nodes again")
                return None
            if said["say"] == kind:
                heard[name] = said
        return heard

    def _next(self) -> tuple[str, Mapping[str, Any]]:
        """Return what a node says next; meanwhile look whether the network has failed and Ctrl-C was lost."""
        while True:
            grace.end_if_interrupted()
            self._network.check()
            with suppress(Empty):
                return self._said.get(timeout=SLICE)

    def _keep(self, entries: Iterable[Mapping[str, Any]]) -> int:
        """Record iterations that all nodes are through; return how many these were."""
        kept = 0
        for row in entries:
            kept += 1
            self._record.append(row)
            marked = self._due.after(row["round"])
            if marked is not None:  # all nodes are through it, and have kept their models before they said so
                self._record.mark(marked)
            line = iteration_line(row, self._plan.job.rounds)
            self._record.log(line)
            self._progress.note(line)
        return kept

    def _hear(self, name: str, said: Mapping[str, Any]) -> None:
        """Take a line from a thread of the fleet; it waits while many wait to be recorded."""
        if not self._over:
            self._said.put((name, said))

    def _ended(self, name: str, why: str) -> None:
        """Hear from a thread of the fleet that a process has ended."""
        self._hear(name, {"say": "ended", "why": why})

    def left(self) -> list[str]:
        """Return the nodes that have not ended early."""
        return [name for name in self._plan.members if name not in self.gone]

    def drain(self) -> None:
        """Hear nothing more, so that no thread of the fleet waits to be heard."""
        self._over = True
        with suppress(Empty):
            while True:
                self._said.get_nowait()

    def _reason(self, name: str, why: str) -> tuple[str, str]:
        """Return why a node could not take part, in its own last words if it had some, and what to do."""
        error = self.fleet.reports().get(name, {}).get("error", {})
        again = f", {self._restarts + 1} times" if self._restarts else ""
        cause, mend = error.get("cause", f"{why}{again}"), error.get("mend", f"See {self._record.log_path}")
        return f"{name} could not take part: {cause}", mend

    def _lost(self, name: str, why: str) -> None:
        self.gone[name] = why
        self._told(f"{name} is gone: {why}")

    def _told(self, text: str) -> None:
        self._progress.note(text)
        self._record.log(text)


def run(plan: Plan, progress: Progress, *, resume: Path | None = None) -> GraphResult:
    """Run a job on a graph on this machine and return what it came to.

    A node that ends early is left out from then on, and the others go on. Raises PlanError, DataError, ModelError,
    LabError before anything begins, LabError if an emulated network fails, RoundError if a node cannot take part at
    all or none finishes an iteration, RecordError; all nodes have ended then. With ``resume`` all nodes go on from that
    record's checkpoint, those that were gone too.
    """
    check_transport(plan, registry.transports())
    schedule = schedule_of(plan)
    trusts = links.mutual_trust(plan.security, plan.url, plan.members)
    progress.note(graph_line(plan, schedule))
    with session(plan, plan.members, progress.note) as network:
        facts = facts_of(plan, schedule, plan.url, tls=links.uses_tls(plan.security, plan.url))
        record, done = opened(plan, resume, {**facts, **network.facts()})
        progress.note(f"record: {record.path}")
        course = Course(plan, schedule, network, record, progress, done=done)
        with recording(record, progress), exposing(plan.record.metrics, progress.note, clients=course.left) as count:
            record.watch(count)
            try:
                course.meet(Orders(plan, schedule, trusts, network, record, done))
                record.note(**course.facts)
                course.go()
            finally:
                _end(course, network, record, progress)
            record.note(gone=course.gone)
            record.finish("complete")
    return GraphResult.of(plan, record, course.fleet.reports(), course.gone, network)


def opened(plan: Plan, resume: Path | None, facts: Mapping[str, Any]) -> tuple[RunRecord, int]:
    """Make a record, or open the one to go on with; return it and the iteration of its checkpoint, 0 if it is new."""
    if resume is None:
        return RunRecord.create(plan, facts), 0
    record = RunRecord.resume(resume, plan)
    return record, int(record.manifest["resumed_after_round"])


def _end(course: Course, network: Session, record: RunRecord, progress: Progress) -> None:
    """End all nodes and keep what they and the network leave. No error here hides what ended the job."""
    network.end_stress()
    course.fleet.release()
    course.drain()
    course.fleet.stop(grace=0.0 if network.has_failed or grace.is_hurried() else END_SECONDS)
    try:
        network.finish(record, course.fleet.reports())
    except RecordError as error:
        progress.note(f"the record is not complete: {error}")
