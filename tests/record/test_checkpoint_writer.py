"""Checkpoints in the background: the newest is kept, no round waits, and a half-written one is never used."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from tests.record.conftest import TENSORS, round_entry
from thalweg.errors import PlanError, RecordError
from thalweg.plan import Plan
from thalweg.record import Record, RunRecord, stores
from thalweg.record.checkpoint_writer import CheckpointWriter

TIMEOUT = 60.0


class Slow(fs.FileSystemHandler):  # type: ignore[misc]
    """A filesystem's handler that writes no byte until the test allows it. Another filesystem does the rest."""

    def __init__(self, files: Any) -> None:
        self.files, self.go_on, self.asked = files, threading.Event(), threading.Semaphore(0)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.asked.release()
        assert self.go_on.wait(TIMEOUT)
        return self.files.open_output_stream(path, metadata=metadata)

    def get_type_name(self) -> str:
        return "slow"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Any) -> Any:
        return self.files.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self.files.get_file_info(selector)

    def create_dir(self, path: str, recursive: Any) -> None:
        self.files.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        raise NotImplementedError

    def delete_dir_contents(self, path: str, missing_dir_ok: Any = None) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.files.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self.files.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        return self.files.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self.files.open_input_file(path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError


class Full:
    """A store that accepts some bytes and then fails, or pretends success."""

    url = "full://"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def names(self) -> list[str]:
        return []

    def write(self, _name: str, content: Iterable[Any]) -> None:
        next(iter(content))
        raise self.error

    def read(self, _name: str) -> Any:
        raise self.error

    def remove(self, _name: str) -> None:
        raise self.error


@pytest.fixture(params=["folder", "file", "pyarrow"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> stores.Store:
    if request.param == "pyarrow":
        return stores.Objects(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "kept/run", "mem://kept/run")
    return stores.store_of(f"file://{tmp_path}/kept" if request.param == "file" else str(tmp_path / "kept"), "run")


def test_a_stored_checkpoint_is_restored(store: stores.Store, arena: bytearray) -> None:
    assert stores.rounds(store) == []
    for number in (1, 2, 10):
        arena[0] = number
        stores.save(store, TENSORS, arena, number)
    assert stores.rounds(store) == [10, 2], "the last two are kept"
    again = bytearray(len(arena))
    assert stores.restore(store, 10, TENSORS, again) == 10
    assert again[:80] == arena[:80]


def test_one_that_was_cut_short_does_not_count(store: stores.Store, arena: bytearray) -> None:
    stores.save(store, TENSORS, arena, 1)
    stores.save(store, TENSORS, arena, 2)
    store.write("round-00000003.safetensors", [b"".join(_whole(store))[:-1]])
    store.write("round-00000004.safetensors", [b"\xff" * 16])
    store.write("notes.txt", [b"somebody else's"])
    assert stores.rounds(store) == [2, 1]
    with pytest.raises(RecordError, match="holds another model"):
        stores.restore(store, 3, TENSORS, arena)
    with pytest.raises(RecordError, match="cannot read the checkpoints at"):
        stores.restore(store, 7, TENSORS, arena)


def _whole(store: stores.Store) -> list[bytes]:
    file, _ = store.read("round-00000002.safetensors")
    with file:
        return [file.read()]


def test_slow_storage_gets_the_newest_and_nobody_waits_for_it(tmp_path: Path, arena: bytearray) -> None:
    slow = Slow(fs.LocalFileSystem())
    store = stores.Objects(fs.PyFileSystem(slow), str(tmp_path / "run"), "slow://run")
    writer = CheckpointWriter(store)
    arena[0] = 1
    writer.put(1, TENSORS, arena)
    assert slow.asked.acquire(timeout=TIMEOUT)
    for number in (2, 3, 4):
        arena[0] = number
        writer.put(number, TENSORS, arena)
    assert writer.facts() == {"url": "slow://run", "written": 0, "left_out": 2, "failed": 0, "last": None}
    left_out = "the checkpoint of round {} is left out: storage still writes that of round 1"
    assert writer.notes() == [left_out.format(2), left_out.format(3)]
    assert list(tmp_path.rglob("*.safetensors")) == []
    arena[0] = 99  # the next rounds change the model
    slow.go_on.set()
    writer.close(TIMEOUT)
    assert (writer.facts()["written"], writer.last, writer.notes()) == (2, 4, [])
    again = bytearray(len(arena))
    assert stores.rounds(store) == [4, 1]
    assert [(stores.restore(store, number, TENSORS, again), again[0]) for number in (1, 4)] == [(1, 1), (4, 4)]


def test_storage_that_never_answers_does_not_keep_the_job_from_ending(tmp_path: Path, arena: bytearray) -> None:
    slow = Slow(fs.LocalFileSystem())
    writer = CheckpointWriter(stores.Objects(fs.PyFileSystem(slow), str(tmp_path / "run"), "slow://run"))
    writer.put(1, TENSORS, arena)
    assert slow.asked.acquire(timeout=TIMEOUT)
    writer.close(0)
    writer.close(0)
    said = "the storage did not take the checkpoint of round 1 within 0 s; the last that it has is that of round None"
    assert writer.notes() == [said]
    slow.go_on.set()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "cannot write the checkpoint of round 1 to full://: No space left"),
        (ZeroDivisionError("odd"), "cannot write the checkpoint of round 1: ZeroDivisionError: odd"),
    ],
)
def test_a_failure_is_said_and_the_next_one_is_tried(arena: bytearray, error: Exception, said: str) -> None:
    writer = CheckpointWriter(Full(error))
    writer.put(1, TENSORS, arena)
    writer.close(TIMEOUT)
    (note,) = writer.notes()
    assert note.startswith(said)
    assert (writer.facts()["failed"], writer.last) == (1, None)


