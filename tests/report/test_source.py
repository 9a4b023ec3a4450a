"""Reading records: complete ones, ones with missing files, and damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.report.records import links, make, queues, write
from thalweg.errors import PlanError, RecordError
from thalweg.report import read_runs
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run


def test_everything_is_read(wifi: Path) -> None:
    run = read_run(wifi)
    assert [len(run.rounds), len(run.transfers), len(run.participants)] == [4, 16, 8]
    assert [len(run.links), len(run.parties), len(run.samples)] == [4, 3, 4]
    assert [(one.link, one.direction) for one in run.samples[:2]] == [("client-1", "ab"), ("client-1", "ba")]
    assert list(run.samples[0].bytes_out[:2]) == [100_000, 200_000]
    assert all((one.seconds[1:] > one.seconds[:-1]).all() for one in run.samples)


@pytest.mark.parametrize("parquet", [True, False])
def test_transfers_of_an_older_record_get_their_two_parties(tmp_path: Path, parquet: bool) -> None:
    path = make(tmp_path / "r", rounds=1, names=["a"], lab=False, parquet=parquet)
    if parquet:
        older = pyarrow.parquet.read_table(path / "transfers.parquet").drop_columns(["source", "target"])
        pyarrow.parquet.write_table(older, path / "transfers.parquet")
    else:
        (line,) = (path / "journal.jsonl").read_text().splitlines()
        entry = json.loads(line)
        entry["transfers"] = [{k: v for k, v in t.items() if k not in ("source", "target")} for t in entry["transfers"]]
        (path / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    ends = [(t.direction, t.source, t.target) for t in read_run(path).transfers]
    assert ends == [("down", "server", "a"), ("up", "a", "server")]


def test_without_tables_the_journal_serves(bare: Path) -> None:
    run = read_run(bare)
    assert [row.round for row in run.rounds] == [1, 2]
    assert len(run.transfers) == 8
    assert run.links == []
    assert run.samples == []
    assert "payload:1MB" in run.why_no_accuracy()
    assert "emulation is none" in run.why_no_links()


def test_while_a_run_goes_on_its_journal_is_newer(tmp_path: Path) -> None:
    path = make(tmp_path / "r", rounds=3, manifest={"status": "running"})
    lines = (path / "journal.jsonl").read_text().splitlines(keepends=True)
    (path / "journal.jsonl").write_text("".join(lines[:2]) + '{"round": 3, "cut')
    assert len(read_run(path).rounds) == 2


def test_a_run_without_a_round(tmp_path: Path) -> None:
    path = make(tmp_path / "r", rounds=1, manifest={"status": "failed"}, lab=False, parquet=False)
    (path / "journal.jsonl").unlink()
    run = read_run(path)
    assert run.rounds == []
    assert run.why_no_accuracy() == "the run is failed and has no finished round"


def test_an_app_may_have_a_loss_and_no_accuracy(tmp_path: Path) -> None:
    path = make(tmp_path / "r", plan={"app": "my_app:App", "model": {}}, parquet=False)
    entries = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    lines = [json.dumps({**one, "accuracy": None, "loss": 1 / one["round"]}) + "\n" for one in entries]
    (path / "journal.jsonl").write_text("".join(lines))
    run = read_run(path)
    assert run.why_no_accuracy() == "my_app:App reports a loss and no accuracy"
    run_numbers = numbers(run)
    assert (run_numbers.model, run_numbers.loss, run_numbers.accuracy) == ("my_app:App", 0.25, None)


def test_a_lab_that_left_no_tables_says_how_the_run_ended(tmp_path: Path) -> None:
    path = make(tmp_path / "r", manifest={"status": "failed"})
    for name in ("links", "queues"):
        (path / f"{name}.parquet").unlink()
    assert "the run is failed" in read_run(path).why_no_links()


def test_numbers_that_json_lacks_are_not_known(tmp_path: Path) -> None:
    path = make(tmp_path / "r", parquet=False)
    journal = path / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"loss": 1.0', '"loss": NaN'))
    assert read_run(path).rounds[0].loss is None


def test_columns_that_are_lacking_are_not_known_and_unknown_ones_are_left_alone(tmp_path: Path) -> None:
    path = make(tmp_path / "r")
    table = pyarrow.parquet.read_table(path / "links.parquet").drop_columns(["delay_p99"])
    table = table.append_column("later", pyarrow.array([1] * table.num_rows))
    pyarrow.parquet.write_table(table, path / "links.parquet")
    row = read_run(path).links[0]
    assert row.delay_p99 is None
    assert not hasattr(row, "later")


def test_rows_without_a_name_are_left_out(wifi: Path) -> None:
    write(wifi, "links", [{**links("client-1")[0], "link": None}, *links("client-1")])
    write(wifi, "queues", [{**row, "seconds": None} for row in queues("x", 1)] + queues("client-1", 1))
    run = read_run(wifi)
    assert len(run.links) == 2
    assert {one.link for one in run.samples} == {"client-1"}


def test_a_folder_that_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not the record of a run"):
        read_run(tmp_path)


@pytest.mark.parametrize(("text", "error"), [("[job]\nrunds = 1\n", PlanError), ("[job\n", PlanError)])
def test_a_damaged_plan(wifi: Path, text: str, error: type[Exception]) -> None:
    (wifi / "plan.toml").write_text(text)
    with pytest.raises(error):
        read_run(wifi)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_damaged_manifest(wifi: Path, text: str) -> None:
    (wifi / "manifest.json").write_text(text)
    with pytest.raises(RecordError, match=r"manifest\.json"):
        read_run(wifi)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("rounds", "thalweg export"), ("transfers", "thalweg export"), ("links", "remove it"), ("queues", "remove it")],
)
@pytest.mark.parametrize("damage", ["cut", "text", "types", "key"])
def test_a_damaged_table(wifi: Path, name: str, hint: str, damage: str) -> None:
    path = wifi / f"{name}.parquet"
    table = pyarrow.parquet.read_table(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "text":
        path.write_text("no table")
    elif damage == "types":
        column = "round" if name in ("rounds", "transfers") else "bytes_out"
        words = pyarrow.array(["many"] * table.num_rows)
        pyarrow.parquet.write_table(table.set_column(table.column_names.index(column), column, words), path)
    else:
        column = "round" if name in ("rounds", "transfers") else "link"
        pyarrow.parquet.write_table(table.drop_columns([column]), path)
    with pytest.raises(RecordError, match=rf"{name}\.parquet is damaged") as caught:
        read_run(wifi)
    assert hint in caught.value.hint


@pytest.mark.parametrize("entry", [{"round": 1}, {"round": 1, "transfers": 3, "clients": []}, {"round": -1}])
def test_a_damaged_journal(tmp_path: Path, entry: object) -> None:
    path = make(tmp_path / "r", parquet=False, lab=False)
    (path / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    with pytest.raises(RecordError, match="journal"):
        read_run(path)


def test_a_record_named_twice_is_one(wifi: Path) -> None:
    assert len(read_runs([wifi, wifi / ".." / "wifi"])) == 1
