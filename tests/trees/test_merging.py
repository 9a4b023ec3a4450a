"""The reports of a round's nodes are merged into an outcome equal to that of a single server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.outcomes import outcome_table, transfer_of
from thalweg import wire
from thalweg.trees import answers
from thalweg.trees.counters import Counters
from thalweg.trees.merging import Mean, Part, covered, merged, workers


def way(client: str, start: float, end: float) -> dict[str, Any]:
    return {"client": client, "wire_bytes": 10, "send_start": start, "send_end": end}


def outcome(states: dict[str, str], ways: list[dict[str, Any]], *, complete: bool) -> answers.Outcome:
    table = outcome_table(
        participants=[{"client": client, "state": state, "samples": 3} for client, state in states.items()],
        transfers=ways,
        complete=complete,
        bytes_down=100,
        bytes_up=50,
        congestion_control="cubic",
    )
    return answers.read(answers.Outcome, "round", json.dumps({**table, "failure": None}).encode())


def test_times_are_on_the_clock_of_the_root() -> None:
    one = outcome({"a": "whole"}, [way("a", 1.0, 2.0)], complete=True)
    two = outcome({"b": "whole"}, [way("b", 10.0, 11.0)], complete=True)
    parts = [Part("node-1", ["a"], one, shift=0.5), Part("node-2", ["b"], two, shift=-8.0)]
    merged_outcome = wire.values_of(merged(4, parts, 1.25, 2.0, Mean(0, 0.0)))
    assert [(one["send_start"], one["send_end"]) for one in merged_outcome["transfers"]] == [(1.5, 2.5), (2.0, 3.0)]
    assert merged_outcome["transfers"][0]["receive_start"] is None
    assert merged_outcome["communication_seconds"] == 1.5
    assert (
        merged_outcome["round"],
        merged_outcome["start"],
        merged_outcome["seconds"],
        merged_outcome["complete"],
    ) == (4, 1.25, 2.0, True)
    assert (merged_outcome["expected"], merged_outcome["bytes_down"], merged_outcome["bytes_up"]) == (2, 200, 100)
    assert [node["counted"] for node in merged_outcome["fold"]["nodes"]] == [1, 1]


def test_clients_of_a_node_that_says_nothing_are_lost_by_name() -> None:
    one = outcome({"a": "whole", "b": "late"}, [], complete=False)
    gone = Part("node-2", ["c", "d"], reason="its node node-2 is gone: killed by signal 9")
    merged_outcome = wire.values_of(merged(1, [Part("node-1", ["a", "b", "x"], one), gone], 0.0, 1.0, Mean(0, 0.0)))
    states = {part["client"]: (part["state"], part["reason"]) for part in merged_outcome["participants"]}
    assert states == {
        "a": ("whole", None),
        "b": ("late", None),
        "x": ("lost", "it was not there"),
        "c": ("lost", gone.reason),
        "d": ("lost", gone.reason),
    }
    assert (merged_outcome["expected"], merged_outcome["complete"]) == (5, False)
    assert [node["counted"] for node in merged_outcome["fold"]["nodes"]] == [1, 0]


def test_bytes_between_nodes_are_counted_apart() -> None:
    part = Part("node-1", ["a"], outcome({"a": "whole"}, [way("a", 0, 1)], complete=True))
    between = [transfer_of(**way("node-1", 0, 1)), transfer_of(**way("node-1", 1, 2))]
    merged_outcome = wire.values_of(merged(1, [part], 0.0, 1.0, Mean(0, 0.0), between=between))
    assert merged_outcome["fold"]["between_bytes"] == 20
    assert len(merged_outcome["transfers"]) == 1


@pytest.mark.parametrize(
    ("spans", "seconds"), [([], 0.0), ([(0, 2), None, (1, 3), (5, 6)], 4.0), ([(4, 5), (0, 10)], 10.0)]
)
def test_overlaps_count_once(spans: list[Any], seconds: float) -> None:
    assert covered(spans) == seconds


def test_figures_of_workers_add_up_but_for_times() -> None:
    counts = dict.fromkeys(
        (
            "workers",
            "leaves",
            "aggregators_created",
            "retired",
            "died",
            "warm",
            "commits",
            "cpu_seconds",
            "hops_cpu_seconds",
            "pool_bytes",
            "sums_bytes",
        ),
        1,
    )
    kernel = {"routes": "kernel", "routes_reason": "the kernel can", "notes": {"routed": 3, "passed": 1, "bytes": 8}}
    node = {"routes": "node", "routes_reason": "no clang", "notes": None}
    nothing = {"p50": None, "p99": None}
    reports: list[dict[str, Any]] = [
        {
            **counts,
            "created": {"leaf": 2, "middle": 1},
            "reused": {"middle": 3},
            "decisions": {"count": 2, "latest": []},
            "started": {"template": 2, "program": 0},
            "start_us": {"p50": 3000.0, "p99": 4000.0},
            "resume_us": nothing,
            "handover_us": {"p50": 20.0, "p99": None},
            "fold_us": {"p50": 50.0, "p99": None},
            **kernel,
        },
        {
            **counts,
            "workers": 2,
            "created": {"leaf": 1, "middle": 0},
            "reused": {"middle": 1},
            "decisions": None,
            "started": {"template": 1, "program": 1},
            "start_us": {"p50": 2000.0, "p99": 50000.0},
            "resume_us": nothing,
            "handover_us": {"p50": 30.0, "p99": None},
            "fold_us": {"p50": None, "p99": None},
            **node,
        },
    ]
    totals = wire.values_of(workers([wire.made(Counters, one) for one in reports]))
    assert (totals["workers"], totals["commits"], totals["pool_bytes"]) == (3, 2, 2)
    assert totals["started"] == {"template": 3, "program": 1}
    assert (totals["created"], totals["reused"]) == ({"leaf": 3, "middle": 1}, {"middle": 4})
    assert totals["decisions"] == {"count": 2, "latest": []}
    assert (totals["start_us"], totals["resume_us"]) == ({"p50": 3000.0, "p99": 50000.0}, nothing)
    assert totals["handover_us"] == {"p50": 30.0, "p99": None}
    assert (totals["routes"], totals["notes"]) == ("kernel, node", {"routed": 3, "passed": 1, "bytes": 8})
    assert totals["routes_reason"] == "no clang; the kernel can"
    assert totals["fold_us"] == {"p50": 50.0, "p99": None}
