"""Checkpoints: readable by safetensors, either whole or absent, and the last good one stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.record.conftest import TENSORS
from thalweg import _core
from thalweg.errors import RecordError
from thalweg.record import checkpoint, stores
from thalweg.tensors.arena import Arena


def test_others_can_read_it(tmp_path: Path, arena: bytearray) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, TENSORS, arena, 7)
    tensors = safetensors.numpy.load_file(path)
    assert sorted(tensors) == ["batches", "bias", "weight"]
    np.testing.assert_array_equal(tensors["weight"], np.frombuffer(arena, np.float32, 20).reshape(4, 5))
    np.testing.assert_array_equal(tensors["batches"], np.frombuffer(arena, np.int64, 1, 192)[0])
    with safetensors.safe_open(path, "np") as opened:
        assert opened.metadata() == {"format": "pt", "thalweg_round": "7"}


def test_it_comes_back_into_the_arena(tmp_path: Path, arena: bytearray) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, TENSORS, arena, 7)
    again = bytearray(len(arena))
    assert checkpoint.read(path, TENSORS, again) == 7
    covered = [(0, 80), (128, 144), (192, 200)]
    for start, end in covered:
        assert again[start:end] == arena[start:end]
    assert not any(again[80:128]), "padding is not stored"
    assert checkpoint.round_of(path) == 7
    assert checkpoint.round_of(tmp_path / "none") is None


def test_another_model_is_refused(tmp_path: Path, arena: bytearray) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, TENSORS, arena, 7)
    with pytest.raises(RecordError, match="'weight' differs"):
        checkpoint.read(path, [("weight", "F32", [5, 4], 0), *TENSORS[1:]], arena)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 16, b"\2\0\0\0\0\0\0\0[]", b"\2\0\0\0\0\0\0\0{x"])
def test_files_that_are_no_checkpoints_are_refused(tmp_path: Path, arena: bytearray, content: bytes) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="not a whole checkpoint"):
        checkpoint.read(path, TENSORS, arena)


def test_one_that_is_cut_short_is_refused(tmp_path: Path, arena: bytearray) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, TENSORS, arena, 7)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(RecordError, match="its size differs"):
        checkpoint.read(path, TENSORS, arena)


FILL = """
import sys
from pathlib import Path
from thalweg import _core
from thalweg.errors import RecordError
from thalweg.record import checkpoint, stores
from thalweg.tensors.arena import Arena

path = Path(sys.argv[1], "checkpoint.safetensors")
small = [("w", "F32", [1000], 0)]
large = [("w", "F32", [400_000], 0)]
checkpoint.write(path, small, bytes([1]) * 4000, 1)
try:
    checkpoint.write(path, large, bytes(1_600_000), 2)
except RecordError as error:
    print(error)
else:
    sys.exit("the large one was written")
arena = bytearray(4000)
assert checkpoint.read(path, small, arena) == 1 and set(arena) == {1}
assert [p.name for p in path.parent.iterdir()] == [path.name], list(path.parent.iterdir())
"""


def can_mount() -> bool:
    probe = ["unshare", "-m", "true"]
    try:
        return os.geteuid() == 0 and subprocess.run(probe, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def fill(*command: str, folder: Path) -> str:
    done = subprocess.run(
        [*command, sys.executable, "-c", FILL, str(folder)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not can_mount(), reason="mounting a small file system needs root")
def test_a_full_disk_leaves_the_last_good_one(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=1M none "{tmp_path}" && exec "$@"'
    said = fill("unshare", "-m", "sh", "-c", mount, "sh", folder=tmp_path)
    assert "checkpoint of round 2" in said
    assert "No space left on device; the one of round 1 is there and whole" in said
    assert "thalweg run --resume" in said


def test_a_file_that_may_not_grow_leaves_the_last_good_one(tmp_path: Path) -> None:
    said = fill("prlimit", "--fsize=1000000", folder=tmp_path)
    assert "File too large; the one of round 1 is there and whole" in said


def state_of(seed: int) -> Arena:
    core = _core.Arena(_core.Layout([("SGD/0/buffer", "F64", [3, 2]), ("SGD/1/step", "F32", [])]))
    state = Arena(core)
    for array in state.values():
        array[...] = np.random.default_rng(seed).normal(size=array.shape)
    return state


def test_a_servers_state_comes_back_beside_the_model(tmp_path: Path, arena: bytearray) -> None:
    path, folder = tmp_path / "c.safetensors", stores.Folder(tmp_path / "store")
    state = state_of(1)
    checkpoint.write(path, TENSORS, arena, 7, state=state)
    stores.save(folder, TENSORS, arena, 8, state)
    again = bytearray(len(arena))
    assert checkpoint.read(path, TENSORS, again) == 7
    assert again[:80] == arena[:80]
    for kept in (checkpoint.read_state(path), stores.restore_state(folder, 8)):
        assert kept is not None
        assert kept.core.layout.tensors == state.core.layout.tensors
        for name, array in state.items():
            np.testing.assert_array_equal(kept[name], array)
    checkpoint.write(path, TENSORS, arena, 7)
    assert checkpoint.read_state(path) is None
    tensors = safetensors.numpy.load_file(tmp_path / "store" / "round-00000008.safetensors")
    assert "thalweg_server/SGD/0/buffer" in tensors


@pytest.mark.parametrize("cut", [1, 52, 60])
def test_a_state_that_is_cut_short_is_refused(tmp_path: Path, arena: bytearray, cut: int) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, TENSORS, arena, 7, state=state_of(1))
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(RecordError):
        checkpoint.read_state(path)
    with pytest.raises(RecordError):
        checkpoint.read(path, TENSORS, bytearray(len(arena)))
