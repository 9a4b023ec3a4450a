"""The driver measures two systems of a few lines each in the lab, and says how others fail."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from benches.systems import cell, driver, events
from benches.systems.cell import Cell, PartyLine, measured, right_value, seconds_of
from benches.systems.dataset import append, line_of, read, rows
from benches.systems.events import with_event
from benches.systems.paths import PATHS, bound
from benches.systems.registry import SYSTEMS, System

FAKES = Path(__file__).parent / "fakes"
RIGHT = System("right", str(FAKES / "right"), None, None)
CELL = Cell("right", "star", 2, 65536, "lan")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces and control groups need root")


@needs_root
@pytest.mark.parametrize("path", ["loopback", "lan"])
def test_rounds_bytes_memory_and_cpu_are_measured(path: str) -> None:
    outcome = measured(replace(CELL, path=path), RIGHT, 3, 60.0)
    assert outcome.failure is None
    assert len(outcome.seconds) == 3
    least = bound(PATHS[path], "star", 3, CELL.size)
    assert least is None or min(outcome.seconds) > least
    # Two clients, each receives and sends the model: so many bytes and some headers.
    assert outcome.wire_bytes is not None
    assert 4 * CELL.size < outcome.wire_bytes < 4.6 * CELL.size
    assert list(outcome.peak_bytes) == list(outcome.cpu_seconds) == ["server", "client-1", "client-2"]
    assert all(peak > CELL.size for peak in outcome.peak_bytes.values())


@needs_root
def test_a_wrong_mean_fails() -> None:
    outcome = measured(CELL, replace(RIGHT, options={"error": 0.5}), 1, 60.0)
    assert outcome.failure == "round 1 has the result 3.0, and 2.5 is correct"


@needs_root
def test_the_words_of_a_party_that_dies_are_kept() -> None:
    outcome = measured(CELL, replace(RIGHT, script=str(FAKES / "dies")), 1, 60.0)
    assert outcome.failure is not None
    assert "ended with 1: this client has a fault" in outcome.failure


@needs_root
def test_a_run_that_does_not_fit_into_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell, "memory_bytes", lambda: {"available": cell.LEAST_MEMORY - 1})
    failure = measured(CELL, RIGHT, 1, 60.0).failure
    assert failure is not None
    assert failure.startswith("this machine has too little memory: the parties had ")


@needs_root
def test_a_round_whose_client_is_killed_is_watched() -> None:
    """The last client waits in the third round until it is killed. Then the server ends with an error."""
    outcome = with_event(replace(CELL, event="kill"), replace(RIGHT, options={"stall": True}))
    assert outcome.event is not None
    assert outcome.event["result"] == "ended"
    assert outcome.event["words"] == "party 0 ended with 1: a client has gone"


@needs_root
def test_a_link_that_comes_back_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round ends with a right mean after the link has come back."""
    monkeypatch.setattr(events, "AWAY", 0.1)
    outcome = with_event(replace(CELL, event="away"), RIGHT)
    assert outcome.event is not None
    assert outcome.event["result"] == "went on"
    assert outcome.event["value"] == 3 + 1.5


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells that the data set has are not measured again, and half a line is no line."""
    monkeypatch.setitem(SYSTEMS, "here", replace(RIGHT, name="here", unusable="it is not installed"))
    monkeypatch.setitem(SYSTEMS, "there", replace(RIGHT, name="there", unusable="nor is this one"))
    chosen = [Cell(name, "star", 2, 1024, "loopback") for name in ("here", "there")]
    out = tmp_path / "table.jsonl"
    driver.run(chosen, turns=2, rounds=1, path=out, resume=False)
    assert [(line.turn, line.cell.system) for line in read(out)] == [
        (1, "here"),
        (1, "there"),
        (2, "here"),
        (2, "there"),
    ]
    whole = out.read_text()
    out.write_text(whole[: whole.index("nor is") + 3])
    new = driver.run(chosen, turns=2, rounds=1, path=out, resume=True)
    assert [(line.turn, line.cell.system) for line in new] == [(1, "there"), (2, "here"), (2, "there")]
    assert [row.failures for row in rows(read(out))] == [["it is not installed"] * 2, ["nor is this one"] * 2]


def test_a_system_whose_program_is_missing_says_which_package_has_it() -> None:
    system = replace(RIGHT, program=("no-such-program", "some-package"))
    assert system.obstacle() == "no-such-program is not installed; Debian's package some-package has it"
    assert replace(RIGHT, program=("sh", "dash")).obstacle() is None


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    out = tmp_path / "table.jsonl"
    line = line_of(LINE)
    append(out, line)
    assert read(out) == [line]


def test_seconds_of_each_work() -> None:
    def line(number: int, begin: float, end: float) -> PartyLine:
        return {"round": number, "begin": begin, "end": end, "value": None}

    lines = [[line(1, 0.0, 3.0), line(2, 10.0, 14.0)], [line(1, 1.0, 4.0), line(2, 12.0, 13.0)]]
    assert seconds_of("star", lines) == [3.0, 4.0]
    assert seconds_of("allreduce", lines) == [3.0, 2.0]
    assert seconds_of("tree", lines) == [4.0, 4.0]


def test_right_results() -> None:
    assert right_value("star", 5, 1) == 1 + (1 + 2 + 3 + 4) / 4
    assert right_value("allreduce", 4, 1) == 1 + (1 + 2 + 3 + 4) / 4
    assert right_value("tree", 9, 7) == 7


def test_bounds() -> None:
    second = int(10**8 / 8 * 1448 / 1500)
    wan = PATHS["wan"]
    assert bound(wan, "star", 5, second) == pytest.approx(2 + 0.04, abs=1e-4)
    assert bound(wan, "allreduce", 4, second) == pytest.approx(1.5 + 0.04, abs=1e-4)
    assert bound(wan, "tree", 9, second) == pytest.approx(1 + 0.02, abs=1e-4)
    assert bound(PATHS["loopback"], "star", 5, second) is None


LINE = (
    '{"cell": {"system": "right", "work": "star", "clients": 2, "size": 65536, "path": "lan", "event": null}, '
    '"turn": 1, "time": "2026-11-27 21:30", "load": 0.2, "machine": {"kernel": "Linux 6.18", "architecture": "x86_64", '
    '"cpu": "a processor", "cores": 2, "memory_bytes": 1073741824}, "version": "right 1", "debug": false, "outcome": '
    '{"seconds": [0.5], "first_seconds": 1.0, "failure": null, "wire_bytes": 270000.0, "cpu_seconds": {"server": 0.1}, '
    '"peak_bytes": {"server": 1000000}, "event": null}}'
)
