"""Trackers that fail, hang or cannot be started never stop a job. The package of one is a stand-in with a fault."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

import thalweg
from tests.outcomes import outcome_of
from tests.small_apps import Good
from thalweg.errors import PlanError
from thalweg.job.common import tracking
from thalweg.plan import Plan
from thalweg.record import Record, RunRecord, entry

TENSORBOARD: Final = ["tensorboard:boards"]
# The stand-in for the package of TensorBoard's writer: ``FAULT`` runs in the method of that name.
PACKAGE: Final = """
import os, signal, sys
class SummaryWriter:
    def __init__(self, *_, **__): self.fault("begin")
    def add_text(self, *_): pass
    def add_scalar(self, *_): self.fault("round")
    def flush(self): pass
    def close(self): self.fault("end")
    def fault(self, at):
        if at == {at!r}:
            {fault}
"""
FAULTS: Final = {
    "raises": "raise ValueError('no room for figures')",
    "exits": "sys.exit('it has had enough')",
    "crashes": "os._exit(3)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
}
SAID: Final = {
    "raises": "ValueError: no room for figures",
    "exits": "SystemExit: it has had enough",
    "crashes": "it ended with exit code 3",
    "is killed": "it ended with exit code -9",
}


def stand_in(folder: Path, at: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package of TensorBoard's writer that has this fault before any other."""
    (folder / "tensorboardX.py").write_text(PACKAGE.format(at=at, fault=fault))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def tracked(place: Path, rounds: int = 3) -> tuple[list[str], Path]:
    """Record some rounds with the stand-in as tracker; return the notes and the record."""
    notes: list[str] = []
    record = RunRecord.create(Plan.of({"record": {"folder": str(place)}}), {})
    with tracking.tracking(TENSORBOARD, record, notes.append):
        for number in range(1, rounds + 1):
            record.append(entry(outcome_of(round=number), {}, None))
    record.finish("complete")
    return notes, record.path


@pytest.mark.parametrize("at", ["begin", "round", "end"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_tracker_that_fails_is_noted(tmp_path: Path, at: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, at, FAULTS[fault], monkeypatch)
    notes, path = tracked(tmp_path)
    (note,) = [note for note in notes if "has failed" in note]
    assert note.startswith("the tracker tensorboard:boards has failed")
    assert note.endswith(SAID[fault])
    assert note in (path / "log.txt").read_text()
    assert [one["round"] for one in Record(path).rounds()] == [1, 2, 3]
    assert Record(path).manifest["status"] == "complete"


def test_a_server_of_ones_own_learns_of_a_tracker_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in(tmp_path, "end", FAULTS["raises"], monkeypatch)
    monkeypatch.syspath_prepend(tmp_path)  # the server looks whether the tracker's package is there
    caplog.set_level("WARNING", "thalweg")
    with thalweg.Server(Good(), clients=1, record=tmp_path / "runs", track=TENSORBOARD) as server:
        client = thalweg.Client(Good(), server.address, name="a")
        thread = threading.Thread(target=client.run)
        thread.start()
        assert [done.number for done in thalweg.rounds(server, 2)] == [1, 2]
        assert server.record is not None
        assert Record(server.record).plan.record.track == TENSORBOARD
    thread.join()
    assert caplog.messages[-1] == f"the tracker tensorboard:boards has failed: {SAID['raises']}"
    assert Record(server.record).manifest["status"] == "complete"


def test_a_server_of_ones_own_needs_a_record_for_a_tracker() -> None:
    with pytest.raises(PlanError, match="this one has none"):
        thalweg.Server(Good(), clients=1, track="tensorboard:boards")


def test_a_tracker_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "begin", "signal.pause()", monkeypatch)
    monkeypatch.setattr(tracking, "END_SECONDS", 0.2)
    monkeypatch.setattr(tracking, "NOTED_SECONDS", 0.1)
    # More rounds than a pipe has room for lines: a write to the tracker never waits.
    record = RunRecord.create(Plan.of({"record": {"folder": str(tmp_path)}}), {})
    notes: list[str] = []
    one = entry(outcome_of(), {}, None)
    with tracking.tracking(TENSORBOARD, record, notes.append):
        tell = record._watchers[0]
        for _ in range(200_000):
            tell(one)
    assert notes[0].startswith("waiting for tensorboard:boards to write the last rounds")
    assert notes[1] == "the tracker tensorboard:boards has failed: it did not end in time"
    record.finish("complete")


def test_a_tracker_that_works_says_nothing_and_learns_how_a_job_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "never", "pass", monkeypatch)
    monkeypatch.setattr(tracking, "NOTED_SECONDS", tracking.END_SECONDS)
    package = tmp_path / "tensorboardX.py"
    package.write_text(
        package.read_text().replace(
            "def add_text(self, *_): pass",
            f"""def add_text(self, *words):
        with open({str(tmp_path / "said")!r}, "a") as file: file.write(f"{{words[0]}}: {{words[1]}}\\n")""",
        )
    )
    notes: list[str] = []
    record = RunRecord.create(Plan.of({"record": {"folder": str(tmp_path)}}), {})

    def fail() -> None:
        with tracking.tracking(TENSORBOARD, record, notes.append):
            record.append(entry(outcome_of(), {}, None))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    record.finish("failed")
    assert notes == []
    assert "status: failed" in (tmp_path / "said").read_text()


def test_a_program_that_is_not_there_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    notes, _ = tracked(tmp_path)
    assert notes[0].startswith("the tracker tensorboard:boards cannot be started, and the job goes on without it")


@pytest.mark.e2e
def test_a_job_ends_well_though_its_tracker_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "round", FAULTS["raises"], monkeypatch)
    words = ("run", "--model", "payload:64KiB", "--clients", "2", "--rounds", "3", "--json", "--track", *TENSORBOARD)
    done = subprocess.run(
        [sys.executable, "-m", "thalweg", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rounds"]) == 3
    assert "the tracker tensorboard:boards has failed" in done.stderr
    assert FAULTS["raises"].split("'")[1] in done.stderr
