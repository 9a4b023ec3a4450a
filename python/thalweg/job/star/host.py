"""The server's side of a job with rounds: the listening server, its model and its record.

``thalweg run`` (``thalweg.job.run``) and servers of distributed jobs (``thalweg.job.star.remote``) both use it:
``hosting`` makes a ``Host``, and ``Host.serve`` runs the rounds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from thalweg import _core, algorithms, apps, machine, trackers, wire
from thalweg.algorithms.server_step import ServerStep
from thalweg.apps.metrics import Intake
from thalweg.errors import RecordError, ThalwegError
from thalweg.job.common import server_reports
from thalweg.job.common.failure import RUN, end_badly
from thalweg.job.common.metrics import RoundCounts, exposing
from thalweg.job.common.parties import CLIENTS, ServerParty, bytes_of, evaluators, round_config, server_party
from thalweg.job.common.resent import COUNT_SECONDS, counted, manifest_counts, senders, totals
from thalweg.job.common.server_reports import ResentCounts
from thalweg.job.common.session import SERVER
from thalweg.job.common.tracking import tracking
from thalweg.job.star import compression
from thalweg.job.star.attendance import Attendance, sentences
from thalweg.job.tree.root import Serving, Tree, tree_of
from thalweg.machine.grace import end_if_interrupted
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome import Entry, Summary, SummaryRound, completion_seconds
from thalweg.outcome.core import Absence, Outcome
from thalweg.plan import check_transport
from thalweg.plan.bound import Bound, bound_of
from thalweg.plan.on_trees import has_nodes
from thalweg.plan.options import server_options
from thalweg.plan.run_facts import RunFacts
from thalweg.plan.systems import has_plans, switches
from thalweg.record import RunRecord, entry
from thalweg.record.folder import utc_now
from thalweg.sections.trees import TreeSection
from thalweg.transports import registry
from thalweg.transports.links import Trust
from thalweg.trees import live
from thalweg.trees.balance import BalanceRow
from thalweg.trees.counters import Workers
from thalweg.trees.decided import Watched, plan_in_words
from thalweg.trees.live import WorkReport
from thalweg.ui.progress import round_line

if TYPE_CHECKING:
    from thalweg.job.common.session import Session
    from thalweg.plan import Plan
    from thalweg.ui.progress import Progress


# Servers that must stay open until this process ends (``_goodbye``). Without a reference they would close themselves.
_UNCLOSED: Final[list[Serving]] = []


@dataclass(frozen=True)
class Result:
    """The result of a job. ``peaks``: each client's peak memory in bytes; None if clients share the server's process.

    Rounds are read from the record when they are needed, since there may be thousands.
    """

    plan: Plan
    record: RunRecord
    absent: Sequence[Absence]
    rounds: int
    parameters: int
    update_bytes: int
    server_peak: int | None
    peaks: Sequence[int | None] | None
    bound: Bound
    emulation: str = "none"
    # Why the emulator "auto" could not emulate at packet level; None if it could.
    emulation_reason: str | None = None
    # Why this transport was chosen; None if the plan named it.
    transport_reason: str | None = None
    # What the workers have done; None if the server folded updates itself.
    tree: WorkReport | None = None

    def table(self) -> Summary:
        """Return what ``--json`` prints. Memory is in bytes, times are in seconds."""
        summary: Summary = {
            "transport": self.plan.scheme,
            "transport_reason": self.transport_reason,
            "algorithm": self.plan.algorithm.name,
            "model": self.plan.label,
            "clients": self.plan.job.clients,
            "parameters": self.parameters,
            "update_bytes": self.update_bytes,
            "rounds": [_summary_round(entry) for entry in self.record.rounds()],
            "absent": wire.values_of(self.absent),
            "peak_rss_bytes": {"server": self.server_peak, "clients": self.peaks},
            "emulation": self.emulation,
            "emulation_reason": self.emulation_reason,
            "record": str(self.record.path),
        }
        if self.tree is not None:
            summary["tree"] = self.tree.with_times([completion_seconds(entry) for entry in self.record.rounds()])
        return summary


def _summary_round(entry: Entry) -> SummaryRound:
    """Return the fields of a journal's entry that a summary shows. Older journals lack some keys."""
    return {
        "round": entry["round"],
        "accuracy": entry.get("accuracy"),
        "loss": entry.get("loss"),
        "client_accuracy": entry.get("client_accuracy"),
        "client_loss": entry.get("client_loss"),
        "seconds": entry["seconds"],
        "communication_seconds": entry["communication_seconds"],
        "fedcomm_communication_seconds": entry.get("fedcomm_communication_seconds"),
        "bytes_down": entry["bytes_down"],
        "bytes_up": entry["bytes_up"],
        "participants": entry["participants"],
        "expected": entry["expected"],
        "complete": entry["complete"],
    }