def test_a_record_goes_on_from_the_storage(tmp_path: Path, arena: bytearray) -> None:
    plan = Plan.of(
        {
            "job": {"clients": 2, "rounds": 4},
            "record": {"folder": str(tmp_path / "runs"), "checkpoint_to": f"file://{tmp_path}/kept"},
        }
    )
    record = RunRecord.create(plan, {})
    for number in (1, 2):
        arena[0] = number
        record.append(round_entry(number))
        record.save(number, TENSORS, arena)
    record.append(round_entry(3))
    record.finish("failed")
    assert record.manifest["checkpoints"]["last"] == record.checkpoint_round == 2
    assert not (record.path / "checkpoint.safetensors").exists()
    assert Record(record.path).checkpoint_round == 2

    elsewhere = plan.merge({"record.checkpoint_to": str(tmp_path / "moved")})
    again = RunRecord.resume(record.path, elsewhere)
    restored = bytearray(len(arena))
    assert again.restore(TENSORS, restored) == 2
    assert restored[0] == 2
    assert [one["round"] for one in again.rounds()] == [1, 2]
    again.save(3, TENSORS, arena)
    again.finish("complete")
    assert again.manifest["checkpoints"]["last"] == 3
    assert Record(record.path).checkpoint_round == 3


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nowhere://bucket/folder", "checkpoints cannot be kept at nowhere://bucket/folder/"),
        ("s3://", "it names no bucket"),
        ("file://folder", "file:// has three slashes"),
    ],
)
def test_urls_that_mean_nothing_are_refused(tmp_path: Path, url: str, said: str) -> None:
    table = {"record": {"folder": str(tmp_path), "checkpoint_to": url}}
    with pytest.raises(RecordError, match=said):
        RunRecord.create(Plan.of(table), {})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"model": {"name": "payload:1MiB"}}, "no checkpoints are written"),
        ({"job": {"graph": "ring"}}, "nodes of a graph keep their models in the record"),
        ({"record": {"checkpoint_to": "s3://key:secret@bucket/folder"}}, "contains a key or a password"),
    ],
)
def test_plans_that_cannot_be_are_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.of({"record": {"checkpoint_to": "kept"}, **table})
