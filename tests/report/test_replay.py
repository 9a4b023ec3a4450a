"""The simulator replays a run of a tree with its measured costs and arrivals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from thalweg import trees
from thalweg.errors import RecordError
from thalweg.job import run as job
from thalweg.plan import Plan
from thalweg.report.replay import costs, replayed, starts
from thalweg.sections.trees import NodesSection
from thalweg.ui.progress import LineProgress

BYTES = 24_000_000


def plan(folder: Path, *, rounds: int = 3, **tree: Any) -> Plan:
    shape = {"aggregation": {"shape": "tree"}, "tree": tree} if tree else {}
    return Plan.of(
        {
            "job": {"clients": 2, "rounds": rounds},
            "model": {"name": "payload:1MiB"},
            "record": {"folder": str(folder)},
            **shape,
        }
    )


def told(plane: str, split: str) -> Any:
    return {"bytes": BYTES, "switches": {"data_plane": plane, "reuse": plane == "pool"}, "config": {"split": split}}


def spent(handed: float, folded: float, workers: int = 1) -> Any:
    started = {"p50": 1_200_000.0}
    return {"start_us": started, "handover_us": {"p50": handed}, "fold_us": {"p50": folded}, "workers": workers}


def test_costs_are_those_of_single_updates() -> None:
    rounds: Any = [{"fold": {"finish_seconds": seconds}} for seconds in (0.001, 0.004, 0.9)]
    run_costs = costs(spent(30.0, 5030.0), rounds, told("pool", "ranges"))
    assert BYTES / run_costs["fold"] + BYTES / run_costs["sums"] == pytest.approx(0.005)
    assert run_costs["hand_over"] == pytest.approx(30e-6)
    assert (run_costs["socket"], run_costs["broker"], run_costs["side"]) == (0, 0, 0)
    assert BYTES / run_costs["finish"] == pytest.approx(0.004)


def test_copies_have_a_rate_and_work_above_leaves_is_counted_once() -> None:
    rounds: Any = [{"fold": {"finish_seconds": 0.1}}]
    run_costs = costs(spent(10_000.0, 15_000.0, 2), rounds, told("sockets", "clients"))
    assert run_costs["hand_over"] == 0.0
    assert BYTES / run_costs["socket"] == pytest.approx(0.01)
    middle = 2 * 0.01 + 2 * BYTES / run_costs["fold"] + BYTES / run_costs["sums"]
    top = 0.01 + 0.005
    assert BYTES / run_costs["finish"] == pytest.approx(0.1 - middle - top, rel=1e-6)


def test_starts_are_the_runs_own_and_the_container_is_apart() -> None:
    scenario: Any = told("pool", "clients")
    assert starts(spent(30.0, 5030.0), scenario) == {"warm_start": 1.2, "cold_start": 1.2, "container_start": 0.0}
    scenario["costs"] = {"container_start": 1.0}
    found = starts(spent(30.0, 5030.0), scenario)
    assert found == {"warm_start": pytest.approx(0.2), "cold_start": pytest.approx(0.2), "container_start": 1.0}


def test_a_cold_run_of_several_nodes_is_played_with_its_starts(tmp_path: Path) -> None:
    """Both nodes start a worker's container at once, so a round takes at least as long as one."""
    tree = {"system": "lifl", "split": "clients", "start": "cold", "container_start": 0.2, "top": "dedicated"}
    made = plan(tmp_path, rounds=2, **tree, placement="worst-fit")
    record = job.run(made.model_copy(update={"nodes": NodesSection(count=3)}), LineProgress()).record.path
    manifest = json.loads((record / "manifest.json").read_text())
    manifest["tree"] |= {"fold_us": {"p50": 900.0, "p99": 900.0}, "handover_us": {"p50": 50.0, "p99": 50.0}}
    (record / "manifest.json").write_text(json.dumps(manifest))
    replay = replayed(record)
    assert replay["costs"]["container_start"] == 0.2
    assert min(replay["live_seconds"], replay["simulated_seconds"]) >= 0.2


def test_a_run_is_played_again(tmp_path: Path) -> None:
    # Costs are measured only on updates that find an idle worker, and not every run has such updates.
    made = plan(tmp_path, rounds=30, system="sf", workers=1)
    replay = replayed(job.run(made, LineProgress()).record.path)
    assert (replay["system"], replay["split"], replay["updates"]) == ("sf", "clients", 2)
    assert replay["live_seconds"] > 0
    assert replay["simulated_seconds"] > 0
    assert replay["off"] == pytest.approx(replay["simulated_seconds"] / replay["live_seconds"] - 1)
    assert replay["met"] == (abs(replay["off"]) <= 0.15)
    same, other = made, plan(tmp_path, system="sl")
    accepted = [trees.simulated(one, [{**replay, "met": met}]).accepted for one, met in
                ((same, True), (same, False), (other, True))]  # fmt: skip
    assert accepted == [True, False, False]
    assert not trees.simulated(same).accepted


def test_a_run_that_does_not_say_its_costs_has_those_of_another(tmp_path: Path) -> None:
    first = replayed(job.run(plan(tmp_path, rounds=30, system="sf", workers=1), LineProgress()).record.path)
    assert first["costs_of"] == first["record"]
    folder = job.run(plan(tmp_path, system="sf", workers=1), LineProgress()).record.path
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["tree"]["fold_us"] = {"p50": None, "p99": None}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RecordError, match="none found a worker without work"):
        replayed(folder, [{**first, "system": "sl"}, {**first, "update_bytes": 1}])
    replay = replayed(folder, [first])
    own = ("warm_start", "cold_start", "container_start")
    lent, given = ({key: cost for key, cost in one["costs"].items() if key not in own} for one in (replay, first))
    assert (replay["costs_of"], lent) == (first["record"], given)


def test_runs_that_cannot_be_replayed_are_refused_with_the_reason(tmp_path: Path) -> None:
    star = job.run(plan(tmp_path), LineProgress()).record.path
    with pytest.raises(RecordError, match="has no rounds of an aggregation tree"):
        replayed(star)
    among = plan(tmp_path, top="dedicated")
    of_nodes = job.run(among.model_copy(update={"nodes": NodesSection(count=2)}), LineProgress()).record.path
    assert replayed(of_nodes)["updates"] == 2
    entries = [json.loads(line) for line in (of_nodes / "journal.jsonl").read_text().splitlines()]
    for entry in entries:
        entry["fold"]["nodes"][0]["counted"] = 0
    (of_nodes / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with pytest.raises(RecordError, match="no round in which all clients took part"):
        replayed(of_nodes)
