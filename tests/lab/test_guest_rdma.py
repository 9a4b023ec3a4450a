"""RDMA over the guest kernel's devices: the transport's contract, jobs in each mode, and equal times of equal jobs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.lab.test_guest import built, thalweg
from thalweg import _core
from thalweg.lab import guest
from thalweg.report.source import read_run
from thalweg.wire import table_of

__all__ = ["built"]

ROOT: Final = Path(__file__).parents[2]
MODES: Final = ("window", "pull", "fedrdma-e", *(["fedrdma"] if _core.BASELINES else []), "whole")
MIB: Final = 1 << 20

#: A device of the guest alone, whose packets return at once.
DEVICE: Final = """set -e
ip link add loop0 type dummy
ip link set loop0 mtu 4200 up
ip addr add 10.9.0.1/24 dev loop0
rdma link add rxe0 type rxe netdev loop0
"""


def binary(package: str, test: str) -> Path:
    """Build a test of a crate, and return its program."""
    # With the features of scripts/run_tests.py, cargo takes what it compiled for them. With others, or for one crate
    # alone, it would compile the libraries again.
    features = "thalweg-runtime/as-in-tests,thalweg-runtime/baselines"
    which = ["--workspace", "--exclude", "thalweg-py", "--features", features, "--test", test]
    cargo = ["cargo", "test", "-q", *which, "--no-run", "--message-format=json"]
    done = subprocess.run(cargo, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = [said for said in map(json.loads, done.stdout.splitlines()) if said.get("executable")]
    path = next(Path(one["executable"]) for one in made if Path(one["manifest_path"]).parent.name == package)
    return ROOT / Path(*path.parts[path.parts.index("target") :])


PLAN: Final = """
[job]
clients = {clients}
rounds = 2
[model]
name = "payload:1MiB"
[transport]
url = "rdma"
options = {{ mode = "{mode}" }}
[network]
clock = "virtual"
rate = "1gbit"
rtt = "20ms"
loss = "{loss}"
mtu = 4200
"""


def record_of(folder: Path, said: str) -> Path:
    table: dict[str, Any] = json.loads(said)
    assert "error" not in table, said
    return folder / str(table["record"])


@pytest.mark.usefixtures("built")
def test_the_contract_holds_over_real_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = binary("rdma", "rxe")
    monkeypatch.chdir(tmp_path)
    code, said = guest.run(["/bin/sh", "-c", f"{DEVICE} {program} --test-threads=1 2>&1"])
    assert code == 0, said
    assert "skipped" not in said, said


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("mode", "clients", "loss"), [*((mode, 1, "0") for mode in MODES), ("window", 2, "1%")])
def test_each_mode_moves_updates_over_the_device(tmp_path: Path, mode: str, clients: int, loss: str) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.format(mode=mode, clients=clients, loss=loss))
    done = thalweg(tmp_path, "run", "plan.toml", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    record = record_of(tmp_path, done.stdout)
    assert "updates go over the RDMA device rxe0, in packets of 4096 bytes" in (record / "log.txt").read_text()
    network = json.loads((record / "manifest.json").read_text())["network"]
    assert network["rdma"]["server"] == "rxe0"
    assert network["rdma"]["client-1"] == "rxe1"
    transfers = read_run(record).transfers
    assert len(transfers) == 4 * clients
    assert all(row.complete and row.bytes == MIB for row in transfers)


@pytest.mark.usefixtures("built")
def test_a_lossy_job_takes_the_same_times_again(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.format(mode="window", clients=1, loss="1%"))
    first, second = (_transfers(tmp_path) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        # A few packets of other origin arrive at random times. They shift the relay's deliveries by up to its step of
        # 50 us.
        assert one == pytest.approx(other, abs=2e-4)


def _transfers(folder: Path) -> list[dict[str, object]]:
    done = thalweg(folder, "run", "plan.toml", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return [table_of(row) for row in read_run(record_of(folder, done.stdout)).transfers]
