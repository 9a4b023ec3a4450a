"""Results of an experiment on a graph: from a record to numbers, and a whole figure at its smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import iterations, load, measured
from experiments.run import run
from thalweg.job import run as job
from thalweg.plan import Plan
from thalweg.record.rows import Iteration
from thalweg.report.source import read_run
from thalweg.ui.progress import LineProgress

RING = """
[job]
graph = "ring"
clients = 3
rounds = 2
test_every = 1
[model]
name = "lenet"
[data]
name = "digits"
samples = 90
test_samples = 20
[training]
local_steps = 1
"""


def row(node: str, mixed: float) -> Iteration:
    return Iteration(round=1, node=node, mixed=mixed)


def test_those_that_finish_after_all_their_neighbours_are_no_neighbours_of_each_other() -> None:
    rows = [row("a", 1.0), row("a", 5.0), row("b", 2.0), row("c", 4.0), row("d", 9.0)]
    last, gaps = iterations.gaps_of(["a", "b", "c", "d"], [(0, 1), (1, 2), (2, 3)], rows)
    assert last == ["a", "d"]
    assert gaps == [3.0, 5.0]


def test_a_box_leaves_out_what_is_far_away() -> None:
    values = np.array([*range(1, 10), 100.0])
    assert iterations.box(values) == [1.0, 3.25, 5.5, 7.75, 9.0]


def test_the_numbers_of_a_run(tmp_path: Path) -> None:
    plan = Plan.loads(RING).merge({"record.folder": str(tmp_path)})
    cell_numbers = iterations.of_run(read_run(job.run(plan, LineProgress()).record.path))
    assert cell_numbers["used"] == 1.0
    assert cell_numbers["timeouts"] == 0.0
    assert 0.5 < cell_numbers["sent"] < 1.2  # bytes that are in flight at the end are not counted
    assert [point["round"] for point in cell_numbers["curve"]] == [1, 2]
    assert cell_numbers["reached"] == pytest.approx(cell_numbers["curve"][-1]["accuracy"])
    assert cell_numbers["box"][0] <= cell_numbers["exchange_median"] <= cell_numbers["box"][-1]
    assert cell_numbers["graph"]["edges"] == [[0, 1], [0, 2], [1, 2]]
    assert cell_numbers["drift"] < 1e-6
    joined = iterations.joined([cell_numbers, cell_numbers])
    assert joined["used_by_run"] == [1.0, 1.0]
    assert joined["curve"] == cell_numbers["curve"]


def test_busy_time_is_all_but_idle_and_waiting_for_disks() -> None:
    assert load.busy_seconds("cpu  100 10 20 1000 50 1 2 3 40 0\ncpu0 1 1 1", 100) == pytest.approx(1.36)


def test_one_figure_is_run_at_its_smallest_size(tmp_path: Path) -> None:
    notes: list[str] = []
    verdicts = run("udp-dpsgd/fig07", "ci", ["paper"], tmp_path, notes.append)
    file = tmp_path / "udp-dpsgd/fig07/ci" / measured.FILE
    (cell,) = measured.read(file)["paper"]
    assert cell.labels == {"case": "udp"}
    assert cell.numbers["status"] == "complete"
    assert 0 < cell.numbers["exchange_mean"] < 60
    assert cell.numbers["others"] >= 0
    assert file.with_name("fig07-paper.png").stat().st_size > 1000
    assert {verdict.seen for one in verdicts for verdict in one.verdicts.values()} == {"not measured"}