@dataclass(frozen=True)
class Host:
    """A server that listens, with its model and its record. ``first`` is the number of its first round."""

    plan: Plan
    server: Serving
    party: ServerParty
    record: RunRecord
    progress: Progress
    bound: Bound
    first: int
    session: Session | None = None
    intake: Intake = field(default_factory=Intake)
    attendance: Attendance = field(default_factory=Attendance)
    cpu_before: float | None = field(default_factory=machine.cpu_seconds)
    # Which plans of a tree's nodes the record already has.
    watched: Watched = field(default_factory=Watched)
    # What the workers have done, once the job is done; empty in a job without workers.
    work: list[WorkReport] = field(default_factory=list)
    # What the server does after each round, beyond taking the mean.
    step: ServerStep | None = None

    @property
    def evaluators(self) -> Sequence[str]:
        """Who evaluates: the server, the clients, both or nobody."""
        return evaluators(self.plan.job.evaluate, personal=self.party.personal, evaluates=self.party.evaluates)

    def wait(self, look: Callable[[], None], lost: Callable[[], Mapping[str, str]] = dict) -> None:
        """Wait until all clients are connected. ``look`` is called several times a second and may raise.

        ``lost`` returns the clients that will not connect, each with the reason. If ``look`` does not raise because of
        them, a star begins once the others are connected.

        If a star resumes a record and ``job.enough`` clients are connected, it waits only ``job.grace`` seconds longer,
        because a client may have left for good while the server was away. Before a new job's first round it waits on,
        and says so. If the record already has all rounds, this waits at most ``job.grace`` seconds, so that clients can
        reconnect and learn that the job is done.
        """
        job, enough_since, explained = self.plan.job, None, False
        if self.first > job.rounds:
            ends = time.monotonic() + job.grace
            while time.monotonic() < ends and self.server.wait(job.clients, WAIT_SLICE) < job.clients:
                look()
            return
        while (here := self.server.wait(job.clients, WAIT_SLICE)) < job.clients:
            self._write_notes(self.server.notes())
            look()
            missing = lost()
            if missing and isinstance(self.server, _core.Server) and self._are_here(missing):
                left = job.clients - len(missing)
                self.server.place_clients(left, "{}")  # no round is to wait for a missing client
                whys = "; ".join(f"{name} is missing: {why}" for name, why in sorted(missing.items()))
                self._write_notes([f"going on with {left} of {job.clients} clients: {whys}"])
                return
            if job.enough is None or here < job.enough or isinstance(self.server, Tree):
                enough_since = None
                continue
            enough_since = enough_since or time.monotonic()
            if time.monotonic() - enough_since < job.grace:
                continue
            if self.first > 1:
                # So that the first round does not wait for the others again. What is no tree is a server of the core.
                cast("_core.Server", self.server).place_clients(here, "{}")
                self._write_notes([f"going on with {here} of {job.clients} clients: the others have not connected"])
                return
            if not explained:
                self._write_notes(
                    [f"{here} of {job.clients} clients are here; the first round begins with all of them"]
                )
                explained = True

    def _are_here(self, missing: Collection[str]) -> bool:
        """Return whether all clients of the plan are connected, except the ``missing`` ones."""
        return {*self.plan.members} <= {*missing, *self.connected()}

    def previous_clients(self) -> list[str]:
        """Return the clients of the last recorded round, sorted by name; none for a new record.

        A resumed job gives clients places in this order, so that each keeps its part of the data.
        """
        last = deque(self.record.rounds(), maxlen=1)
        return sorted(str(one["client"]) for one in last[0]["clients"]) if last else []

    def serve(self, names: Callable[[], Sequence[str]]) -> None:
        """Run all rounds. ``names`` is called before each round and returns the clients in the order of their places.

        Raises CoreError if a round has too few updates, and RecordError if a round cannot be recorded. Rounds that were
        recorded before stay in the record.
        """
        if self.session is not None:
            self.session.begin(self.record)
        algorithm = algorithms.find(self.plan.algorithm.name)
        for done in algorithm.rounds(lambda n: self._step(n, names()), range(self.first, self.plan.job.rounds + 1)):
            self._keep(done)
            self._keep_plans(done)
            self.progress.end(done)
        memory = self.server.memory() if isinstance(self.server, _core.Server) else None
        work = live.work_report(self.plan, self.server.tree(), machine.cpu_seconds(self.cpu_before), memory)
        if work is not None:
            self.work.append(work)
            self.record.note(tree=work)
        with_broker = registry.can(self.plan.scheme).broker
        self.record.note(resent=manifest_counts(self._resent(), self.first, broker=with_broker))
        if self.plan.compression.scheme is not None:
            self.record.note(compression=compression.facts(self.plan.compression, self.record.rounds()))
        self.attendance.departed(server_reports.departed(self.server))
        self.attendance.never_came(self.plan.hosts.clients or (), self.connected())
        for line in sentences(self.attendance.absences(), self.attendance.rounds):
            self.record.log(line)

    def _keep_plans(self, done: Entry) -> None:
        """Record the plans that the nodes made until the end of a round, and log those that changed something."""
        rows = list(self.watched.rows(done["round"], self.worker_counters()))
        if rows:
            self.record.workers([asdict(row) for row in rows])
        balances = self.server.balances() if isinstance(self.server, Tree) else ()
        if balances:
            self.record.workers([asdict(BalanceRow(done["round"], balance)) for balance in balances])
        tree = self.plan.tree or TreeSection()
        plans = has_plans(tree) or switches(tree)["scaling"] == "knative"
        for row in rows:
            for decision in row.decisions:
                if decision.before != decision.leaves and plans:
                    self.record.log(f"{row.node}: {plan_in_words(asdict(decision))}")

    def connected(self) -> list[str]:
        """Return the names of the connected clients, sorted."""
        return sorted(server_reports.clients(self.server))

    def worker_counters(self) -> Mapping[str, Workers]:
        """Return the counters of each node's workers, by the node's name; this server's own workers are "server".

        Empty in a job without workers.
        """
        if isinstance(self.server, Tree):
            return self.server.worker_counters()
        counters = self.server.tree()
        return {} if counters is None else {SERVER: wire.decode(Workers, counters)}

    def _resent(self) -> ResentCounts:
        """Return how many TCP segments all links of the job sent again."""
        if isinstance(self.server, Tree):
            return totals(server_reports.resent(self.server, COUNT_SECONDS).values())
        absent = lambda: server_reports.departed(self.server)  # noqa: E731
        return counted(self.server, absent, senders(self.record.rounds()))

    def _step(self, number: int, names: Sequence[str]) -> Entry:
        """Run a round, evaluate the model if the server does that, and return the journal's entry."""
        end_if_interrupted()
        self.progress.begin(number, self.plan.job.rounds)
        outcome = self._round(number, names)
        self.attendance.add(outcome.participants)
        started = time.perf_counter()
        evaluation = self.party.evaluate() if SERVER in self.evaluators else {}
        return entry(outcome, evaluation, time.perf_counter() - started if evaluation else None)

    def _round(self, number: int, names: Sequence[str]) -> Outcome:
        config = wire.encode(round_config(self.plan, number, names, evaluate=CLIENTS in self.evaluators))
        if self.step is not None:
            self.step.before()
        try:
            outcome, notes = self.intake.outcome(self.server.round(number, config, self._observe))
        finally:
            self._write_notes(self.server.notes())
        self._write_notes(notes)
        if self.step is not None:
            self.step.after(outcome.participants)
            if isinstance(self.server, Tree):
                self.server.replaced()
        return outcome

    def _write_notes(self, notes: Sequence[str]) -> None:
        """Write notes to the record's log and show them on the terminal."""
        for note in notes:
            self.record.log(note)
            self.progress.note(note)

    def _observe(self, state: str) -> None:
        """Show a round's progress. Raises LabError, which ends the round, if the emulated network has failed."""
        self._write_notes(self.server.notes())
        self.progress.observe(state)
        if self.session is not None:
            self.session.check()

    def _keep(self, done: Entry) -> None:
        number, every, last = done["round"], self.plan.checkpoint_every, self.plan.job.rounds
        self.record.append(done)
        self.record.log(round_line(done, last))
        if every and (number % every == 0 or number == last):
            state = compression.with_held(None if self.step is None else self.step.state(), self.server)
            for note in self.record.save(number, self.party.arena.layout.tensors, bytes_of(self.party.arena), state):
                self.progress.note(note)

    def result(self, server_peak: int | None, peaks: Sequence[int | None] | None) -> Result:
        """Return the job's result."""
        return Result(
            plan=self.plan,
            record=self.record,
            absent=self.attendance.absences(),
            rounds=self.attendance.rounds,
            parameters=self.party.parameters,
            update_bytes=len(self.party.arena),
            server_peak=server_peak,
            peaks=peaks,
            bound=self.bound,
            emulation="none" if self.session is None else self.session.emulation,
            emulation_reason=None if self.session is None else self.session.reason,
            tree=self.work[0] if self.work else None,
        )


