"""Records in other formats."""

from __future__ import annotations

import csv
import json
import pickle
import shutil
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.record.conftest import round_entry
from thalweg.cli import app
from thalweg.errors import PlanError, RecordError
from thalweg.record import Record, RunRecord
from thalweg.record.export import export, export_all


@pytest.fixture
def done(record: RunRecord) -> Record:
    for number in (1, 2):
        record.append(round_entry(number))
    return Record(record.path)  # not finished: as after a crash


def test_csv(done: Record, tmp_path: Path) -> None:
    paths = export(done, "csv", tmp_path / "out")
    assert [path.name for path in paths] == ["rounds.csv", "transfers.csv", "losses.csv", "participants.csv"]
    with paths[0].open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["accuracy"] for row in rows] == ["0.51", "0.52"]


def test_json_holds_everything(done: Record) -> None:
    (path,) = export(done, "json")
    content = json.loads(path.read_text())
    assert content["plan"]["job"]["clients"] == 2
    assert content["manifest"]["status"] == "running"
    assert [len(content[name]) for name in ("rounds", "transfers", "losses", "participants")] == [2, 6, 0, 4]


def test_transfers_of_an_older_record_get_their_two_parties(record: RunRecord, tmp_path: Path) -> None:
    older = round_entry(1)
    for transfer in older["transfers"]:
        del transfer["source"], transfer["target"]
    record.append(older)
    (_, path, *_) = export(Record(record.path), "csv", tmp_path)
    with path.open() as stream:
        ends = [(row["source"], row["target"]) for row in csv.DictReader(stream)]
    assert ends == [("server", "a"), ("server", "b"), ("a", "server")]


def test_pickle_has_the_keys_of_fedcomm(done: Record) -> None:
    (path,) = export(done, "pickle")
    assert pickle.loads(path.read_bytes()) == {  # noqa: S301 - our own file
        "training_time": pytest.approx([2.9, 2.9]),
        "test_acc_record": [51.0, 52.0],
        "communication_time": pytest.approx([0.9, 0.9]),
        "retransmissions": [7, 7],
    }


def test_parquet_of_a_run_that_was_killed(done: Record) -> None:
    assert all(path.is_file() for path in export(done, "parquet"))


def test_what_cannot_be(done: Record, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="csv, json, pickle, parquet"):
        export(done, "xml")
    with pytest.raises(RecordError, match="--output"):
        export(done, "json", tmp_path / "none" / "file.json")


@pytest.fixture
def two(done: Record, tmp_path: Path) -> list[Record]:
    other = tmp_path / "other"
    shutil.copytree(done.path, other)
    return [done, Record(other)]


@pytest.mark.parametrize(("form", "files"), [("csv", 8), ("parquet", 8), ("json", 2), ("pickle", 2)])
def test_several_records(two: list[Record], tmp_path: Path, form: str, files: int) -> None:
    into_records = export_all(two, form)
    assert len(into_records) == files
    assert {path.parent for path in into_records} == {record.path for record in two}
    elsewhere = export_all(two, form, tmp_path / "out")
    assert len(set(elsewhere)) == files
    for record in two:
        mine = [path for path in elsewhere if record.path.name in (path.parent.name, path.stem)]
        assert len(mine) == files // 2


def test_several_records_by_the_command(two: list[Record]) -> None:
    done = CliRunner().invoke(app, ["export", *(str(record.path) for record in two), "--format", "json", "--json"])
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["files"]) == 2


def test_records_of_one_name_do_not_replace_each_other(done: Record, tmp_path: Path) -> None:
    again = tmp_path / "deep" / done.path.name
    shutil.copytree(done.path, again)
    with pytest.raises(PlanError, match="two records are called"):
        export_all([done, Record(again)], "csv", tmp_path / "out")


def test_a_trace_for_perfetto_has_each_round_and_transfer(done: Record, tmp_path: Path) -> None:
    (path,) = export(done, "perfetto", tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    rounds = [event["name"] for event in spans if names[event["tid"]] == "rounds"]
    assert rounds == [f"round {entry['round']}" for entry in done.rounds()]
    assert len(spans) - len(rounds) == sum(len(entry["transfers"]) for entry in done.rounds())
    assert all(event["dur"] >= 0 for event in spans)
    # A thread has one span of a round, as spans of a thread must not overlap.
    assert all(count == len(rounds) for count in Counter(event["tid"] for event in spans).values())


def test_a_trace_may_have_one_round_and_no_other_format_may(done: Record, tmp_path: Path) -> None:
    (path,) = export(done, "perfetto", tmp_path / "trace.json", rounds=[1])
    assert '"round 1"' in path.read_text()
    assert '"round 2"' not in path.read_text()
    with pytest.raises(PlanError, match="no round to export has times"):
        export(done, "perfetto", tmp_path / "none.json", rounds=[99])
    assert not (tmp_path / "none.json").exists()
    with pytest.raises(PlanError, match="csv has all rounds"):
        export(done, "csv", tmp_path, rounds=[1])
