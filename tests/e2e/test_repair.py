"""Runs in which lost chunks are not resent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.baselines import NEEDED
from thalweg.record import Record

pytestmark = pytest.mark.e2e

Run = Callable[..., Any]
CLIENTS, ROUNDS, BYTES = 2, 2, 1 << 20
LOSSY = f"""
[job]
clients = {CLIENTS}
rounds = {ROUNDS}
[model]
name = "payload:1MiB"
[transport]
url = "udp"
[layers.fault]
seed = 7
loss = 0.1
"""


def run_plan(result: Run, folder: Path, text: str) -> list[dict[str, Any]]:
    """Run a plan; return the journal's entries."""
    (folder / "plan.toml").write_text(text)
    done = result("run", "plan.toml")
    return [dict(entry) for entry in Record(folder / done["record"]).entries]


@pytest.mark.parametrize(
    "policy", ["renormalise", "keep-local", "zero", "last", "rescale", pytest.param("fedcomm-legacy", marks=NEEDED)]
)
def test_the_record_says_what_was_missing_and_what_stood_in(result: Run, tmp_path: Path, policy: str) -> None:
    entries = run_plan(result, tmp_path, f'{LOSSY}[repair]\nresend = false\npolicy = "{policy}"')
    assert len(entries) == ROUNDS
    for entry in entries:
        assert (entry["participants"], entry["complete"]) == (CLIENTS, False)
        assert {way["direction"] for way in entry["transfers"]} == {"up", "down"}
        for way in entry["transfers"]:
            assert way["bytes"] + way["missing"] == BYTES
            assert 0.02 * BYTES < way["missing"] < 0.3 * BYTES
            assert (way["repair"], way["complete"]) == (policy, False)
            assert way["wire_bytes"] < 1.1 * BYTES, "nothing is sent again"
            lost = [(loss["missing"], loss["share"]) for loss in way["losses"]]
            assert lost == ([(way["missing"], way["missing"] / BYTES)] if way["direction"] == "up" else [])
        for part in entry["clients"]:
            up = next(w for w in entry["transfers"] if (w["client"], w["direction"]) == (part["client"], "up"))
            assert (part["state"], part["coverage"]) == ("partial", up["bytes"] / BYTES)
            assert f"{up['missing']} of its {BYTES} bytes" in part["reason"]


def test_by_default_lost_ranges_are_resent(result: Run, tmp_path: Path) -> None:
    for entry in run_plan(result, tmp_path, LOSSY):
        assert entry["complete"]
        assert all((way["missing"], way["repair"], way["losses"]) == (0, None, []) for way in entry["transfers"])


def test_a_network_still_learns_as_fedcomm_sends_it(result: Run, tmp_path: Path) -> None:
    plan = """
        [job]
        clients = 2
        rounds = 2
        [model]
        name = "lenet"
        [data]
        name = "digits"
        [transport]
        url = "udp"
        chunk = 2048
        options = { paced = false }
        [layers.fault]
        loss = 0.05
        [repair]
        resend = false
        policy = "renormalise"
    """
    entries = run_plan(result, tmp_path, plan)
    assert all(entry["accuracy"] is not None and entry["loss"] > 0 for entry in entries)
    assert any(way["missing"] > 0 for entry in entries for way in entry["transfers"])
