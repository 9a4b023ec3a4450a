"""How a record is marked when its run failed, also if the run's process was in a guest kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.record.conftest import round_entry
from thalweg.job.common.failure import end_badly, end_elsewhere
from thalweg.lab import guest
from thalweg.plan import Plan
from thalweg.record import Record, RunRecord, folder


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    made = RunRecord.create(Plan.of({"record": {"folder": str(tmp_path / "runs")}}), {})
    made.append(round_entry(1))
    return made


def interrupt(record: RunRecord, notes: list[str]) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        end_badly(record, notes.append, error)


def test_an_interrupted_run_has_its_tables(record: RunRecord) -> None:
    interrupt(record, [])
    assert record.manifest["status"] == "interrupted"
    assert pyarrow.parquet.read_table(record.path / "rounds.parquet").num_rows == 1


def test_tables_of_a_long_journal_are_left_out(record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "HURRIED_BYTES", 10)
    interrupt(record, [])
    assert record.manifest["status"] == "interrupted"
    assert record.manifest["ended"] is not None
    assert not (record.path / "rounds.parquet").exists()
    assert len(Record(record.path).entries) == 1, "its journal is whole"


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), "interrupted"), (RuntimeError("the guest ended"), "failed")]
)
def test_a_job_that_is_ended_with_its_guest_has_that_in_its_record(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: str
) -> None:
    record.close()  # as when the run's process has ended with the guest

    def watch(_guest: Any, there: Path, _limit: float) -> None:
        (there / "err").write_text(f"preparing payload\nlistening, record: {record.path}\nround 1/9\n")
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(guest, "kernel", lambda: Path("/bin/sleep"))
    monkeypatch.setattr(guest, "boot", lambda program, _folder: [str(program), "600"])
    monkeypatch.setattr(guest, "_watch", watch)
    with pytest.raises(type(error)):
        guest.run(["job"], on_cut=end_elsewhere)
    assert record.manifest["status"] == status
    assert len(record.entries) == 1


def test_a_record_that_has_ended_is_left_as_it_is(record: RunRecord) -> None:
    record.finish("complete")
    end_elsewhere(f"record: {record.path}\n", KeyboardInterrupt())
    assert record.manifest["status"] == "complete"
