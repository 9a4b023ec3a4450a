"""Jobs with injected faults over the guest kernel's RDMA devices: how they end, and the errors of their links."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.lab.breaking import UPDATE
from tests.lab.test_guest import built
from thalweg.lab import guest
from thalweg.record.rows import Transfer
from thalweg.report.source import Run, read_run

__all__ = ["built"]
pytestmark = pytest.mark.usefixtures("built")

BREAKING: Final = Path(__file__).with_name("breaking.py")
ROUNDS: Final = 3
#: Each client adds the same whole number in a round. So the mean is exact, and every round has a different model.
APP: Final = """
import numpy as np

class App:
    def model(self):
        return {{"values": np.zeros({values}, np.float32)}}
    def client_data(self, name, index, clients, seed):
        return None
    def train(self, model, data, config):
        model["values"] += np.arange({values}, dtype=np.float32) % 251
        return 1, {{}}
"""
PLAN: Final = """
app = "app.py:App"
[job]
clients = {clients}
rounds = {rounds}
grace = 20
[transport]
url = "rdma"
[network]
clock = "virtual"
rate = "200mbit"
rtt = "20ms"
mtu = 4200
"""


@dataclass(frozen=True)
class Came:
    """The result of a job."""

    job: dict[str, Any]
    run: Run
    log: str
    values: np.ndarray[Any, np.dtype[np.float32]]

    @property
    def up(self) -> list[Transfer]:
        """The transfers of client-1 to the server."""
        return [row for row in self.run.transfers if (row.client, row.direction) == ("client-1", "up")]

    def check(self) -> None:
        """Assert that all rounds were complete and the model is right bit for bit."""
        assert [(one["participants"], one["complete"]) for one in self.job["rounds"]] == [(1, True)] * ROUNDS
        self.check_model()

    def check_model(self) -> None:
        assert np.array_equal(self.values, ROUNDS * (np.arange(self.values.size, dtype=np.float32) % 251))


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a job inside the guest, and inject a fault."""

    def run(fault: str, clients: int = 1, *before: str) -> Came:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "app.py").write_text(APP.format(values=UPDATE // 4))
        (tmp_path / "plan.toml").write_text(PLAN.format(clients=clients, rounds=ROUNDS))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        code, said = guest.run([*before, sys.executable, str(BREAKING), fault, "plan.toml"], limit=300)
        assert code == 0, said
        job = json.loads(said)
        assert "error" not in job, job
        record = tmp_path / job["record"]
        values = load_file(record / "checkpoint.safetensors")["values"]
        return Came(job, read_run(record), (record / "log.txt").read_text(), values)

    return run


def test_without_a_fault_updates_go_over_the_device(broken: Any) -> None:
    came = broken("none")
    came.check()
    assert "updates go over the RDMA device rxe0, in packets of 4096 bytes" in came.log


def test_a_client_that_is_killed_is_named_and_the_others_go_on(broken: Any) -> None:
    came = broken("client killed", 2)
    assert [one["participants"] for one in came.job["rounds"]] == [2, 1, 1]
    (absent,) = came.job["absent"]
    assert (absent["client"], absent["left"]) == ("client-1", True)
    assert "client-1 is gone: killed by signal 9" in came.log
    came.check_model()


def test_after_the_server_was_killed_the_devices_are_free_again(broken: Any) -> None:
    came = broken("server killed")
    came.check()
    assert "updates go over the RDMA device rxe0" in came.log


@pytest.mark.parametrize(("fault", "seconds"), [("pair broken", 3.0), ("port flap", 0.3), ("long port flap", 3.0)])
def test_an_interrupted_transfer_resumes_with_the_missing_bytes(broken: Any, fault: str, seconds: float) -> None:
    came = broken(fault)
    came.check()
    took = [row.receive_end - row.send_start for row in came.up]
    assert took[1] > seconds > took[0], "nothing was interrupted"
    assert [row.resumed for row in came.up] == [0, 0, 0], "the link itself was kept"
    assert came.up[1].wire_bytes < 1.5 * UPDATE
    assert "is tcp" not in came.log


@pytest.mark.parametrize("fault", ["port filtered", "port filtered at the client", "long packets filtered"])
def test_a_link_whose_packets_are_filtered_is_tcp_and_says_so(broken: Any, fault: str) -> None:
    came = broken(fault)
    came.check()
    assert "is tcp: " in came.log
    assert "a firewall may drop UDP port 4791, or the path's MTU is below 4096 bytes; open the port, or set" in came.log


def test_with_little_locked_memory_the_link_is_tcp_and_says_so(broken: Any) -> None:
    # A process that may lock any amount of memory has no such limit.
    came = broken("little may be locked", 1, "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
    came.check()
    assert "is tcp: " in came.log
    assert "ulimit -l unlimited" in came.log


def test_hosts_of_different_mtu_agree_on_the_shorter_packets(broken: Any) -> None:
    came = broken("shorter packets")
    came.check()
    assert "updates go over the RDMA device rxe0, in packets of 1024 bytes" in came.log
