"""The page beside-others.md agrees with its data set, and its tables say what the data set says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benches.systems import page
from benches.systems.cell import Cell, Outcome
from benches.systems.dataset import Line, append, read
from benches.systems.registry import RIVALS, SYSTEMS

ROOT = Path(__file__).parents[2]
MACHINE = {"kernel": "Linux", "architecture": "x86_64", "cpu": "a processor", "cores": 2, "memory_bytes": 2**30}


def line(system: str, seconds: list[float], **more: Any) -> Line:
    cell = Cell(system, "star", 4, 1 << 20, "wan")
    outcome = Outcome(seconds=seconds, wire_bytes=16 * 2.0**20, cpu_seconds={"server": 1.0, "client-1": 0.5})
    outcome.peak_bytes = {"server": 3 << 20, "client-1": 2 << 20, "client-2": 1 << 20}
    made = Line(cell, 1, "2026-11-27 21:30", 0.1, MACHINE, "1.0", False, outcome, others=0.01)
    return replace(made, **more)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    out = tmp_path / "table.jsonl"
    for one in (
        line("thalweg tcp", [0.50, 0.52, 0.51]),
        line("gRPC", [0.50, 0.49, 0.51]),
        line("HTTP", [0.9], others=1.5),
        line("gloo", [], outcome=Outcome(failure="party 1 ended with 1:\nit is | broken")),
    ):
        append(out, one)
    return out


def test_a_failure_is_told_by_its_error(tmp_path: Path) -> None:
    words = 'party 1 ended with 1: wrapper\nx.InactiveRpcError: <InactiveRpcError of RPC:\n\tdetails = "gone"\n>'
    out = tmp_path / "table.jsonl"
    for text, shown in (
        (words, 'x.InactiveRpcError: <InactiveRpcError of RPC: details = "gone"'),
        ("party 0 ended with 1: RuntimeError: " + 200 * "long ", "RuntimeError: "),
        ("the last\nline", "line"),
    ):
        outcome = Outcome(seconds=[1.0], event={"result": "ended", "seconds": 2.0, "words": text})
        append(out, line("gRPC", [], cell=Cell("gRPC", "star", 4, 1 << 20, "wan", "away"), outcome=outcome))
        assert f"a party failed after 2 s: {shown}" in page.events(out)
        assert len(page.events(out)) < 500
        out.unlink()


def test_each_generated_part_agrees_with_the_data_set() -> None:
    for file, parts in (
        ("docs/explanation/beside-others.md", ("conditions", "verdict", "tables", "events")),
        ("README.md", ("summary",)),
    ):
        text = (ROOT / file).read_text()
        for part in parts:
            found = re.search(rf"<!-- begin beside_{part} -->\n\n(.*?)\n\n<!-- end beside_{part} -->", text, re.DOTALL)
            assert found is not None
            assert found[1] == getattr(page, part)(), "run scripts/check_docs.py --write"


def test_rows_are_sorted_and_failures_keep_their_words(made: Path) -> None:
    text = page.tables(made)
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| ")][2:]
    assert [row[0] for row in rows] == ["| gRPC", "| **thalweg tcp**", "| HTTP †", "| gloo"]
    assert rows[0][1:] == ["0.5 (0.49 to 0.51)", "3", "0.43", "2.00", "3 MiB, 2 MiB", "1.5 |"]
    assert rows[3][1] == "failed: it is / broken"


def test_the_verdict_counts_ties_and_gives_causes(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    causes = tmp_path / "causes.toml"
    monkeypatch.setattr(page, "CAUSES", causes)
    text = page.verdict(made)
    assert "first or within 5 % in 1 of 1 cells (100%). By `tcp` alone it is in 1 (100%)." in text
    append(made, line("HTTP", [0.1, 0.1], turn=2))
    append(made, line("HTTP", [0.1, 0.1], turn=3))
    text = page.verdict(made)
    assert "in 0 of 1 cells" in text
    assert "| **behind** | not looked into yet |" in text
    causes.write_text('star-4-1-wan = "One round trip more."')
    assert "| **behind** | One round trip more. |" in page.verdict(made)


def test_a_table_says_why_a_system_failed(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    causes = tmp_path / "causes.toml"
    monkeypatch.setattr(page, "CAUSES", causes)
    assert "gloo on wan:" not in page.tables(made)
    causes.write_text(
        '[failed]\n"gloo on wan" = "It has a fault."\n"gloo on lan" = "not this"\n"HTTP on wan" = "nor this"'
    )
    text = page.tables(made)
    assert "\n\ngloo on wan: It has a fault.\n\n" in text
    assert "not this" not in text
    assert "nor this" not in text


def test_conditions_name_other_programs_and_the_machine(made: Path) -> None:
    text = page.conditions(made)
    assert "other programs used 0.01 of a core (median), and 1.50 at most" in text
    assert "(1 runs): others used over 0.1 of a core" in text
    assert "priority" not in text
    assert "a processor, 2 cores, 1 GiB, Linux" in text


def test_events_say_what_happened(tmp_path: Path) -> None:
    out = tmp_path / "table.jsonl"
    for event, result in (("kill", "hung"), ("away", "went on")):
        one = line("HTTP", [1.0])
        outcome = Outcome(event={"result": result, "seconds": 60.0})
        append(out, replace(one, cell=replace(one.cell, event=event), outcome=outcome))
    assert (
        page.events(out).splitlines()[2]
        == "| HTTP | nothing happened within 60 s | the round ended after 60 s with a correct mean |"
    )


def test_the_data_set_has_only_systems_of_the_registry() -> None:
    assert {one.cell.system for one in read()} <= SYSTEMS.keys()


@pytest.mark.parametrize("script", sorted(RIVALS.rglob("*.py")), ids=lambda path: str(path.relative_to(RIVALS)))
def test_scripts_are_short_and_import_nothing_of_ours(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert len(lines) <= 150
    if not script.parent.name.startswith("thalweg"):
        assert not [text for text in lines if re.match(r"\s*(import|from) (thalweg|benches|tests)\b", text)]


def test_each_system_has_a_script_and_a_lock_file() -> None:
    for system in SYSTEMS.values():
        assert system.unusable or (system.folder / "party.py").exists()
        if system.environment is not None:
            assert (ROOT / "requirements" / "systems" / f"{system.environment}.lock").exists()
        json.dumps(dict(system.options))
