"""Hosts a ServerApp in this process: loads it, runs it over a grid, and records its rounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from thalweg import _core, flower, wire
from thalweg.apps import seed_all
from thalweg.errors import AppError, RecordError, RoundError, ThalwegError
from thalweg.flower.app import AppFolder
from thalweg.job.common.resent import counted, manifest_counts, senders
from thalweg.job.common.session import Session
from thalweg.job.common.tracking import tracking
from thalweg.job.star.attendance import Attendance
from thalweg.machine import grace
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.outcome.core import Absence, Participant
from thalweg.plan.bound import Bound
from thalweg.plan.run_facts import RunFacts
from thalweg.record import RunRecord
from thalweg.record.folder import utc_now
from thalweg.transports import registry
from thalweg.ui.progress import round_line

if TYPE_CHECKING:
    from flwr.serverapp import ServerApp

    from thalweg.flower.grid import ThalwegGrid
    from thalweg.flower.rounds import RoundMetrics, Rounds, Row
    from thalweg.outcome import Entry
    from thalweg.plan import Plan
    from thalweg.tasks import TaskServer
    from thalweg.ui.progress import Progress
    from thalweg.wire import Table

#: Keys of a round's row that ``--json`` prints.
SHOWN: Final = ("round", "seconds", "communication_seconds", "replies", "errors", "folded")


@dataclass(frozen=True)
class FlowerResult:
    """The result of a Flower app's run. ``peaks``: each process's peak memory in bytes; None if there is only one."""

    plan: Plan
    record: RunRecord
    rows: Sequence[Row]
    metrics: Sequence[RoundMetrics]
    server_peak: int | None
    peaks: Sequence[int | None] | None
    emulation: str = "none"
    emulation_reason: str | None = None
    # The nodes whose replies did not count in each round in which they had to train.
    absent: Sequence[Absence] = ()

    def table(self) -> Table:
        """Return the object that ``--json`` prints. Memory is in bytes, times are in seconds."""
        return {
            "rounds": [{key: value for key, value in row.items() if key in SHOWN} for row in self.rows],
            "metrics": list(self.metrics),
            "peak_rss_bytes": {"server": self.server_peak, "clients": self.peaks},
            "record": str(self.record.path),
        }


class Hosting:
    """A ServerApp that runs in this process, over a task server that listens already."""

    def __init__(
        self,
        plan: Plan,
        folder: AppFolder,
        server: TaskServer,
        record: RunRecord,
        progress: Progress,
        *,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """``look`` is called several times a second while the app waits, and may raise."""
        from thalweg.flower import compat
        from thalweg.flower.grid import ThalwegGrid
        from thalweg.flower.rounds import Rounds

        self.plan, self.server, self.record, self.progress = plan, server, record, progress
        self._app: ServerApp | None = None
        #: The nodes of each process that this run starts; empty if nodes are started elsewhere.
        self.nodes_of: dict[str, list[str]] = {}
        #: For each process that has ended: the reason.
        self._ended: dict[str, str] = {}
        self._folder, self._look = folder, look
        self.attendance = Attendance()
        # The seed determines the nodes' ids, so that a strategy samples the same nodes with the same seed.
        drawn = random.Random(plan.job.seed)
        run_id, salt = drawn.getrandbits(62) | 1, f"{drawn.getrandbits(64):x}"
        self.config = folder.run_config({} if plan.app is None else plan.app.options or {})
        self.rounds: Rounds = Rounds(self._keep, self._begin, self._note)
        folds = plan.app is None or plan.app.fold != "off"
        compat.identify(run_id)
        self.grid: ThalwegGrid = ThalwegGrid(
            server,
            run_id=run_id,
            salt=salt,
            seed=plan.job.seed,
            config=self.config,
            folds=folds,
            holes=not plan.repair.resend,
            watcher=self.rounds,
            look=self._watch,
            waited_for=self._waited_for,
        )
        self._run_id = run_id

    def load(self) -> ServerApp:
        """Import the ServerApp. Raises AppError."""
        self._app = self._folder.load_server()
        return self._app

    def wait(self, look: Callable[[], None]) -> None:
        """Wait until all nodes are here; ``look`` is called several times a second and may raise."""
        while self.server.wait(self.plan.job.clients, WAIT_SLICE) < self.plan.job.clients:
            look()

    def serve(self) -> None:
        """Run the ServerApp to its end. Raises AppError if it raises, ThalwegError or CoreError if the run fails."""
        from flwr.app import Context, RecordDict

        from thalweg.flower import compat, fold

        app = self._app or self.load()
        context = Context(
            run_id=self._run_id,
            node_id=compat.SERVER_NODE,
            node_config={},
            state=RecordDict(),
            run_config=dict(self.config),
        )
        seed_all(self.plan.job.seed)
        try:
            with fold.installed(), compat.legacy_waits(self._waits):
                app(self.grid, context)
        except (ThalwegError, _core.CoreError):
            raise
        except (Exception, SystemExit) as error:
            self.rounds.close()
            self.check(f"; then the ServerApp raised {type(error).__name__}: {error}")
            raise AppError(
                f"the ServerApp raised {type(error).__name__}: {error}",
                f"Correct {self._folder.server}; the traceback is above",
            ) from error
        finally:
            self.rounds.close()

    def result(
        self, server_peak: int | None, peaks: Sequence[int | None] | None, network: Session | None = None
    ) -> FlowerResult:
        """Return the run's result."""
        return FlowerResult(
            plan=self.record.plan,
            record=self.record,
            rows=self.rounds.rows,
            metrics=self.rounds.metrics(),
            server_peak=server_peak,
            peaks=peaks,
            emulation="none" if network is None else network.emulation,
            emulation_reason=None if network is None else network.reason,
            absent=self.attendance.absences(),
        )

    def process_ended(self, process: str, why: str) -> None:
        """Mark that a process has ended: messages to its nodes get error replies."""
        self._ended[process] = why
        for name in self.nodes_of.get(process, [process]):
            self.progress.note(f"{name} is gone: {why}")
            with suppress(_core.CoreError, RecordError):  # the run may be ending at this moment
                self.grid.crashed(name, why)
                self.record.log(f"{name} is gone: {why}")

    def _waited_for(self, wanted: int) -> None:
        """Raise RoundError if the app waits for more nodes than are left. An ended process is not started again."""
        if not self.nodes_of:  # nodes are started elsewhere, so more may come
            return
        left = sum(len(nodes) for process, nodes in self.nodes_of.items() if process not in self._ended)
        if left < max(1, wanted):
            wants = f"waits for {wanted} nodes, and {left}" if left else "needs nodes, and none"
            ended = "; ".join(f"{process} {why}" for process, why in sorted(self._ended.items()))
            raise RoundError(
                f"the app {wants} can still take part: {ended}",
                f"See {self.record.log_path}",
            )

    def _waits(self, wanted: int) -> None:
        """Check the nodes and the network while a legacy app waits for ``wanted`` nodes."""
        self._waited_for(wanted)
        self._watch()

    def check(self, then: str = "") -> None:
        """Raise AppError if in any round all clients failed, since the result then lacks that round.

        ``then`` is appended to the message and names the consequence.
        """
        failures = self.rounds.failures
        if failures:
            traces = f"tracebacks are in {self.record.log_path}" if self.nodes_of else "their output has the tracebacks"
            raise AppError(
                f"in {len(failures)} of {len(self.rounds.rows)} rounds {failures[0]}{then}",
                f"Correct {self._folder.client} if it raised that; {traces}",
            )

    def _note(self, text: str) -> None:
        self.progress.note(text)
        self.record.log(text)

    def _watch(self) -> None:
        self.progress.observe(self.rounds.state())
        self._look()
        grace.end_if_interrupted()

    def _begin(self, number: int) -> None:
        if self.rounds.loop is not None and not self.rounds.rows:
            self.record.note(strategy=type(self.rounds.loop.strategy).__name__)
        self.progress.begin(number, self._total(number))

    def _keep(self, entry: Entry, row: Row) -> None:
        self.record.append(entry)
        self.attendance.add(wire.made(list[Participant], entry["clients"]))
        self.record.log(round_line(entry, self._total(row["round"])))
        self.progress.end(entry)

    def _total(self, number: int) -> int | None:
        """Return how many rounds there will be, at least ``number``; None for an app with a loop of its own."""
        return None if self.rounds.expected is None else max(self.rounds.expected, number)


