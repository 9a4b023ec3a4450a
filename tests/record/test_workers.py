"""The file of what a tree's workers have planned and done, as it grows."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from thalweg.errors import RecordError
from thalweg.record import workers
from thalweg.trees.counters import Created, Decisions, LiveDecision, Now, Percentiles, Reused, Started, Workers
from thalweg.trees.decided import Watched, plan_in_words, workers_in_words


def decision(number: int) -> LiveDecision:
    return LiveDecision(number, 2.5, 10.0, 0.25, 2.5, 3.5, 3, 2, True, ("2 leaves and a middle",))


def counters(*numbers: int) -> Workers:
    nothing = Percentiles(None, None)
    return Workers(
        workers=3, leaves=2, aggregators_created=3, created=Created(2, 1), reused=Reused(4), retired=1,
        decisions=Decisions(max(numbers, default=0), tuple(map(decision, numbers))), died=0, warm=0, commits=0,
        started=Started(3, 0), start_us=nothing, resume_us=nothing, handover_us=nothing, fold_us=nothing,
        cpu_seconds=0.0, hops_cpu_seconds=0.0, pool_bytes=1, sums_bytes=1, routes="node", routes_reason="",
        notes=None, now=Now(0, 0, 1, 1, (), (), 0.0),
    )  # fmt: skip


def numbers(rows: list[dict[str, Any]]) -> list[tuple[int, str, list[int]]]:
    return [(row["round"], row["node"], [one["number"] for one in row["decisions"]]) for row in rows]


def test_each_plan_is_in_one_row(tmp_path: Path) -> None:
    watched = Watched()
    unplanned = replace(counters(), decisions=None)
    for number, of_node in enumerate([(1,), (1, 2, 3), (2, 3)], 1):
        rows = watched.rows(number, {"node-0": counters(*of_node), "node-1": unplanned})
        workers.append(tmp_path, [asdict(row) for row in rows])
    # Another process of the node counts anew.
    rows = watched.rows(4, {"node-0": counters(1)})
    workers.append(tmp_path, [asdict(row) for row in rows])
    found = list(workers.read(tmp_path))
    assert numbers(found) == [(1, "node-0", [1]), (2, "node-0", [2, 3]), (3, "node-0", []), (4, "node-0", [1])]
    assert found[0]["created"] == {"leaf": 2, "middle": 1}
    assert workers_in_words(found[0]) == (
        "round 1, node-0: leaves 2; so far leaves created 2, middles created 1, leaves reused as middle 4, retired 1, "
        "died 0"
    )
    assert plan_in_words(found[0]["decisions"][0]) == (
        "plan 1 at 2.5 s: 3 leaves become 2, for a queue of 2.5 updates, 3.5 smoothed (10 a second, 250 ms each): "
        "2 leaves and a middle"
    )


def test_rows_are_read_as_they_come(tmp_path: Path) -> None:
    looks = iter([True, True, True, False])

    def goes_on() -> bool:
        again = next(looks)
        with (tmp_path / workers.FILE).open("a") as stream:
            stream.write('{"round": 1, "node": "a"}\n{"round"' if again else ': 2, "node": "b"}\n')
        if again:
            (tmp_path / workers.FILE).write_text('{"round": 1, "node": "a"}\n{"round"')  # a row is half written
        return again

    assert [row["round"] for row in workers.followed(tmp_path, goes_on)] == [1, 2]
    assert list(workers.read(tmp_path / "nowhere")) == []


def test_rows_of_rounds_that_are_run_again_are_dropped(tmp_path: Path) -> None:
    workers.trim(tmp_path, 1)
    workers.append(tmp_path, [{"round": number, "node": "a"} for number in (1, 2, 3)])
    workers.trim(tmp_path, 2)
    assert [row["round"] for row in workers.read(tmp_path)] == [1, 2]


@pytest.mark.parametrize("line", ["{}", "[1]", '{"round": "1", "node": "a"}', "nonsense"])
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / workers.FILE).write_text(line + "\n")
    with pytest.raises(RecordError, match=r"workers\.jsonl"):
        list(workers.read(tmp_path))
