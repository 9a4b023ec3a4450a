"""Records in other formats."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import pytest

from tests.record.conftest import round_entry
from thalweg.errors import PlanError, RecordError
from thalweg.record import Record, RunRecord
from thalweg.record.export import export


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