@contextmanager
def hosting(
    plan: Plan,
    url: str,
    trust: Trust,
    progress: Progress,
    resume: Path | None,
    *,
    session: Session | None = None,
    command: str = RUN,
) -> Iterator[Host]:
    """Listen at ``url`` and open the record. When the block ends, close both, and record how the job ended.

    With a ``session`` the server listens in its emulated network. ``command`` is the one that resumes such a job.
    Raises PlanError, DataError or ModelError before anything is opened; CoreError if the server cannot listen;
    RecordError if the record cannot be opened or resumed.
    """
    check_transport(plan, registry.transports())
    trackers.require(plan.record.track)
    with_data = "" if plan.is_payload or plan.app is not None else f" and {plan.data.name}"
    progress.note(f"preparing {plan.label}{with_data}")
    party = server_party(plan, progress.note)
    evaluators(plan.job.evaluate, personal=party.personal, evaluates=party.evaluates)
    bound = bound_of(plan, url, len(party.arena), None if session is None else session.spec)
    options = server_options(plan, trust, None if session is None else session.layers) | live.options(plan)

    address = None if session is None else session.address(SERVER)

    def listen() -> Serving:
        if has_nodes(plan):
            return tree_of(plan, party.arena, options, trust, url, address=address)
        return _core.Server(party.arena, url, wire.encode(options))

    server = listen() if session is None else session.listen(listen)
    began = utc_now()  # the core's clock started a moment ago, when the server was made
    try:
        facts: RunFacts = {"address": server.address, "tls": trust.tls is not None, "bound": bound}
        # `serve` sets it after the last round. It stays null if the run ends earlier.
        facts |= {"resent": None}
        facts |= {"update_bytes": len(party.arena), "tensors": len(party.arena.layout.tensors)}
        facts |= {} if plan.app is None else {"app": apps.facts(plan.app.object, plan.app.options)}
        facts |= {} if session is None else session.facts()
        record, first = _open(plan, party, resume, facts)
        record.note(clock_began=began)
        _compare(record, facts, progress)
        try:
            record.state = compression.resumed(server, record.state)
            step = _server_step(plan, party, record, command)
        except ThalwegError:
            record.close()
            raise
        host = Host(plan, server, party, record, progress, bound, first, session, step=step)
        host.attendance.add_recorded(record.rounds())
        try:
            with (
                tracking(plan.record.track, record, progress.note),
                _goodbye(server, command),  # inside `tracking`, so that clients need not wait for slow trackers
                exposing(
                    plan.record.metrics,
                    progress.note,
                    clients=host.connected,
                    nodes=host.worker_counters,
                    pki=plan.security.pki,
                ) as count,
            ):
                record.watch(lambda entry: count(RoundCounts.of_entry(entry)))
                yield host
        except BaseException as error:
            end_badly(record, progress.note, error, command)
            raise
        for note in record.end_checkpoints():
            progress.note(note)
        record.finish("complete")
    except Exception:
        server.close("the server ends")
        raise
    finally:
        progress.close()