@contextmanager
def recorded(plan: Plan, server: TaskServer, facts: RunFacts, progress: Progress, *, tls: bool) -> Iterator[RunRecord]:
    """Open the record of a run; when the block ends, record how the run ended. Raises RecordError."""
    bound = Bound("not known for a Flower app, whose messages may be of any size")
    manifest: RunFacts = {"address": server.address, "tls": tls, "bound": bound, "flower": flower.require(), **facts}
    manifest |= {"resent": None}
    began = utc_now()  # the server was made a moment ago
    record = RunRecord.create(plan, manifest)
    record.note(clock_began=began)
    progress.note(f"record: {record.path}")
    try:
        with tracking(plan.record.track, record, progress.note):
            yield record
        counts = counted(server, server.absent, senders(record.rounds()))
        record.note(resent=manifest_counts(counts, 1, broker=registry.can(plan.scheme).broker))
        done = sum(1 for _ in record.rounds())
        record.replan(record.plan.merge({"job.rounds": max(1, done)}))
        record.finish("complete")
    except BaseException as error:
        status = "failed" if isinstance(error, Exception) else "interrupted"
        with suppress(RecordError):
            record.log(f"{status}: {error}" if isinstance(error, Exception) else status)
            record.note(reason=str(error) if isinstance(error, Exception) else None)
            record.finish(status)
        raise
    finally:
        progress.close()
