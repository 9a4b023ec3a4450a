"""Reading a damaged or hostile record takes little memory and time, and raises RecordError."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.record.conftest import TENSORS, round_entry
from thalweg.errors import PlanError, RecordError
from thalweg.plan import Plan
from thalweg.record import Record, RunRecord, checkpoint, reading, samples
from thalweg.record.tables import read_table
from thalweg.report.source import read_run

DEEP = "[" * 100_000
MANY_DIGITS = '{"round": ' + "9" * 5000 + "}\n"


@pytest.fixture
def path(record: RunRecord) -> Path:
    """A record of one round that has ended."""
    record.append(round_entry(1))
    record.finish("complete")
    return record.path


@pytest.mark.parametrize("text", [DEEP, "[]", '{"a": 1e999}', '{"seed": ' + "1" * 5000 + "}", "\udcff"])
def test_a_manifest_that_is_none(path: Path, text: str) -> None:
    (path / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RecordError, match=r"cannot read .*manifest\.json"):
        _ = Record(path).manifest


def test_a_manifest_that_is_too_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_DOCUMENT", 100)
    with pytest.raises(RecordError, match="101 bytes, and may have 100"):
        _ = Record(path).manifest


@pytest.mark.parametrize(
    "line", [DEEP + "\n", MANY_DIGITS, '{"round": 4294967296}\n', '{"round": -1}\n', '{"round": true}\n']
)
def test_a_line_of_the_journal_that_is_none(path: Path, line: str) -> None:
    with (path / "journal.jsonl").open("a") as stream:
        stream.write(line)
    with pytest.raises(RecordError, match=r"line 2 of .* is damaged"):
        _ = Record(path).entries


def test_a_line_of_the_journal_without_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = len((path / "journal.jsonl").read_bytes()) + 10
    monkeypatch.setattr(reading, "LONGEST_LINE", longest)
    with (path / "journal.jsonl").open("a") as stream:
        stream.write(3 * longest * "a")
    with pytest.raises(RecordError, match=r"line 2 of .* is damaged"):
        _ = Record(path).entries


def test_a_sample_that_is_none(path: Path) -> None:
    (path / samples.FILE).write_text(DEEP + "\n")
    with pytest.raises(RecordError, match=r"line 1 of .* is damaged"):
        list(samples.batches(path))


@pytest.mark.parametrize(
    ("name", "do"),
    [
        ("manifest.json", lambda path: Record(path).manifest),
        ("journal.jsonl", lambda path: Record(path).entries),
        ("parties.parquet", lambda path: read_table(path, "parties")),
        ("parties.parquet", read_run),
        ("queues.jsonl", lambda path: list(samples.batches(path))),
        ("checkpoint.safetensors", lambda path: checkpoint.round_of(path / "checkpoint.safetensors")),
        ("checkpoint.safetensors", lambda path: checkpoint.read(path / "checkpoint.safetensors", TENSORS, bytearray())),
        ("plan.toml", Record),
    ],
)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(path: Path, name: str, do: Callable[[Path], object]) -> None:
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    with pytest.raises(RecordError, match=r"no ordinary file|has no plan"):
        do(path)


@pytest.mark.parametrize("header", [DEEP, '{"__metadata__": {"round": "' + "9" * 5000 + '"}}'])
def test_a_checkpoint_whose_header_is_none(path: Path, header: str) -> None:
    file = path / "checkpoint.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(RecordError):
        checkpoint.round_of(file)


@pytest.mark.parametrize("value", [0, "x" * 1000])
def test_a_small_file_whose_table_is_large(path: Path, monkeypatch: pytest.MonkeyPatch, value: int | str) -> None:
    column = pyarrow.array([value]).take(pyarrow.array([0] * 50_000))
    pyarrow.parquet.write_table(pyarrow.table({"party": column}), path / "parties.parquet", compression="zstd")
    assert (path / "parties.parquet").stat().st_size < 20_000
    assert len(read_table(path, "parties")) == 50_000
    monkeypatch.setattr(reading, "LARGEST_TABLE", 1 << 18)
    for do in (lambda: read_table(path, "parties"), lambda: read_run(path)):
        with pytest.raises(RecordError, match="takes more than"):
            do()


def test_long_texts_are_decoded_few_at_a_time(path: Path) -> None:
    texts = pyarrow.table({"text": ["x" * (1 << 20)] * 3, "number": [1, 2, 3]})
    pyarrow.parquet.write_table(texts, path / "texts.parquet", use_dictionary=False, compression="none")
    assert 1 <= reading._rows_at_once(pyarrow.parquet.read_metadata(path / "texts.parquet")) <= 256
    assert reading.table(path / "texts.parquet").equals(texts)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 5000])
def test_a_plan_that_is_none(text: str) -> None:
    with pytest.raises(PlanError, match="is not TOML"):
        Plan.loads(text)


def test_what_is_read_is_what_was_written(path: Path) -> None:
    assert reading.document(path / "manifest.json") == json.loads((path / "manifest.json").read_text())
