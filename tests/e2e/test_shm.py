"""Jobs over shared memory: chosen by ``auto``, no copies, processes of one user only, killed processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.e2e.conftest import Start
from thalweg.outcome import Transfer
from thalweg.record import Record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="shared memory by descriptors is Linux's"),
]
Run = Callable[..., Any]
PAYLOAD = ("--model", "payload:3MiB", "--clients", "3")
# Connects as a process of another user, and prints how the connection ends.
STRANGER = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect("\\0" + sys.argv[1])
try:
    peer.sendall(b"tlwshm\\x01\\0")
    print(len(peer.recv(8)))
except ConnectionError:
    print(0)
"""


# An app that computes every value from the received model, the client and the round.
APP = """
import numpy as np

class App:
    def model(self):
        return {"weights": np.linspace(0, 1, 300_000, dtype=np.float32)}
    def client_data(self, name, index, clients, seed):
        return index + 1
    def train(self, model, data, config):
        model["weights"] *= np.float32(1.5 + data)
        model["weights"] += np.sin(model["weights"])
        return data, {}
    def test_data(self):
        return None
    def evaluate(self, model, data):
        return {"loss": float(model["weights"].mean())}
"""


def sockets() -> dict[str, str]:
    """Return the inode and the name of each socket of the transport, of every process of this machine."""
    match = re.findall(r"([0-9]+) @(thalweg-shm-[0-9]+)", Path("/proc/net/unix").read_text())
    return dict(match)


def sockets_of(process: int) -> set[str]:
    """Return the names of the transport's sockets that this process has; other programs may have such sockets too."""
    held = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            held.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    return {name for inode, name in sockets().items() if inode in held}


def transfers(record: Record) -> list[Transfer]:
    return [transfer for entry in record.entries for transfer in entry["transfers"]]


@pytest.mark.parametrize("more", [(), ("--partial", "keep"), ("--deterministic",)])
def test_a_run_over_shared_memory_copies_no_byte(result: Run, tmp_path: Path, more: tuple[str, ...]) -> None:
    done = result("run", "--transport", "shm", *PAYLOAD, "--rounds", "3", *more)
    assert [(entry["participants"], entry["complete"]) for entry in done["rounds"]] == [(3, True)] * 3
    assert (done["transport"], done["transport_reason"]) == ("shm", None)
    moved = transfers(Record(tmp_path / done["record"]))
    assert len(moved) == 3 * 3 * 2
    assert {transfer["copied"] for transfer in moved} == {0}
    assert all(transfer["bytes"] == 3 << 20 for transfer in moved)


def test_what_is_trained_is_the_same_as_over_tcp(result: Run, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(APP)
    models = []
    for transport in ("tcp", "shm"):
        done = result("run", "--app", "own.py:App", "--transport", transport, "--clients", "3", "--rounds", "3",
                      "--deterministic")  # fmt: skip
        (path,) = (tmp_path / done["record"]).rglob("*.safetensors")
        models.append(load_file(path)["weights"])
        copied = {transfer["copied"] for transfer in transfers(Record(tmp_path / done["record"]))}
    assert (models[0] == models[1]).all()
    assert models[1].std() > 0.1, "nothing was trained"
    assert copied == {0}


@pytest.mark.parametrize(
    ("more", "transport", "reason"),
    [
        ((), "shm", "all parties are on this machine and no network is emulated"),
        (("--congestion", "reno"), "tcp", "transport.congestion asks for TCP's"),
        (("--network", "rate=100mbit", "--emulator", "message"), "tcp", "a network is emulated"),
    ],
)
@pytest.mark.parametrize("named", [(), ("--transport", "auto")])
def test_a_run_chooses_its_transport_and_says_why(
    result: Run, tmp_path: Path, *, named: tuple[str, ...], more: tuple[str, ...], transport: str, reason: str
) -> None:
    done = result("run", *named, "--model", "payload:64KiB", "--clients", "2", "--rounds", "1", *more)
    assert (done["transport"], done["transport_reason"]) == (transport, reason)
    record = Record(tmp_path / done["record"])
    assert record.manifest["transport_reason"] == reason
    assert record.plan.scheme == transport


def test_a_graph_says_why_too(result: Run, tmp_path: Path) -> None:
    done = result("run", "--model", "payload:64KiB", "--graph", "full", "--clients", "3", "--rounds", "2")
    record = Record(tmp_path / done["record"])
    assert (record.plan.scheme, record.manifest["transport_reason"]) == (
        "shm",
        "all parties are on this machine and no network is emulated",
    )
    assert done["bytes_sent"] > 0


def test_a_client_that_is_killed_is_left_out_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    program = start("run", "--transport", "shm", "--model", "payload:8MiB", "--clients", "3", "--rounds", "60",
                    "--enough", "2", "--compute", "50ms", "--json")  # fmt: skip
    program.until("round 2/60")
    names = sockets_of(program.process.pid)
    assert names
    os.kill(program.children()[1], signal.SIGKILL)
    program.until("is gone: killed by signal 9")
    code, out, err = program.end()
    assert code == 0, err
    done = json.loads(out)
    assert done["rounds"][-1]["participants"] == 2
    assert len(done["rounds"]) == 60
    assert names.isdisjoint(sockets().values())


def test_a_server_that_is_killed_leaves_nothing(start: Start) -> None:
    program = start("run", "--transport", "shm", *PAYLOAD, "--rounds", "100000")
    program.until("round 2/")
    children = program.children()
    names = sockets_of(program.process.pid)
    assert names
    program.process.kill()
    program.end()
    for child in children:
        while (state := state_of(child)) not in ("", "Z"):
            assert state, "a client outlives its server"
    assert names.isdisjoint(sockets().values())


def state_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_is_turned_away(start: Start, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[job]\nrounds = 2\nclients = 1\n[model]\nname = 'payload:1MiB'\n")
    server = start("server", "job.toml", "--listen", "shm://localhost:0", "--json")
    line = server.until("listening on")
    match = re.search(r"shm://localhost:([0-9]+)", line)
    assert match is not None, line
    stranger = subprocess.run(
        ["/usr/bin/env", "python3", "-c", STRANGER, f"thalweg-shm-{match[1]}"],
        user=65534, cwd="/", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert stranger.stdout.strip() == "0", "it got an answer"
    server.until("runs as user 65534, this process as user 0")
    client = start("client", f"shm://localhost:{match[1]}", "--name", "anna", "--json")
    code, out, err = server.end()
    assert code == 0, err
    assert [entry["participants"] for entry in json.loads(out)["rounds"]] == [1, 1]
    assert client.end()[0] == 0
