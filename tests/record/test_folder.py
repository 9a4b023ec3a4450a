"""Records: writing, reading, and resuming."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.outcomes import outcome_of
from tests.record.conftest import TENSORS, outcome, round_entry
from thalweg.errors import RecordError
from thalweg.plan import Plan
from thalweg.record import Record, RunRecord
from thalweg.record.export import export
from thalweg.record.rows import TABLES, Link, Party, Queue
from thalweg.record.tables import JOURNALED, entry, read_table

PARTY = Party(party="server", cpu_seconds=1.0, peak_rss_bytes=1, congestion_control="cubic", stress="{}")
LINK = Link(link="client-1", direction="ab", nominal="{}", packets_in=3, delay_p50=0.02)
SAMPLE = Queue(
    seconds=0.5, link="client-1", direction="ab", queue_bytes=1500, queue_packets=1, bytes_out=3000, packets_out=2,
    rate=1e6,
)  # fmt: skip


def test_a_run_goes_on_until_it_ends_or_is_killed(record: RunRecord) -> None:
    reader = Record(record.path)
    record.note(status="running")
    assert reader.is_running
    record.close()
    assert reader.manifest["status"] == "running"
    assert not reader.is_running, "nobody writes it"


def test_a_run_that_has_ended_is_not_running(record: RunRecord) -> None:
    reader = Record(record.path)
    record.note(status="complete")
    assert not reader.is_running


def test_a_whole_run(record: RunRecord, plan: Plan) -> None:
    for number in (1, 2):
        record.append(round_entry(number))
    record.log("all is well")
    record.finish("complete")
    again = Record(record.path)
    assert again.plan == plan
    assert [e["round"] for e in again.entries] == [1, 2]
    assert again.manifest["status"] == "complete"
    assert again.manifest["address"] == "tcp://127.0.0.1:1"
    assert "all is well" in record.log_path.read_text()
    assert record.path.name.split("-")[2:4] == ["vgg5", "tcp"]


def test_a_loss_that_is_not_a_number_stays_one(record: RunRecord) -> None:
    record.append(entry(outcome_of(**outcome(1)), {"accuracy": 0.1, "loss": float("nan")}, 0.25))
    line = (record.path / "journal.jsonl").read_text()
    assert json.loads(line, parse_constant=lambda _: pytest.fail("no strict JSON"))["loss"] == "NaN"
    assert math.isnan(next(Record(record.path).rounds())["loss"] or 0.0)
    record.finish("complete")
    assert math.isnan(read_table(record.path, "rounds")[0]["loss"])
    (path,) = export(Record(record.path), "json")
    json.loads(path.read_text(), parse_constant=lambda _: pytest.fail("no strict JSON"))


def test_a_line_of_the_log_is_one_line(record: RunRecord) -> None:
    record.log("a left: x\r\n2026-01-01T00:00:00 b joined \x1b[2J")
    (line,) = record.log_path.read_text().splitlines()
    assert "\x1b" not in line


def test_the_manifest_says_what_numbers_depend_on(record: RunRecord) -> None:
    manifest = record.manifest
    assert manifest["thalweg"]["commit"] == "c"
    assert manifest["seed"] == 0
    assert manifest["emulation"] == "none"
    assert manifest["kernel"].startswith("Linux")
    assert manifest["machine"]["cores"] >= 1
    assert manifest["versions"]["numpy"] == np.__version__
    assert "asked" in manifest["congestion_control"]


def test_tables_have_the_documented_columns_and_types(record: RunRecord) -> None:
    record.append(round_entry(1))
    record.parties([PARTY])
    record.links([LINK])
    record.sample([SAMPLE], 0.0)
    record.finish("complete")
    for name in (*JOURNALED, "parties", "links", "queues"):
        columns = TABLES[name]
        table = pyarrow.parquet.read_table(record.path / f"{name}.parquet")
        assert table.column_names == [column.name for column in columns]
        assert all(field.metadata[b"meaning"] for field in table.schema)
    rounds = pyarrow.parquet.read_table(record.path / "rounds.parquet").to_pylist()
    assert rounds[0] == {
        "round": 1, "accuracy": 0.51, "loss": 1.0, "client_accuracy": None, "client_loss": None,
        "seconds": 3.0, "communication_seconds": 0.5,
        "compute_seconds": 2.0, "fedcomm_seconds": pytest.approx(2.9),
        "fedcomm_communication_seconds": pytest.approx(0.9), "evaluation_seconds": 0.25,
        "bytes_down": 800, "bytes_up": 500, "participants": 1, "expected": 2, "complete": False,
        "fold": '{"errors": 1, "folded": true, "replies": 2}', "drift": None, "disagreement": None,
    }  # fmt: skip
    parts = pyarrow.parquet.read_table(record.path / "participants.parquet").to_pylist()
    assert [(p["client"], p["state"], p["train_seconds"]) for p in parts] == [("a", "whole", 2.0), ("b", "lost", None)]
    transfers = pyarrow.parquet.read_table(record.path / "transfers.parquet").to_pylist()
    assert [t["retransmissions"] for t in transfers] == [3, 4, None]
    assert [(t["source"], t["target"]) for t in transfers] == [("server", "a"), ("server", "b"), ("a", "server")]


def test_what_was_lost_of_each_tensor_has_a_row(record: RunRecord) -> None:
    first, second = outcome(1), outcome(2)
    lost = [{"tensor": "weight", "missing": 20, "share": 0.25}, {"tensor": "bias", "missing": 16, "share": 1.0}]
    second["transfers"][2]["losses"] = lost
    second["transfers"][0]["losses"] = []
    for said in (first, second):
        record.append(entry(outcome_of(**said), {}, None))
    record.finish("complete")
    way = {"round": 2, "client": "a", "direction": "up"}
    assert read_table(record.path, "losses") == [{**way, **tensor} for tensor in lost]


def test_samples_are_on_the_servers_clock_and_leave_no_lines(record: RunRecord) -> None:
    record.sample([SAMPLE, replace(SAMPLE, seconds=1.5, rate=None)], 2.0)
    record.sample([], 2.0)
    record.finish("complete")
    assert [(row["seconds"], row["rate"]) for row in read_table(record.path, "queues")] == [(2.5, 1e6), (3.5, None)]
    assert not (record.path / "queues.jsonl").exists()


def test_a_run_without_a_network_has_no_tables_of_it(record: RunRecord) -> None:
    record.finish("complete")
    names = {path.stem for path in record.path.glob("*.parquet")}
    assert names == set(JOURNALED)
    assert read_table(record.path, "links") == []


def test_samples_of_a_run_that_was_killed_are_exported(record: RunRecord) -> None:
    record.sample([SAMPLE], 0.0)
    with (record.path / "queues.jsonl").open("a") as stream:
        stream.write('{"seconds": 0.6, "li')
    paths = export(Record(record.path), "parquet")
    assert [path.stem for path in paths] == [*JOURNALED, "queues"]
    assert len(read_table(record.path, "queues")) == 1
    (journaled, *_, queues) = export(Record(record.path), "csv", record.path / "csv")
    assert (journaled.name, queues.name) == ("rounds.csv", "queues.csv")


def test_a_run_without_rounds_has_empty_tables(record: RunRecord) -> None:
    record.finish("interrupted")
    assert pyarrow.parquet.read_table(record.path / "rounds.parquet").num_rows == 0


def test_a_crash_loses_at_most_the_line_being_written(record: RunRecord) -> None:
    record.append(round_entry(1))
    with (record.path / "journal.jsonl").open("a") as stream:
        stream.write(json.dumps(round_entry(2))[:100])
    assert [e["round"] for e in Record(record.path).entries] == [1]


def test_damage_in_the_middle_is_named(record: RunRecord) -> None:
    (record.path / "journal.jsonl").write_text("no json\n{}\n")
    with pytest.raises(RecordError, match="line 1"):
        _ = Record(record.path).entries


def test_resume_goes_on_from_the_checkpoint_and_drops_later_rounds(
    record: RunRecord, plan: Plan, arena: bytearray
) -> None:
    for number in (1, 2):
        record.append(round_entry(number))
    record.save(1, TENSORS, arena)
    record.close()  # as when the process is killed
    again = RunRecord.resume(record.path, plan.merge({"job.rounds": 3}))
    assert [e["round"] for e in again.entries] == [1]
    assert again.manifest["resumed_after_round"] == 1
    assert again.plan.job.rounds == 3
    restored = bytearray(len(arena))
    assert again.restore(TENSORS, restored) == 1
    again.append(round_entry(2))
    again.finish("complete")
    assert [e["round"] for e in Record(record.path).entries] == [1, 2]


def test_resume_refuses_another_experiment(record: RunRecord, plan: Plan, arena: bytearray) -> None:
    record.save(1, TENSORS, arena)
    record.close()
    with pytest.raises(RecordError, match=r"training\.batch: 100, 7"):
        RunRecord.resume(record.path, plan.merge({"training.batch": 7}))


def test_resume_needs_a_checkpoint_and_something_to_do(record: RunRecord, plan: Plan, arena: bytearray) -> None:
    record.close()
    with pytest.raises(RecordError, match="no checkpoint"):
        RunRecord.resume(record.path, plan)
    record.save(4, TENSORS, arena)
    assert Record(record.path).has_all_rounds(plan)
    RunRecord.resume(record.path, plan).finish("complete")  # its process was killed before it wrote the end
    with pytest.raises(RecordError, match="--rounds 5"):
        RunRecord.resume(record.path, plan)
    more = plan.merge({"job.rounds": 5})
    assert not Record(record.path).has_all_rounds(more)
    RunRecord.resume(record.path, more).close()


def test_only_one_process_writes(record: RunRecord, plan: Plan, arena: bytearray) -> None:
    record.save(1, TENSORS, arena)
    with pytest.raises(RecordError, match="another process"):
        RunRecord.resume(record.path, plan)


def test_a_folder_that_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not the record of a run"):
        Record(tmp_path)


def test_a_place_that_cannot_be_written(tmp_path: Path, plan: Plan) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="--record"):
        RunRecord.create(plan.merge({"record.folder": str(tmp_path / "file" / "runs")}), {})


def test_a_transfer_has_the_congestion_control_of_who_sent_it() -> None:
    outcome = outcome_of(
        congestion_control="bbr",
        participants=[{"client": "a", "usage": {"congestion_control": "cubic"}}, {"client": "b", "usage": {}}],
        transfers=[{"client": c, "direction": d} for c in "abc" for d in ("down", "up")],
    )
    said = [way["congestion_control"] for way in entry(outcome, {}, None)["transfers"]]
    assert said == ["bbr", "cubic", "bbr", None, "bbr", None]


def test_the_folder_of_an_apps_run_has_the_name_of_its_file(tmp_path: Path) -> None:
    plan = Plan.of({"app": "some/where/my_app.py:App", "record": {"folder": str(tmp_path)}})
    record = RunRecord.create(plan, {})
    record.close()
    assert "-my-app.py-App-tcp-" in record.path.name
    assert record.path.parent == tmp_path
