"""Samples of queues: a file of lines while the run goes on, so that memory does not grow, and a table at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from thalweg import bounded_json, extras, wire
from thalweg.errors import RecordError
from thalweg.record import reading
from thalweg.record.columns import Row
from thalweg.record.rows import Queue

NAME: Final = "queues"
FILE: Final = "queues.jsonl"
BATCH: Final = 2_000


def append(folder: Path, samples: Iterable[Queue], shift: float) -> None:
    """Append samples; ``shift`` seconds are added to their times. Raises RecordError."""
    try:
        with (folder / FILE).open("a") as stream:
            for sample in samples:
                stream.write(wire.encode(replace(sample, seconds=sample.seconds + shift)) + "\n")
    except OSError as error:
        raise RecordError(f"cannot write {folder / FILE}: {error.strerror}", "Make room") from error


def batches(folder: Path) -> Iterator[list[Row]]:
    """Yield the samples so far, in batches; a last line cut short by a crash is skipped. Raises OSError."""
    batch: list[Row] = []
    with reading.opened(folder / FILE) as stream:
        for number, line in enumerate(reading.lines(stream), 1):
            if line.endswith(b"\n"):
                batch.append(_sample(folder, number, line))
            if len(batch) == BATCH:
                yield batch
                batch = []
    yield batch


def _sample(folder: Path, number: int, line: bytes) -> Row:
    try:
        return bounded_json.read_object(line)
    except bounded_json.JsonError as error:
        cause = f"line {number} of {folder / FILE} is damaged"
        raise RecordError(cause, "Remove that line and those after it") from error


def write(folder: Path, to: Path | None = None) -> bool:
    """Write the table of the samples, in ``folder`` or in ``to``; return whether there are samples. Raises OSError."""
    from thalweg.record import tables

    there = (folder / FILE).exists()
    if there:
        tables.write_table(to or folder, NAME, batches(folder))
    return there


def finish(folder: Path) -> None:
    """Write the table of the samples and remove the lines. Without pyarrow the lines are the table. Raises OSError."""
    if extras.has("pyarrow") and write(folder):
        (folder / FILE).unlink()
