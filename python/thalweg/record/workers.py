"""What the workers of each node of a tree have done, in ``workers.jsonl``: one line for each round and node.

A line has the number of the round, the node's name, counters since the node's process began, and the plans that the
node has made since the line before (``thalweg.trees.counters``), of which it keeps the latest 64. It is written when
the round is over, so a plan that was made during a round is in that round's line. A node that is lost has no line.

A line whose node is "root" has the root's decision before the round which clients move (``thalweg.trees.balance``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from thalweg import bounded_json, wire
from thalweg.errors import RecordError
from thalweg.record.journal import write_all
from thalweg.record.reading import opened

FILE: Final = "workers.jsonl"
# Maximum size in bytes of a line: 64 plans, each with a few reasons.
LONGEST_LINE: Final = 1 << 20


def append(folder: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Append a round's rows to the file of the record ``folder``. Raises RecordError."""
    try:
        with (folder / FILE).open("ab", buffering=0) as stream:
            write_all(stream, "".join(f"{wire.encode(row)}\n" for row in rows).encode())
    except OSError as error:
        raise RecordError(f"cannot write {folder / FILE}: {error.strerror}", "Make room") from error


def trim(folder: Path, last: int) -> None:
    """Drop the rows of rounds after ``last``, which are run again. Raises RecordError."""
    path = folder / FILE
    if not path.exists():
        return
    rows = [row for row in read(folder) if row["round"] <= last]
    anew = path.with_suffix(".new")
    try:
        anew.unlink(missing_ok=True)
        anew.write_text("".join(f"{wire.encode(row)}\n" for row in rows))
        anew.replace(path)
    except OSError as error:
        raise RecordError(f"cannot write {path}: {error.strerror}", "Make room") from error


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows so far; none without the file. Raises RecordError if a whole line is no row."""
    return followed(folder, lambda: False)


def followed(folder: Path, goes_on: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record that may be growing. Raises RecordError if a whole line is no row.

    ``goes_on`` is called before each look at the file. It may wait, and returns whether to look again after this time.
    """
    place, again = 0, True
    while again:
        again = goes_on()
        for row, after in _rows(folder / FILE, place):
            yield row
            place = after


def _rows(path: Path, place: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the whole lines from byte ``place`` on, each with the place after it."""
    try:
        with opened(path) as stream:
            stream.seek(place)
            while (line := stream.readline(LONGEST_LINE)).endswith(b"\n"):
                row = bounded_json.read_object(line)
                if not isinstance(row.get("round"), int) or not isinstance(row.get("node"), str):
                    raise RecordError(f"{path} has a line that is no row", "Restore it from a copy")
                yield row, stream.tell()
    except FileNotFoundError:
        return
    except (OSError, bounded_json.JsonError) as error:
        raise RecordError(f"cannot read {path}: {error}", "Restore it from a copy") from error
