"""Our own columns equal those that pyarrow makes, and do not need pandas."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from thalweg.record.columns import array_of

VALUES: list[tuple[str, list[Any]]] = [
    ("uint32", [1, None, 2**32 - 1, 0] * 5),
    ("uint64", [None, 2**64 - 1, 7]),
    ("float64", [0.5, None, -math.inf, 1e-308, 3]),
    ("bool", [True, None, False] * 7),
    ("string", ["", None, "Größe", "日本", "x" * 1000]),
    ("string", [None, None]),
    ("float64", []),
    ("string", []),
]


@pytest.mark.parametrize(("kind", "values"), VALUES)
def test_our_columns_equal_those_of_pyarrow(kind: str, values: list[Any]) -> None:
    made = array_of(values, kind)
    made.validate(full=True)
    assert made.equals(pyarrow.array(values, type=kind))
    assert made.null_count == values.count(None)


def test_not_a_number_stays_so() -> None:
    (value,) = array_of([math.nan], "float64").to_pylist()
    assert math.isnan(value)


@pytest.mark.parametrize(("kind", "value"), [("string", 7), ("float64", "x"), ("uint32", [1]), ("uint64", -1)])
def test_other_kinds_are_refused(kind: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        array_of([value], kind)


WRITE = """
import sys, pathlib
from thalweg.record.rows import TABLES
from thalweg.record.tables import write_table
row = {"round": 1, "client": "c", "direction": "up", "tensor": "w", "missing": 1, "share": 0.5}
write_table(pathlib.Path(sys.argv[1]), "losses", [[row]])
assert "pyarrow" in sys.modules and "pandas" not in sys.modules
"""


def test_writing_a_table_imports_no_pandas(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path)], check=True)
