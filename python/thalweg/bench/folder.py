"""A bench's folder: its plan, the outcome of each run, and the records.

================================  ==============================================================================
``bench.toml``                    the bench plan
``cells/NUMBER.REPETITION.toml``  the plan of a run
``cells/NUMBER.REPETITION.log``   the output of the run
``cells/NUMBER.REPETITION.json``  the outcome and the numbers of a run that has ended, and so is not repeated
``records/NUMBER.REPETITION``     the record of the run
``bench.json``, ``bench.csv``     the results
``report.html``                   the page of all records
================================  ==============================================================================
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from thalweg import wire
from thalweg.bench.plan import BenchPlan
from thalweg.bench.values import Outcome
from thalweg.errors import RecordError
from thalweg.record import reading
from thalweg.ui import strict_json

PLAN: Final = "bench.toml"
RESULTS: Final = "bench.json"
TABLE: Final = "bench.csv"
PAGE: Final = "report.html"


@dataclass(frozen=True)
class Folder:
    """The folder of one bench at ``path``."""

    path: Path

    @classmethod
    def create(cls, parent: Path, name: str, plan: BenchPlan) -> Folder:
        """Make the folder of a new bench below ``parent``. Raises RecordError."""
        date = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        word = re.sub(r"[^A-Za-z0-9.]+", "-", name)
        folder = cls(parent / f"{date}-{word}-{secrets.token_hex(3)}")
        plan.to_toml()  # if this raises, no folder has been made yet
        with _writing(folder.path):
            for part in (folder.cells, folder.records):
                part.mkdir(parents=True)
        folder.keep(plan)
        return folder

    @property
    def cells(self) -> Path:
        """Return the folder with the plan, log and outcome of each run."""
        return self.path / "cells"

    @property
    def records(self) -> Path:
        """Return the folder of the runs' records."""
        return self.path / "records"

    @property
    def is_bench(self) -> bool:
        """Whether this is the folder of a bench, which has a bench plan."""
        return (self.path / PLAN).is_file()

    def plan(self) -> BenchPlan:
        """Return its plan. Raises RecordError if there is none, PlanError if it is damaged."""
        if not self.is_bench:
            raise RecordError(
                f"{self.path} is not the folder of a bench: it has no {PLAN}", "Name a folder below bench/"
            )
        return BenchPlan.load(self.path / PLAN)

    def keep(self, plan: BenchPlan) -> None:
        """Write the bench plan. Raises RecordError."""
        self.write(PLAN, plan.to_toml())

    def write(self, name: str, text: str) -> Path:
        """Write a file atomically and return its path. Raises RecordError."""
        path = self.path / name
        part = path.with_name(f".{path.name}.part")
        with _writing(path):
            with part.open("w", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(path)
        return path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold a lock, so that no other process runs this bench. Raises RecordError if another process holds it."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise RecordError(f"another process runs {self.path}", "Wait for it to end, or end it") from error
        try:
            yield
        finally:
            os.close(descriptor)

    def outcome(self, name: str) -> Outcome | None:
        """Return the outcome of a run, or None if it has not ended. Raises RecordError if the file is damaged."""
        path = self.cells / f"{name}.json"
        try:
            table = reading.document(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RecordError(f"cannot read {path}: {error}", "Remove it; that run is then run again") from error
        try:
            outcome = wire.made(Outcome, table)
        except ValueError as error:
            raise RecordError(f"{path} is damaged", "Remove it; that run is then run again") from error
        if outcome.status not in ("complete", "failed"):
            raise RecordError(f"{path} is damaged", "Remove it; that run is then run again")
        return outcome

    def end(self, name: str, outcome: Outcome) -> None:
        """Write the outcome of a run. Raises RecordError."""
        self.write(f"cells/{name}.json", strict_json.dumps(outcome, indent=1) + "\n")

    def under_way(self, name: str) -> Path:
        """Return the folder for a run's record while the run lasts. Files of an earlier attempt are removed."""
        path = self.records / f".{name}"
        with _writing(path):
            (self.cells / f"{name}.json").unlink(missing_ok=True)
            for old in (path, self.records / name):
                if old.exists():
                    shutil.rmtree(old)
        return path

    def settle(self, name: str) -> Path | None:
        """Move the record of a run that has ended to its final place and return that; None if it left no record."""
        path = self.records / f".{name}"
        folders = sorted(path.iterdir()) if path.is_dir() else []
        target = self.records / name
        with _writing(target):
            if folders:
                folders[0].rename(target)
            if path.is_dir():
                shutil.rmtree(path)
        return target if folders else None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}", "Make room, or give another --folder") from error
