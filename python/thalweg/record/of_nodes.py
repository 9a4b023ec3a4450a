"""Checkpoints of a job on a graph: the model of each node after the same iteration.

Nodes write their models themselves, into ``nodes/PLACE-ITERATION.safetensors`` of the record. When all nodes that still
work have passed an iteration, the process that writes the record marks it in the manifest and removes older files. So
even after a crash the folder has the models of all nodes for the marked iteration.

A node may skip iterations. If it has no model of the marked iteration, its first model after that is used instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg.errors import RecordError
from thalweg.record import checkpoint

if TYPE_CHECKING:
    from typing_extensions import Buffer

FOLDER: Final = "nodes"
_NAME: Final = re.compile(r"(\d+)-(\d+)\.safetensors")


class Due:
    """Decides which models are checkpoints: the model after every ``every``-th iteration, and the last one."""

    def __init__(self, every: int, rounds: int, *, done: int = 0) -> None:
        """Save models of every ``every``-th iteration (0: none) of ``rounds``; those up to ``done`` exist."""
        self._every, self._rounds, self._kept = every, rounds, done

    def after(self, number: int) -> int | None:
        """Return the iteration whose checkpoint is due after iteration ``number``; None if none is due."""
        if not self._every:
            return None
        due = self._rounds if number >= self._rounds else number // self._every * self._every
        if due <= self._kept:
            return None
        self._kept = due
        return due


def write(record: Path, place: int, iteration: int, layout: Sequence[checkpoint.Tensor], arena: Buffer) -> None:
    """Write a node's model to the folder of a record. Raises RecordError; earlier models stay."""
    folder = record / FOLDER
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot make {folder}: {error.strerror}", "Correct its permissions, or make room") from error
    checkpoint.write(_path(record, place, iteration), layout, arena, iteration, record=record)


def trim(record: Path, iteration: int) -> None:
    """Remove models that are older than ``iteration``."""
    for place, iterations in _iterations_by_place(record).items():
        for old in iterations:
            if old < iteration:
                _path(record, place, old).unlink(missing_ok=True)


def start_of(record: Path, place: int, nodes: int, iteration: int) -> Path:
    """Return the model with which a node continues after ``iteration``.

    It is the node's own model of that iteration, or else its next one. If the node has no such model because it was
    gone, the node continues with another node's. Raises RecordError if there is none.
    """
    models = _iterations_by_place(record)
    for owner in (place, *range(1, nodes + 1)):
        later = [kept for kept in models.get(owner, []) if kept >= iteration]
        if later:
            return _path(record, owner, min(later))
    raise RecordError(f"{record / FOLDER} has no model of iteration {iteration}", "Start the run anew")


def _iterations_by_place(record: Path) -> dict[int, list[int]]:
    """Return the iterations of the models in the folder, by the node's place."""
    iterations: dict[int, list[int]] = {}
    for path in (record / FOLDER).glob("*.safetensors"):
        match = _NAME.fullmatch(path.name)
        if match:
            iterations.setdefault(int(match[1]), []).append(int(match[2]))
    return iterations


def _path(record: Path, place: int, iteration: int) -> Path:
    return record / FOLDER / f"{place}-{iteration}.safetensors"
