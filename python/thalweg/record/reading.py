"""Reads files of records within limits, because a file may be damaged or come from somebody else.

Only ordinary files are opened: opening a named pipe would wait for a writer for ever. JSON has the limits of
``thalweg.bounded_json``; lines and tables have a limit in bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from thalweg import bounded_json, extras
from thalweg.errors import RecordError

if TYPE_CHECKING:
    import pyarrow

# Maximum size in bytes of a JSON document. The manifest of a run with 10,000 emulated clients has 10 MB.
LONGEST_DOCUMENT: Final = 64 << 20
# Maximum size in bytes of a line of a journal. A round of 10,000 clients takes 20 MB.
LONGEST_LINE: Final = 128 << 20
# Maximum size in bytes of a table in memory, however small its compressed file is.
LARGEST_TABLE: Final = 1 << 30
# Maximum number of rows, and of bytes, that are decoded at once. If rows have long texts, the limit in bytes comes
# first.
ROWS_AT_ONCE: Final = 1 << 16
BYTES_AT_ONCE: Final = 256 << 20
# The last round: rounds are 32-bit numbers on the wire and in tables.
LAST_ROUND: Final = (1 << 32) - 1


def opened(path: Path) -> BufferedReader:
    """Open an ordinary file for reading. Raises RecordError for any other file, and OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RecordError(f"{path} is no ordinary file", "Restore it from a copy")
    return os.fdopen(descriptor, "rb")


def document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises JsonError, RecordError, OSError."""
    with opened(path) as stream:
        return bounded_json.read_object(stream.read(LONGEST_DOCUMENT + 1), most=LONGEST_DOCUMENT)


def lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file. A line longer than ``LONGEST_LINE`` is cut there, and is the last that is yielded."""
    while line := stream.readline(LONGEST_LINE):
        yield line
        if not line.endswith(b"\n"):
            return


def table(path: Path) -> pyarrow.Table:
    """Return a Parquet file as a table.

    Raises PackageError without pyarrow, RecordError, OSError and what pyarrow raises for a damaged file.
    """
    extras.require(f"reading {path.name}", "pyarrow")
    import pyarrow
    import pyarrow.parquet

    with opened(path) as stream:
        file = pyarrow.parquet.ParquetFile(stream)
        batches, size = [], 0
        for batch in file.iter_batches(_rows_at_once(file.metadata)):
            batches.append(batch)
            size += batch.nbytes
            if size > LARGEST_TABLE:
                raise RecordError(
                    f"{path} takes more than {LARGEST_TABLE >> 20} MiB of memory",
                    "Remove it, and make it anew with thalweg export",
                )
        return pyarrow.Table.from_batches(batches, schema=file.schema_arrow)


def _rows_at_once(metadata: Any) -> int:
    """Return how many rows to decode at once, if every row could hold the longest text of its column."""
    longest = 1
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        columns = map(row_group.column, range(row_group.num_columns))
        texts = (column.total_uncompressed_size for column in columns if column.physical_type == "BYTE_ARRAY")
        longest = max(longest, *texts, 1)
    return max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // longest))
