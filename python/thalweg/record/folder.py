"""A run's record: the folder with its plan, results and log.

==========================  ====================================================================================
``plan.toml``               the plan as run, defaults and command line included
``manifest.json``           commit, versions, kernel, congestion control, machine, seed, begin, end, status
``journal.jsonl``           a line a round, synced to disk before the next round; the tables are made from it
``rounds.parquet``          a row a round
``transfers.parquet``       a row a round, client and direction
``losses.parquet``          a row a round, client, direction and tensor of which bytes were missing
``participants.parquet``    a row a round and client
``iterations.parquet``      a row an iteration and node; a job on a graph has it instead of the four tables
                            above
``exchanges.parquet``       a row an iteration, node and neighbour of a job on a graph
``evaluations.parquet``     a row an evaluation of a node's model of a job on a graph
``parties.parquet``         a row a party
``links.parquet``           a row a direction of an emulated link, if there was a network
``queues.parquet``          the links' queues over time; ``queues.jsonl`` while the run goes on
``workers.jsonl``           a line a round and node of a tree whose workers are planned: their counters, and the
                            node's plans
``log.txt``                 events, each with its time
``checkpoint.safetensors``  the global model of the last checkpoint, unless the plan names another place
``nodes/``                  the nodes' models (``thalweg.record.of_nodes``); a job on a graph has it instead of
                            the checkpoint
==========================  ====================================================================================

Without pyarrow (the extra ``thalweg[report]``) a run writes ``parties``, ``links`` and ``queues`` as lines of JSON, and
no other table; ``thalweg export`` makes tables of such a record, too.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core, extras, machine, wire
from thalweg.errors import RecordError
from thalweg.machine.grace import is_hurried, within
from thalweg.outcome import Entry
from thalweg.plan import Plan
from thalweg.plan.run_facts import RunFacts
from thalweg.record import checkpoint, of_nodes, reading, stores, tables, workers
from thalweg.record import samples as queues
from thalweg.record.checkpoint_writer import LAST_SECONDS, CheckpointWriter
from thalweg.record.columns import Row
from thalweg.record.journal import Journal, is_being_written, read
from thalweg.record.log import Log
from thalweg.record.rows import Link, Party, Queue

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from thalweg.tensors.arena import Arena

PLAN: Final = "plan.toml"
MANIFEST: Final = "manifest.json"
JOURNAL: Final = "journal.jsonl"
LOG: Final = "log.txt"
CHECKPOINT: Final = "checkpoint.safetensors"
# Key of the manifest: the iteration of the checkpoint of a job on a graph.
MARKED: Final = "checkpoint_iteration"
# While a signal ends the command, tables are written only if the journal has at most this many bytes: two seconds'
# work.
HURRIED_BYTES: Final = 4 << 20
# Maximum length of a line of the log, in bytes: an error may name many clients.
LONGEST_LINE: Final = 16_384


class Record:
    """A run's record, open for reading. ``RunRecord`` is a record that this process writes."""

    def __init__(self, path: Path) -> None:
        """Open the record in folder ``path``. Raises RecordError if the folder is not a record."""
        self.path = path
        if not (path / PLAN).is_file():
            raise RecordError(f"{path} is not the record of a run: it has no {PLAN}", "Name a folder below runs/")
        self.plan = Plan.load(path / PLAN)

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest: commit, versions, machine, seed, times, status."""
        try:
            manifest = reading.document(self.path / MANIFEST)
        except (OSError, ValueError) as error:
            raise RecordError(f"cannot read {self.path / MANIFEST}: {error}", "Restore it from a copy") from error
        return manifest

    @property
    def is_running(self) -> bool:
        """Whether the run goes on: it has not ended, and a process writes the record. Raises RecordError."""
        return self.manifest["status"] == "running" and is_being_written(self.path / JOURNAL)

    def rounds(self) -> Iterator[Entry]:
        """Yield the rounds so far, as ``tables.entry`` makes them, with one in memory at a time."""
        return map(tables.restored, read(self.path / JOURNAL))

    @property
    def journaled(self) -> tuple[str, ...]:
        """The tables that are made from the journal of this job."""
        return tables.journaled(graph=self.plan.job.graph is not None)

    @property
    def entries(self) -> list[Entry]:
        """The rounds so far, all in memory at once: thousands of rounds take tens of megabytes."""
        return list(self.rounds())

    @property
    def store(self) -> stores.Store | None:
        """The place outside this folder where checkpoints are stored, or None. Raises RecordError."""
        return _store(self.plan, self.path)

    @property
    def checkpoint_round(self) -> int | None:
        """The round of the checkpoint, or None. Raises RecordError."""
        marked = self.manifest.get(MARKED) if self.plan.job.graph is not None else None
        if isinstance(marked, int):
            return marked
        own, store = checkpoint.round_of(self.path / CHECKPOINT), self.store
        rounds = [own] if store is None else [own, *stores.rounds(store)]
        return max((number for number in rounds if number is not None), default=None)

    def rounds_to_keep(self, plan: Plan) -> int:
        """Return the round of the checkpoint from which ``plan`` can go on.

        Raises RecordError if there is no checkpoint, or if ``plan`` describes another experiment.
        """
        if differences := self.plan.differences(plan):
            raise RecordError(
                f"the plan differs from that of {self.path} (there, here) in {'; '.join(differences)}",
                "Take these back, or start a new run",
            )
        done = self.checkpoint_round
        if done is None:
            raise RecordError(f"{self.path} has no checkpoint", "Start the run anew")
        return done

    def has_all_rounds(self, plan: Plan) -> bool:
        """Return whether no round of ``plan`` is left to run. Raises what ``rounds_to_keep`` raises."""
        return self.rounds_to_keep(plan) >= plan.job.rounds


class RunRecord(Record):
    """A record that this process writes. Use ``create`` or ``resume``; end with ``finish``."""

    def __init__(self, path: Path, keep: int) -> None:
        """Open the record for writing. The journal keeps rounds up to ``keep``."""
        super().__init__(path)
        # ``_source``: the store that holds the checkpoint of round ``_kept``, unless it is in this folder. ``_writer``
        # writes later checkpoints.
        self._kept, self._source = keep, self.store
        self._writer: CheckpointWriter | None = None
        self._journal = Journal(path / JOURNAL, keep)
        try:
            self._log = Log(path / LOG, utc_now)
        except RecordError:
            self._journal.close()
            raise
        #: The state of the server's algorithm in the checkpoint that was read; None if there is none.
        self.state: Arena | None = None
        self._written: dict[str, list[Row]] = {}
        self._watchers: list[Callable[[Entry], object]] = []

    @classmethod
    def create(cls, plan: Plan, facts: RunFacts) -> RunRecord:
        """Make the folder of a new run. ``facts`` are added to the manifest. Raises RecordError."""
        path = Path(plan.record.folder) / _folder_name(plan)
        store = _store(plan, path)
        try:
            path.mkdir(parents=True)
            (path / PLAN).write_text(plan.to_toml())
            _write_json(path / MANIFEST, {**_manifest(plan).table(), **facts})
        except OSError as error:
            raise RecordError(
                f"cannot make the record {path}: {error.strerror}", "Give another folder with --record"
            ) from error
        record = cls(path, keep=0)
        record._write_checkpoints_to(store)
        return record

    @classmethod
    def resume(cls, path: Path, plan: Plan) -> RunRecord:
        """Open a record to continue from its checkpoint with ``plan``.

        Rounds after the checkpoint are dropped, because they are run again. Raises RecordError if there is no
        checkpoint, if ``plan`` describes another experiment, or if the record is complete and has all rounds of
        ``plan``. A record that has all rounds, but is not complete, is opened: its process was killed between the last
        round and the end.
        """
        old = Record(path)
        done = old.rounds_to_keep(plan)
        if done >= plan.job.rounds and old.manifest["status"] == "complete":
            raise RecordError(f"all {done} rounds of {path} are done", f"Ask for more with --rounds {done + 1}")
        store = _store(plan, path)
        workers.trim(path, done)
        record = cls(path, keep=done)
        record.replan(plan)
        record._write_checkpoints_to(store)
        try:
            (path / queues.FILE).unlink(missing_ok=True)  # its times are on the clock of the earlier process
        except OSError as error:
            raise RecordError(
                f"cannot remove {path / queues.FILE}: {error.strerror}", "Correct its permissions"
            ) from error
        record.note(status="running", resumed_after_round=done, resent=None)
        return record

    @property
    def log_path(self) -> Path:
        """The path of the log; client processes append to it as well."""
        return self.path / LOG

    def log(self, text: str) -> None:
        """Append a line with the time to the log. A line that cannot be written is dropped."""
        self._log.write(_core.plain_text(text, LONGEST_LINE))

    def replan(self, plan: Plan) -> None:
        """Replace the plan by another one of the same experiment, for example with more rounds. Raises RecordError."""
        try:
            (self.path / PLAN).write_text(plan.to_toml())
        except OSError as error:
            cause = f"cannot write {self.path / PLAN}: {error.strerror}"
            raise RecordError(cause, "Correct its permissions, or make room") from error
        self.plan = plan

    def watch(self, count: Callable[[Entry], object]) -> None:
        """Call ``count`` too for each round that is appended from now on."""
        self._watchers.append(count)

    def append(self, entry: Entry) -> None:
        """Append a round to the journal. Raises RecordError."""
        self._journal.append(entry)
        for count in self._watchers:
            count(entry)

    def save(
        self, number: int, layout: Sequence[checkpoint.Tensor], arena: Buffer, state: Arena | None = None
    ) -> list[str]:
        """Make the global model of round ``number`` the checkpoint. Raises RecordError; the old checkpoint then stays.

        ``state`` is that of the server's algorithm, which nobody changes any more.
        If the plan names a place for checkpoints, a thread writes them in the background. Returns notes about earlier
        ones.
        """
        if self._writer is None:
            checkpoint.write(self.path / CHECKPOINT, layout, arena, number, state=state)
            return []
        self._writer.put(number, layout, arena, state)
        return self._log_notes(self._writer)

    def _write_checkpoints_to(self, store: stores.Store | None) -> None:
        """Write checkpoints to ``store`` from now on, or to this folder if it is None."""
        self._writer = None if store is None else CheckpointWriter(store)

    def _log_notes(self, writer: CheckpointWriter) -> list[str]:
        notes = writer.notes()
        for note in notes:
            self.log(note)
        return notes

    @property
    def checkpoint_round(self) -> int | None:
        """The round of the checkpoint, or None. Raises RecordError."""
        if self._writer is None:
            return super().checkpoint_round
        return self._writer.last or self._kept or None

    def mark(self, iteration: int) -> None:
        """Make ``iteration`` of a job on a graph the checkpoint. All nodes have written their models of it."""
        self.note(**{MARKED: iteration})
        of_nodes.trim(self.path, iteration)

    def restore(self, layout: Sequence[checkpoint.Tensor], arena: Buffer) -> int:
        """Read the checkpoint into ``arena``, and the algorithm's state into ``state``; return its round.

        Raises RecordError.
        """
        own, source, writer = self.path / CHECKPOINT, self._source, self._writer
        if source is None or checkpoint.round_of(own) == self._kept:
            number = checkpoint.read(own, layout, arena)
            self.state = checkpoint.read_state(own)
        else:
            number = stores.restore(source, self._kept, layout, arena)
            self.state = stores.restore_state(source, self._kept)
        if writer is not None:  # the new store may differ from the one that was read
            writer.put(number, layout, arena, self.state)
        return number

    def note(self, **facts: object) -> None:
        """Add facts to the manifest. Raises RecordError."""
        manifest = {**self.manifest, **facts}
        try:
            _write_json(self.path / MANIFEST, manifest)
        except OSError as error:
            raise RecordError(f"cannot write {self.path / MANIFEST}: {error.strerror}", "Make room") from error

    def parties(self, rows: Sequence[Party]) -> None:
        """Set the rows of the table ``parties``, which is written when the run ends."""
        self._written["parties"] = [asdict(row) for row in rows]

    def links(self, rows: Sequence[Link]) -> None:
        """Set the rows of the table ``links``, which is written when the run ends."""
        self._written["links"] = [asdict(row) for row in rows]

    def workers(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append what the workers of each node have done until the end of a round. Raises RecordError."""
        workers.append(self.path, rows)

    def sample(self, samples: Sequence[Queue], shift: float) -> None:
        """Append samples of queues; ``shift`` seconds are added to their times. Raises RecordError."""
        if samples:
            queues.append(self.path, samples, shift)

    def finish(self, status: str) -> None:
        """Write the tables and the status of the run: complete, failed or interrupted. Raises RecordError.

        While a signal ends the command there is little time. Then the status is written first, and the tables of a long
        journal are not written. Reports then read the journal, and ``thalweg export`` makes the tables from it.
        """
        try:
            self.end_checkpoints()
            ended = {"status": status, "ended": utc_now()}
            if is_hurried():
                self.note(**ended)
            if not is_hurried() or self._journal.size <= HURRIED_BYTES:
                self._write_tables()
            self.note(**ended)
        except OSError as error:
            raise RecordError(
                f"cannot write the tables of {self.path}: {error}; its journal is whole",
                f"Make room, then: thalweg export {self.path}",
            ) from error
        finally:
            self.close()

    def end_checkpoints(self) -> list[str]:
        """Wait a limited time for the last checkpoint to be written; return notes about it. Raises RecordError."""
        if self._writer is None:
            return []
        self._writer.close(within(LAST_SECONDS))
        self.note(checkpoints=self._writer.facts())
        return self._log_notes(self._writer)

    def _write_tables(self) -> None:
        if extras.has("pyarrow"):
            tables.write_parquet(self.path, self.rounds(), self.journaled)
        else:  # the journal has their rows
            tables.remove(self.path, self.journaled, tables.PARQUET)
        for name, rows in self._written.items():
            tables.replace_table(self.path, name, rows)
        queues.finish(self.path)

    def close(self) -> None:
        """Close the files without ending the run, so that another process can continue it.

        ``finish`` closes them too.
        """
        if self._writer is not None:
            self._writer.close(0)
        self._journal.close()
        self._log.close()


