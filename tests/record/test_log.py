from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from thalweg.errors import RecordError
from thalweg.record import RunRecord
from thalweg.record.log import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "log.txt", lambda: "now")
    yield log
    log.close()


def test_lines_have_their_time(log: Log) -> None:
    log.write("one")
    log.write("two")
    assert log.path.read_text() == "now one\nnow two\n"


def test_it_is_written_where_no_file_can_be_opened(record: RunRecord) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            record.log_path.open()
        record.log("nobody is in the way")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "nobody is in the way" in record.log_path.read_text()


def test_what_cannot_be_written_is_left_out_and_counted(log: Log) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        log.write("one")
        log.write("two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write("three")
    log.close()
    log.write("after the end")
    first, second = log.path.read_text().splitlines()
    assert first.startswith("now 2 notes could not be written here: ")
    assert "too large" in first
    assert second == "now three"


def test_one_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot write"):
        Log(tmp_path / "missing" / "log.txt", lambda: "now")
