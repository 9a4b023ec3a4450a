"""A bench from its first run to its results, with generated records in place of real runs."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.cells import Fake, Quiet, again, bench
from thalweg.bench.folder import Folder
from thalweg.bench.process import Failure
from thalweg.bench.systems import System
from thalweg.cli.bench import exit_code, is_ci
from thalweg.errors import RecordError
from thalweg.ui import strict_json

ALL = {("tcp", 0), ("memory", 0), ("tcp", 1), ("memory", 1)}


def test_each_run_leaves_a_record_and_its_numbers(tmp_path: Path) -> None:
    made, fake, heard = bench(tmp_path), Fake(), Quiet()
    results = made.run(heard, execute=fake)
    assert set(fake.ran) == ALL
    assert (results.status, results.left, results.failed) == ("complete", 0, 0)
    folders = sorted(path.name for path in made.folder.records.iterdir())
    assert folders == ["0001.1", "0001.2", "0002.1", "0002.2"]
    assert all((made.folder.records / name / "plan.toml").is_file() for name in folders)
    assert json.loads(strict_json.dumps(results)) == json.loads((made.folder.path / "bench.json").read_text())
    with (made.folder.path / "bench.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["cell"], row["transport"], row["status"], row["repetitions"]) for row in rows] == [
        ("1", "tcp", "complete", "2"),
        ("2", "memory", "complete", "2"),
    ]
    assert heard.closed
    assert [line.partition("]")[0] for line in heard.lines] == ["[1/4", "[2/4", "[3/4", "[4/4"]
    assert "left" in heard.lines[0]
    assert heard.lines[-1].endswith("nothing left")


def test_finished_runs_are_not_repeated(tmp_path: Path) -> None:
    made = bench(tmp_path)
    first = Fake(stop=2)
    with pytest.raises(KeyboardInterrupt):
        made.run(Quiet(), execute=first)
    assert len(first.ran) == 2
    halfway = json.loads((made.folder.path / "bench.json").read_text())
    assert (halfway["status"], halfway["left"]) == ("incomplete", 2)
    assert [path.name for path in made.folder.records.iterdir() if path.name.startswith(".")], "a half-finished one"
    second = Fake()
    results = again(made).run(Quiet(), execute=second)
    assert set(first.ran) | set(second.ran) == ALL
    assert not set(first.ran) & set(second.ran)
    assert results.status == "complete"
    assert len(list(made.folder.records.iterdir())) == 4
    third = Fake()
    assert again(made).run(Quiet(), execute=third).status == "complete"
    assert third.ran == []


def test_a_run_that_fails_is_kept_with_its_reason(tmp_path: Path) -> None:
    made, fake = bench(tmp_path), Fake(fail=(("tcp", 0), ("memory", 0), ("memory", 1)))
    heard = Quiet()
    results = made.run(heard, execute=fake)
    assert set(fake.ran) == ALL
    assert results.failed == 3
    tcp, memory = results.cells
    assert (tcp.status, tcp.repetitions, tcp.failed) == ("partly", 1, 1)
    assert (memory.status, memory.repetitions, memory.failed) == ("failed", 0, 2)
    assert memory.reasons == ["it broke. Fix it"]
    assert memory.communication_seconds is None
    assert sum("failed after" in line and "it broke" in line for line in heard.lines) == 3
    assert again(made).run(Quiet(), execute=(idle := Fake())).failed == 3
    assert idle.ran == []
    fixed = Fake()
    assert again(made).run(Quiet(), retry=True, execute=fixed).failed == 0
    assert set(fixed.ran) == {("tcp", 0), ("memory", 0), ("memory", 1)}


def test_a_result_without_a_record_is_a_failure(tmp_path: Path) -> None:
    made = bench(tmp_path, repetitions=1)
    results = made.run(Quiet(), execute=lambda *_: None)
    assert {row.reasons[0] for row in results.cells} == {"it left no record. See its log"}


def test_more_repetitions_of_a_bench_that_is_done(tmp_path: Path) -> None:
    made = bench(tmp_path)
    made.run(Quiet(), execute=Fake())
    made.folder.keep(made.folder.plan().with_repetitions(3))
    more = Fake()
    results = again(made).run(Quiet(), execute=more)
    assert set(more.ran) == {("tcp", 2), ("memory", 2)}
    assert [row.repetitions for row in results.cells] == [3, 3]


def test_the_limit_is_the_plans(tmp_path: Path) -> None:
    limits: list[float | None] = []

    def execute(plan: Path, log: Path, limit: float | None, system: System | None) -> Failure:
        limits.append(limit)
        return Failure("no", "no")

    bench(tmp_path, limit=12.5, repetitions=1).run(Quiet(), execute=execute)
    assert limits == [12.5, 12.5]


def test_only_one_process_runs_a_bench(tmp_path: Path) -> None:
    made = bench(tmp_path)
    with made.folder.alone(), pytest.raises(RecordError, match="another process runs"):
        again(made).run(Quiet(), execute=Fake())
    again(made).run(Quiet(), execute=Fake())


def test_a_folder_that_is_no_bench(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"has no bench\.toml"):
        Folder(tmp_path).plan()


def test_a_damaged_outcome_is_named(tmp_path: Path) -> None:
    made = bench(tmp_path)
    (made.folder.cells / "0001.1.json").write_text("{}")
    with pytest.raises(RecordError, match=r"0001\.1\.json is damaged"):
        made.run(Quiet(), execute=Fake())


def test_a_preview_runs_nothing_and_learns_from_what_was_run(tmp_path: Path) -> None:
    made = bench(tmp_path)
    before = made.preview()
    assert (before.runs, before.estimate_is_measured) == (4, False)
    with pytest.raises(KeyboardInterrupt):
        made.run(Quiet(), execute=Fake(stop=3))
    after = again(made).preview()
    assert (after.runs, after.estimate_is_measured) == (1, True)
    assert sorted(row.runs for row in after.cells) == [0, 1]
    assert after.estimate_seconds > 0


def test_the_page_shows_runs_that_left_no_record(tmp_path: Path) -> None:
    made = bench(tmp_path, repetitions=1)
    made.run(Quiet(), execute=lambda *_: Failure("no port", "Choose one"))
    page = made.page()
    assert page is not None
    assert "no port. Choose one" in page.read_text()


@pytest.mark.parametrize(
    ("failed", "strict", "code"), [(0, True, 0), (1, False, 0), (1, True, 3), (4, False, 1), (4, True, 1)]
)
def test_the_exit_code_says_what_failed(failed: int, code: int, tmp_path: Path, *, strict: bool) -> None:
    results = bench(tmp_path).results()
    (cell, _) = results.cells
    results = replace(results, failed=failed, cells=[replace(cell, repetitions=4 - failed)])
    assert exit_code(results, strict=strict) == code


def test_who_checks_others_work_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, strict in (("true", True), ("1", True), ("", False), ("false", False)):
        monkeypatch.setenv("CI", value)
        assert is_ci() == strict
    monkeypatch.delenv("CI")
    assert not is_ci()


def test_the_page_of_all_records(tmp_path: Path) -> None:
    made = bench(tmp_path)
    assert made.page() is None
    made.run(Quiet(), execute=Fake())
    page = made.page()
    assert page is not None
    assert "<html" in page.read_text()
