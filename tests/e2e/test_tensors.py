"""Tensors named in the plan: critical ones arrive whole while others lose bytes, and unknown names are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import why_no_lab
from thalweg.record import Record

pytestmark = pytest.mark.e2e

Run = Callable[..., Any]
CLIENTS = 2
# classifier.0.weight has nine tenths of vgg5's 2.3 MB.
PLAN = f"""
[job]
clients = {CLIENTS}
rounds = 1
[model]
name = "vgg5"
[data]
name = "digits"
samples = 200
[repair]
resend = false
critical = ["features.*", "*.bias"]
budgets = {{ "classifier.0.*" = 0.02 }}
[transport]
"""
# Each chunk is one packet. About thirty chunks of the tensor with a budget may be missing.
FAULTS = "\nchunk = 1344\n[layers.fault]\nseed = 7\nloss = 0.1\n"
NETWORK = """
[transport.options]
budget = 0.5
[network]
rate = "100mbit"
delay = "5ms"
up = { loss = "4%" }
emulator = "packet"
"""


def lost(result: Run, folder: Path, text: str) -> list[dict[str, float]]:
    """Run a plan; return for each update the missing share of each tensor."""
    (folder / "plan.toml").write_text(text)
    (entry,) = Record(folder / result("run", "plan.toml")["record"]).entries
    ways = [way for way in entry["transfers"] if way["direction"] == "up"]
    assert len(ways) == CLIENTS
    return [{loss["tensor"]: loss["share"] for loss in way["losses"]} for way in ways]


def check(shares: list[dict[str, float]]) -> None:
    for update in shares:
        assert set(update) <= {"classifier.0.weight", "classifier.1.weight"}
        assert 0 < update["classifier.0.weight"] <= 0.02


@pytest.mark.parametrize("transport", ["tcp", "udp", "ltp"])
def test_critical_tensors_come_whole_whatever_carries_them(result: Run, tmp_path: Path, transport: str) -> None:
    check(lost(result, tmp_path, f'{PLAN}url = "{transport}"{FAULTS}'))


@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
def test_critical_tensors_come_whole_through_a_server_that_masks_loss(result: Run, tmp_path: Path) -> None:
    check(lost(result, tmp_path, f'{PLAN}url = "unifl"{NETWORK}'))


def test_a_name_that_no_tensor_has_is_refused_with_the_nearest(start: Any, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace('"*.bias"', '"classifer.0.bias"') + 'url = "udp"\n')
    code, _, err = start("run", "plan.toml").end()
    assert code != 0
    assert 'repair.critical names "classifer.0.bias"' in err.replace("\n", " ")
    assert '"classifier.0.bias"' in err.replace("\n", " ")


def test_a_round_takes_those_whom_it_chooses(result: Run, tmp_path: Path) -> None:
    plan = '[job]\nclients = 6\nrounds = 4\nchoose = 2\nseed = 5\n[model]\nname = "payload:64KiB"\n'
    chosen = []
    for folder in (tmp_path / "first", tmp_path / "again"):
        folder.mkdir()
        (folder / "plan.toml").write_text(f'{plan}[record]\nfolder = "{folder}"\n')
        entries = Record(folder / result("run", str(folder / "plan.toml"))["record"]).entries
        assert all((entry["participants"], entry["expected"], entry["complete"]) == (2, 2, True) for entry in entries)
        chosen.append([sorted(part["client"] for part in entry["clients"]) for entry in entries])
    assert chosen[0] == chosen[1], "the seed decides"
    assert len({name for names in chosen[0] for name in names}) > 2
