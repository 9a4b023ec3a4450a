"""Checkpoints of nodes: when they are due, and from which one a node resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from thalweg import _core
from thalweg.errors import RecordError
from thalweg.job.common.parties import bytes_of
from thalweg.record import checkpoint, of_nodes
from thalweg.record.of_nodes import Due, start_of, trim, write

LAYOUT = _core.Layout([("w", "F32", [4])])


def keep(record: Path, place: int, iteration: int) -> None:
    arena = _core.Arena(LAYOUT)
    np.asarray(arena).view(np.float32)[:] = 100 * place + iteration
    write(record, place, iteration, LAYOUT.tensors, bytes_of(arena))


def names(record: Path) -> set[str]:
    return {path.name.removesuffix(".safetensors") for path in (record / of_nodes.FOLDER).iterdir()}


def test_every_so_many_iterations_and_the_last_are_due() -> None:
    due = Due(3, 8)
    assert [due.after(number) for number in range(1, 9)] == [None, None, 3, None, None, 6, None, 8]
    assert Due(3, 8).after(9) == 8
    assert Due(3, 6).after(6) == 6
    assert [Due(0, 3).after(number) for number in range(1, 4)] == [None] * 3


def test_of_iterations_that_a_node_skips_the_next_one_stands_for_them() -> None:
    due = Due(3, 20)
    assert [due.after(number) for number in (2, 5, 6, 13, 14, 15)] == [None, 3, 6, 12, None, 15]


def test_what_is_kept_is_not_due_again_after_a_resume() -> None:
    due = Due(3, 20, done=6)
    assert [due.after(number) for number in (7, 8, 9)] == [None, None, 9]


def test_a_node_goes_on_with_its_own_model(tmp_path: Path) -> None:
    for place, iteration in ((1, 3), (2, 3), (1, 6)):
        keep(tmp_path, place, iteration)
    assert start_of(tmp_path, 1, 2, 3).name == "1-3.safetensors"
    arena = _core.Arena(LAYOUT)
    assert checkpoint.read(start_of(tmp_path, 2, 2, 3), LAYOUT.tensors, bytes_of(arena)) == 3
    assert np.asarray(arena).view(np.float32).tolist() == [203.0] * 4


def test_a_node_that_skipped_it_goes_on_with_its_next_and_one_that_was_gone_with_anothers(tmp_path: Path) -> None:
    for place, iteration in ((1, 3), (2, 6), (3, 9)):
        keep(tmp_path, place, iteration)
    assert start_of(tmp_path, 3, 4, 6).name == "3-9.safetensors"
    assert start_of(tmp_path, 1, 4, 6).name == "2-6.safetensors", "its own is of before"
    assert start_of(tmp_path, 4, 4, 6).name == "2-6.safetensors", "it has none"
    with pytest.raises(RecordError, match="no model of iteration 12"):
        start_of(tmp_path, 1, 4, 12)


def test_what_is_older_than_the_checkpoint_is_removed(tmp_path: Path) -> None:
    for place, iteration in ((1, 3), (1, 6), (2, 3), (2, 6), (2, 9)):
        keep(tmp_path, place, iteration)
    (tmp_path / of_nodes.FOLDER / "notes.txt").write_text("mine")
    trim(tmp_path, 6)
    assert names(tmp_path) == {"1-6", "2-6", "2-9", "notes.txt"}


def test_a_model_that_cannot_be_kept_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / of_nodes.FOLDER).write_text("a file is in the way")
    with pytest.raises(RecordError, match="cannot make"):
        keep(tmp_path, 1, 3)