@contextmanager
def _goodbye(server: Serving, command: str) -> Iterator[None]:
    """Close the server when the block ends, and tell its clients why.

    If a signal interrupts ``thalweg server``, the server is not closed and ends with this process, without a goodbye.
    So its clients, on other machines, try to reconnect until a new server resumes the job.
    """
    try:
        yield
    except Exception:
        server.close("the job failed")
        raise
    except BaseException:
        if command == RUN:
            server.close("the job was interrupted")
        else:
            _UNCLOSED.append(server)
        raise
    server.close("the job is done")


def _open(plan: Plan, party: ServerParty, resume: Path | None, facts: RunFacts) -> tuple[RunRecord, int]:
    if resume is None:
        return RunRecord.create(plan, facts), 1
    record = RunRecord.resume(resume, plan)
    try:
        return record, record.restore(party.arena.layout.tensors, bytes_of(party.arena)) + 1
    except RecordError:
        record.close()
        raise


def _server_step(plan: Plan, party: ServerParty, record: RunRecord, command: str) -> ServerStep | None:
    """Return what the server does after each round, with its state in the record. ``command`` resumes the record."""
    algorithm = algorithms.find(plan.algorithm.name)
    step = algorithm.server_step(party.arena, party.trained, plan.algorithm_settings, clients=plan.job.clients)
    if step is not None:
        step.load(record.state)
        if command == RUN:  # it starts new clients, which have no state from earlier rounds
            step.forget_clients()
    return step


def _compare(record: RunRecord, facts: RunFacts, progress: Progress) -> None:
    """If a resumed run has another app than the record, report the change and record the new app."""
    if "app" not in facts:
        return
    change = apps.changed(record.manifest.get("app"), facts["app"])
    if change is not None:
        progress.note(change)
        record.log(change)
        record.note(app=facts["app"])
