"""A job's memory does not grow with its rounds: entries are written to disk, and tables are made from the file."""

from __future__ import annotations

import gc
import json
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pyarrow.parquet

from tests.record.conftest import outcome, round_entry
from thalweg import _core
from thalweg import outcome as outcomes
from thalweg.job.common.parties import ServerParty
from thalweg.job.star.host import Host
from thalweg.plan import Plan
from thalweg.plan.bound import Bound
from thalweg.record import Record, RunRecord, tables
from thalweg.record.tables import JOURNALED, read_table, write_parquet
from thalweg.ui.progress import LineProgress

EARLY, LATE = 50, 500
# Growth of memory in bytes a round that the test accepts. An entry that stays in memory takes thousands of bytes.
SLACK = 100 * (LATE - EARLY)


class Core:
    """A fake server whose rounds take no time. When a round begins, it counts the entries in memory."""

    def __init__(self) -> None:
        self.entries: dict[int, int] = {}
        self.traced: dict[int, int] = {}

    def round(self, number: int, config: str, observer: object) -> str:
        if number in (EARLY, LATE):
            gc.collect()
            self.entries[number] = sum(type(one) is dict and "fedcomm_seconds" in one for one in gc.get_objects())
            self.traced[number] = tracemalloc.get_traced_memory()[0]
        said = outcome(number)
        for part in said["participants"]:
            part["metrics"] = {"metrics": {"loss": 1 / number, f"new-{number}": [1]}, "usage": {"train_seconds": 1.0}}
        return json.dumps(said)

    def notes(self) -> list[str]:
        return []

    def resent(self, timeout: float) -> str:
        return json.dumps({"client-1": {"down": 2, "up": 3}, "client-2": {"down": None, "up": 4}})

    def departed(self) -> str:
        return "[]"

    def clients(self) -> str:
        return json.dumps(["a", "b"])

    def tree(self) -> None:
        return None


class Nothing:
    evaluates, personal = True, False

    def evaluate(self) -> dict[str, Any]:
        return {}


def test_nothing_holds_on_to_rounds(plan: Plan, record: RunRecord) -> None:
    table = plan.model_dump(exclude_none=True, exclude_unset=True)
    job = {**table["job"], "rounds": LATE}
    chosen = Plan.of({**table, "job": job, "model": {"name": "payload:4KB"}})
    core = Core()
    tracemalloc.start()
    try:
        host = Host(
            plan=chosen,
            server=cast("_core.Server", core),
            party=cast("ServerParty", Nothing()),
            record=record,
            progress=LineProgress(),
            bound=Bound("none"),
            first=1,
        )
        host.serve(lambda: ["a", "b"])
    finally:
        tracemalloc.stop()
    assert core.entries[LATE] == core.entries[EARLY]
    assert core.traced[LATE] - core.traced[EARLY] < SLACK
    assert [one["round"] for one in Record(record.path).rounds()] == list(range(1, LATE + 1))
    (absent,) = host.attendance.absences()
    assert (absent.client, absent.counted) == ("b", 0)


class Entry(dict[str, Any]):
    """A journal entry that can be weakly referenced, to see when it is freed."""

    __slots__ = ("__weakref__",)


def test_tables_are_made_with_few_rounds_in_memory(record: RunRecord) -> None:
    count, alive, most = tables.GROUP, [0], [0]

    def gone() -> None:
        alive[0] -= 1

    def entries() -> Iterator[Entry]:
        for number in range(1, count + 1):
            made = Entry(round_entry(number))
            weakref.finalize(made, gone)
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            yield made
            del made

    write_parquet(record.path, cast("Iterator[outcomes.Entry]", entries()))
    assert most[0] <= 2
    for name, rows in zip(JOURNALED, (count, 3 * count, 0, 2 * count), strict=True):
        file = pyarrow.parquet.ParquetFile(record.path / f"{name}.parquet")
        assert file.metadata.num_rows == rows
        groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
        assert max(groups, default=0) <= tables.GROUP
    assert [row["round"] for row in read_table(record.path, "rounds")] == list(range(1, count + 1))