def _store(plan: Plan, path: Path) -> stores.Store | None:
    url = plan.record.checkpoint_to
    return None if url is None else stores.store_of(url, path.resolve().name)


def _folder_name(plan: Plan) -> str:
    date = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    # An app in a file is compared by the names of its file and its object, not by the file's path.
    model = re.sub(r"[^A-Za-z0-9.]+", "-", plan.label.rpartition("/")[2])
    return f"{date}-{model}-{plan.scheme}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class CongestionControl:
    """The congestion control that the plan names, if it names one, and the system's default."""

    asked: str | None
    system: str | None


@dataclass(frozen=True)
class ManifestHead:
    """What the manifest of every run begins with. ``machine`` has three keys of the manifest."""

    status: str
    started: str
    ended: str | None
    thalweg: machine.Build
    machine: machine.Facts
    congestion_control: CongestionControl
    seed: int
    argv: Sequence[str]
    emulation: str

    def table(self) -> dict[str, object]:
        """Return it as the manifest has it."""
        own = {**vars(self)}
        facts = wire.table_of(own.pop("machine"))
        return {**own, **facts}


def _manifest(plan: Plan) -> ManifestHead:
    system, _ = machine.congestion_controls()
    layers = plan.layers.emulation()
    return ManifestHead(
        status="running",
        started=utc_now(),
        ended=None,
        thalweg=machine.build(),
        machine=machine.facts(),
        congestion_control=CongestionControl(plan.transport.congestion, system),
        seed=plan.job.seed,
        argv=machine.command_line(),
        emulation=f"message level: {wire.encode(layers)}" if layers else "none",
    )


def _write_json(path: Path, value: object) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("w") as stream:
        json.dump(value, stream, indent=2, default=wire.table_of)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)


def utc_now() -> str:
    """Return the wall clock as manifests and logs write it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
