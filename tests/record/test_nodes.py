"""The record of a job on a graph: an entry for each iteration, and the tables made from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.record.lines import NODES, line
from thalweg.plan import Plan
from thalweg.record import Record, RunRecord
from thalweg.record.export import export
from thalweg.record.nodes import entry, packed, unpacked
from thalweg.record.rows import TABLES
from thalweg.record.tables import ON_GRAPHS, read_table


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    plan = Plan.of({"job": {"graph": "ring", "clients": 3, "rounds": 2}, "record": {"folder": str(tmp_path)}})
    return RunRecord.create(plan, {})


def filled(record: RunRecord) -> RunRecord:
    record.append(entry(1, {node: line(1, node, train=1.0 + at) for at, node in enumerate(NODES)}, 3))
    second = {
        "node-1": line(2, "node-1", lost={"node-2": 400}, evaluation={"accuracy": 0.5, "loss": 1.5}),
        "node-3": line(2, "node-3", evaluation={"accuracy": 0.7, "loss": float("nan")}),
    }
    record.append(entry(2, second, 3))
    return record


def test_an_entry_has_the_means_and_sums_of_its_nodes() -> None:
    made = entry(1, {node: line(1, node, train=1.0 + at) for at, node in enumerate(NODES)}, 3)
    assert (made["participants"], made["expected"], made["complete"]) == (3, 3, True)
    assert made["compute_seconds"] == pytest.approx(2.0)
    assert made["communication_seconds"] == pytest.approx(0.11)
    assert made["seconds"] == pytest.approx(2.11)
    assert (made["bytes_up"], made["bytes_down"]) == (6300, 6300)
    assert made["accuracy"] is None
    assert (made["drift"], made["disagreement"]) == (0, 0)
    assert made["nodes"]["node-2"]["begin"] == 11.0, "on the run's clock"


def test_an_entry_is_not_complete_if_a_node_or_a_byte_is_missing() -> None:
    assert not entry(1, {"node-1": line(1, "node-1")}, 3)["complete"]
    assert not entry(1, {node: line(1, node, lost={"node-1": 100}) for node in NODES}, 3)["complete"]


def test_drift_and_disagreement_follow_from_the_sketches() -> None:
    lines = {node: line(1, node, value=value) for node, value in zip(NODES, (1.0, 2.0, 3.0), strict=True)}
    made = entry(1, lines, 3)
    assert made["drift"] == 0
    assert made["disagreement"] == pytest.approx(np.sqrt(2 / 3) / 2)
    for one in lines.values():
        one["after"] = lines["node-3"]["before"]
    assert entry(1, lines, 3)["drift"] == pytest.approx(0.5)
    assert entry(1, lines, 3)["disagreement"] == pytest.approx(0)
    lines["node-1"]["before"] = packed(np.full(64, np.nan))
    assert entry(1, lines, 3)["drift"] is None


def test_tables_have_the_documented_columns_and_types(record: RunRecord) -> None:
    filled(record).finish("complete")
    assert {path.stem for path in record.path.glob("*.parquet")} == set(ON_GRAPHS)
    for name in ON_GRAPHS:
        table = pyarrow.parquet.read_table(record.path / f"{name}.parquet")
        assert table.column_names == [column.name for column in TABLES[name]]
        assert all(field.metadata[b"meaning"] for field in table.schema)


def test_a_row_for_each_node_neighbour_and_evaluation(record: RunRecord) -> None:
    filled(record).finish("complete")
    rows = read_table(record.path, "iterations")
    assert [(row["round"], row["node"]) for row in rows] == [
        *((1, node) for node in NODES),
        (2, "node-1"),
        (2, "node-3"),
    ]
    assert (rows[1]["begin"], rows[1]["ready"]) == (11.0, 13.0)
    assert rows[1]["exchange_seconds"] == pytest.approx(0.11)
    assert (rows[3]["heard"], rows[3]["whole"], rows[3]["neighbours"], rows[3]["timed_out"]) == (2, 1, 2, True)
    assert (rows[3]["bytes_used"], rows[3]["bytes_expected"], rows[3]["chunks_used"]) == (1600, 2000, 16)
    assert rows[3]["metrics"] == '{"loss": 0.5}'
    exchanges = read_table(record.path, "exchanges")
    assert len(exchanges) == 10
    assert [(row["neighbour"], row["state"], row["bytes"]) for row in exchanges[6:8]] == [
        ("node-2", "part", 600),
        ("node-3", "whole", 1000),
    ]
    tests = read_table(record.path, "evaluations")
    assert [(row["round"], row["node"], row["at"], row["accuracy"]) for row in tests] == [
        (2, "node-1", 14.0, 0.5),
        (2, "node-3", 14.0, 0.7),
    ]
    assert np.isnan(tests[1]["loss"])
    rounds = read_table(record.path, "rounds")
    assert [row["participants"] for row in rounds] == [3, 2]
    assert rounds[1]["accuracy"] == pytest.approx(0.6)


def test_a_run_that_was_killed_is_exported_from_its_journal(record: RunRecord) -> None:
    filled(record).close()
    assert [path.stem for path in export(Record(record.path), "parquet")] == list(ON_GRAPHS)
    assert [path.stem for path in export(Record(record.path), "csv", record.path / "csv")] == list(ON_GRAPHS)
    assert len(read_table(record.path, "iterations")) == 5
    assert '"exchanges": [' in export(Record(record.path), "json")[0].read_text()


def test_sketches_are_text_and_back() -> None:
    values = np.random.default_rng(0).standard_normal(64)
    assert (unpacked(packed(values)) == values).all()
    with pytest.raises(ValueError, match="a sketch has 64 values, not 3"):
        unpacked(packed(np.zeros(3)))
