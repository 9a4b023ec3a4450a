"""Nodes of a tree as Ray actors: Ray places and restarts them, and a Ray that the run started leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import Program
from thalweg.record import Record

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does"),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: make test-extras"),
]

Run = Callable[..., Any]
Start = Callable[..., Program]

TOKEN: Final = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "ab" * 32}
JOB: Final = ("--model", "payload:1MiB", "--clients", "4", "--aggregation", "tree", "--placement", "worst-fit")
# Seconds that a raylet may take to start on a busy machine.
TIMEOUT: Final = 120


class Cluster:
    """A Ray cluster of two machines, which are two addresses of this machine."""

    def __init__(self, folder: Path, **environment: str) -> None:
        own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)}
        self._environment = {**os.environ, **TOKEN, **own, **environment}
        with socket.create_server(("127.0.0.2", 0)) as there:
            self.address = f"127.0.0.2:{there.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        self.log = folder / "ray.txt"
        head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}")
        self.processes = [self._start("127.0.0.2", *head)]
        self._wait(lambda: _listens(self.address))
        self.processes.append(self._start("127.0.0.3", f"--address={self.address}"))
        self._wait(lambda: len(self.pids("raylet/raylet")) == 2)

    def _start(self, address: str, *options: str) -> subprocess.Popen[bytes]:
        size = ("--num-cpus=2", "--object-store-memory=80000000", f"--node-ip-address={address}", "--block")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *size, *options]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def _wait(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + TIMEOUT
        while not ready():
            assert time.monotonic() < until, self.log.read_text()
            assert all(process.poll() is None for process in self.processes), self.log.read_text()
            time.sleep(0.1)

    def pids(self, words: str, *, at: int | None = None) -> list[int]:
        """Return the cluster's processes whose command line has these words; with ``at``, only those of one machine."""
        roots = [process.pid for process in (self.processes if at is None else [self.processes[at]])]
        return [pid for pid in below(roots) if words in _command(pid)]

    def end(self) -> None:
        every = below([process.pid for process in self.processes])
        for process in reversed(self.processes):
            process.terminate()
            process.wait(TIMEOUT)
        for pid in every:
            if "ray" in _command(pid):
                os.kill(pid, signal.SIGKILL)


Clusters = Callable[..., Cluster]


def below(roots: list[int]) -> list[int]:
    """Return these processes and all their descendants."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = list(roots)
    for root in found:
        found += [pid for pid, parent in parents.items() if parent == root]
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clusters]:
    """Start clusters with more in their environment."""
    for key, value in TOKEN.items():
        monkeypatch.setenv(key, value)
    # A socket's path has at most 107 bytes.
    folder, made = Path(tempfile.mkdtemp(prefix="ray-")), list[Cluster]()

    def begin(**environment: str) -> Cluster:
        made.append(Cluster(folder, **environment))
        return made[-1]

    yield begin
    for cluster in made:
        cluster.end()
    shutil.rmtree(folder, ignore_errors=True)


def test_ray_places_nodes_and_restarts_them(clusters: Clusters, start: Start, tmp_path: Path) -> None:
    """A killed actor returns, with its clients. If a machine is killed, only its clients are lost."""
    cluster = clusters()
    begun = ("run", *JOB, "--engine", "ray", "--ray-address", cluster.address, "--nodes")
    code, _, said = start(*begun, "3", "--ray-wait", "1").end()
    assert code != 0
    assert "Ray has no 3 machines with 2 free CPUs each" in said

    run = start(*begun, "2", "--rounds", "10000", "--record", "kept")
    run.until("4 of 4 clients")
    (actor,) = cluster.pids("ray::NodeActor", at=1)
    os.kill(actor, signal.SIGKILL)
    run.until("is back")
    run.until("4 of 4 clients")
    (raylet,) = cluster.pids("raylet/raylet", at=1)
    os.kill(raylet, signal.SIGKILL)
    run.until("2 of 4 clients")
    run.until("2 of 4 clients")
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    (folder,) = (tmp_path / "kept").iterdir()
    engine = Record(folder).manifest["engine"]
    assert engine["name"] == "ray"
    assert {node["address"] for node in engine["nodes"].values()} == {"127.0.0.2", "127.0.0.3"}


def test_machines_with_another_thalweg_are_named(clusters: Clusters, start: Start, tmp_path: Path) -> None:
    """Ray cannot make the actors there; what it says goes to the record's log."""
    (tmp_path / "other" / "thalweg").mkdir(parents=True)
    (tmp_path / "other" / "thalweg" / "__init__.py").touch()
    path = os.pathsep.join([str(tmp_path / "other"), *filter(None, [os.environ.get("PYTHONPATH")])])
    cluster = clusters(PYTHONPATH=path)
    run = ("run", *JOB, "--engine", "ray", "--ray-address", cluster.address, "--nodes", "2", "--record", "kept")
    code, _, said = start(*run).end()
    assert code == 1
    assert "could not take part: its machine cannot start it: ModuleNotFoundError: No module named 'thalweg" in said
    assert "Install the same release of thalweg on all machines" in said
    (folder,) = (tmp_path / "kept").iterdir()
    assert "The actor died because of" in (folder / "log.txt").read_text()


def test_without_a_token_a_cluster_cannot_be_joined(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as there:
        address = f"127.0.0.1:{there.getsockname()[1]}"
        code, _, said = start("run", *JOB, "--engine", "ray", "--ray-address", address, "--nodes", "2").end()
    assert code == 1
    assert f"the Ray cluster at {address} cannot be joined: Token authentication is enabled but no" in said
    assert "have its token (RAY_AUTH_TOKEN, or" in said


def test_a_ray_of_ones_own_leaves_nothing(start: Start, tmp_path: Path) -> None:
    run = start("run", *JOB, "--engine", "ray", "--nodes", "2", "--rounds", "10000")
    run.until("4 of 4 clients")
    every = below([run.process.pid])
    assert any("raylet/raylet" in _command(pid) for pid in every)
    (folder,) = {part for pid in every for part in _command(pid).split() if part.startswith("--session-dir=")}
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    until = time.monotonic() + TIMEOUT
    while left := [pid for pid in every if _command(pid)]:
        assert time.monotonic() < until, [_command(pid) for pid in left]
        time.sleep(0.1)
    assert not Path(folder.partition("=")[2]).parent.exists()


def test_the_mean_is_that_of_one_server(result: Run, tmp_path: Path) -> None:
    def trained(name: str, *options: str) -> bytes:
        base = ["--model", "lenet", "--data", "digits", "--clients", "2", "--rounds", "1", "--deterministic"]
        done = result("run", *base, *options, "--record", name)
        path: Path = tmp_path / done["record"] / "checkpoint.safetensors"
        return path.read_bytes()

    tree = ("--aggregation", "tree", "--nodes", "2", "--placement", "worst-fit", "--engine", "ray")
    assert trained("star") == trained("tree", *tree)
