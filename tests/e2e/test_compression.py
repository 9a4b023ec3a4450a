"""Runs whose updates are compressed with error feedback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thalweg.record import Record
from thalweg.record.checkpoint import read_state

pytestmark = pytest.mark.e2e

TRAINED = """
[job]
clients = 2
rounds = 2
seed = 3
[model]
name = "lenet"
[data]
name = "digits"
[record]
checkpoint_every = 1
"""


def shares(record: Record, direction: str) -> list[float]:
    """Return the share of each update's bytes that went over its link."""
    ways = [way for entry in record.entries for way in entry["transfers"] if way["direction"] == direction]
    assert ways
    return [way["wire_bytes"] / way["bytes"] for way in ways]


@pytest.mark.parametrize(
    ("scheme", "most", "transport"),
    [
        ("int8", 0.28, "tcp"),
        ("int4", 0.16, "ltp"),
        ("int2", 0.10, "grpc"),
        ("topk:0.01", 0.04, "tcp"),
        ("powersgd:2", 0.08, "tcp"),
        ("powersgd:2", 0.08, "grpc"),
    ],
)
def test_updates_have_fewer_bytes_on_the_link(
    result: Callable[..., Any], tmp_path: Path, scheme: str, most: float, transport: str
) -> None:
    (tmp_path / "plan.toml").write_text(TRAINED)
    said = result("run", "plan.toml", "--compression", scheme, "--transport", transport)
    record = Record(tmp_path / said["record"])
    assert len(record.entries) == 2
    assert all(entry["complete"] for entry in record.entries)
    assert all(share < most for share in shares(record, "up"))
    assert all(share > 0.9 for share in shares(record, "down"))
    facts = record.manifest["compression"]
    assert facts["scheme"] == scheme
    assert facts["ratio"] == pytest.approx(facts["update_bytes"] / facts["wire_bytes"])
    assert facts["ratio"] > 1 / most
    kept = sorted(path.name for path in (record.path / "residuals").iterdir())
    assert kept == ["client-1.residual", "client-2.residual"]


def test_a_resumed_run_goes_on_with_what_was_left_out(result: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(TRAINED)
    said = result("run", "plan.toml", "--compression", "int2")
    file = tmp_path / said["record"] / "residuals" / "client-1.residual"
    before = file.read_bytes()
    again = result("run", "--resume", said["record"], "--rounds", "3")
    assert len(Record(tmp_path / again["record"]).entries) == 3
    assert file.read_bytes() != before


@pytest.mark.parametrize(("shape", "transport"), [("star", "tcp"), ("star", "ltp"), ("tree", "grpc")])
def test_models_travel_in_fewer_bytes_too(
    result: Callable[..., Any], tmp_path: Path, shape: str, transport: str
) -> None:
    (tmp_path / "plan.toml").write_text(TRAINED + f"[aggregation]\nshape = '{shape}'\n")
    options = ["--compression", "int4", "--compression-down", "int8", "--transport", transport]
    said = result("run", "plan.toml", *options, "--rounds", "3")
    record = Record(tmp_path / said["record"])
    assert all(entry["complete"] for entry in record.entries)
    assert all(share < 0.16 for share in shares(record, "up"))
    down = shares(record, "down")
    assert all(share > 0.9 for share in down[:2]), "the first round sends the whole model"
    assert len(down) == 6
    assert all(share < 0.28 for share in down[2:])
    facts = record.manifest["compression"]["down"]
    assert facts["scheme"] == "int8"
    assert facts["ratio"] == pytest.approx(facts["model_bytes"] / facts["wire_bytes"])


def test_a_resumed_run_sends_all_clients_the_model_that_they_had(result: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(TRAINED)
    said = result("run", "plan.toml", "--compression", "int8", "--compression-down", "int2")
    state = read_state(tmp_path / said["record"] / "checkpoint.safetensors")
    assert state is not None
    assert all(name.startswith("compression/") for name in state)
    again = result("run", "--resume", said["record"], "--rounds", "4")
    record = Record(tmp_path / again["record"])
    assert len(record.entries) == 4
    # Rounds 1 and 3 begin with clients that have no model.
    assert [share > 0.9 for share in shares(record, "down")] == [True, True, False, False] * 2


def test_a_tree_adds_up_compressed_updates(result: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(TRAINED + "[aggregation]\nshape = 'tree'\n")
    said = result("run", "plan.toml", "--compression", "int4")
    record = Record(tmp_path / said["record"])
    assert all(entry["complete"] for entry in record.entries)
    assert all(share < 0.16 for share in shares(record, "up"))


@pytest.mark.parametrize("top", ["first-finished", "dedicated", "sharded"])
def test_several_nodes_have_the_bits_of_a_star(result: Callable[..., Any], tmp_path: Path, top: str) -> None:
    """So residuals are the same too: the second round depends on them."""

    def trained(name: str, plan: str) -> tuple[bytes, Record]:
        (tmp_path / f"{name}.toml").write_text(TRAINED.replace("clients = 2", "clients = 3") + plan)
        said = result("run", f"{name}.toml", "--compression", "int4", "--deterministic", "--record", name)
        record = Record(tmp_path / said["record"])
        assert all(entry["complete"] for entry in record.entries)
        assert all(share < 0.16 for share in shares(record, "up"))
        return (record.path / "checkpoint.safetensors").read_bytes(), record

    star, _ = trained("star", "")
    nodes = f"[aggregation]\nshape = 'tree'\n[nodes]\ncount = 2\n[tree]\nplacement = 'worst-fit'\ntop = '{top}'\n"
    tree, record = trained("tree", nodes)
    # Three clients fit one node; a dedicated top adds up its sums all the same.
    assert record.manifest["tree"]["nodes_used"] == (1 if top == "dedicated" else 2)
    assert star == tree
