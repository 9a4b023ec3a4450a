"""Labs without a network: each has a real folder and supervisor, and a fake core."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from thalweg import _core
from thalweg.lab import state as states
from thalweg.lab.client import RunningLab
from thalweg.lab.supervisor import Supervisor
from thalweg.lab.values import Host

SPEC = {
    "hosts": [{"name": "server"}, {"name": "client-1"}],
    "links": [{"name": "client-1", "a": "client-1", "b": "server"}],
}
SHAPE: dict[str, Any] = {"rate": 100_000_000, "delay": 0.02, "loss": 0.01, "burst": None, "queue_bytes": 65536}


class FakeLab:
    """A fake ``_core.Lab`` that keeps shapes in memory."""

    def __init__(self) -> None:
        self.shapes = {"ab": dict(SHAPE), "ba": dict(SHAPE)}
        self.began = 0
        self.closed = False
        self.broken: str | None = None

    def hosts(self) -> str:
        hosts = enumerate(("server", "client-1"), 1)
        return json.dumps(
            {
                name: {"namespace": f"/none/{name}", "inode": -n, "ipv4": f"10.77.0.{n}", "ipv6": f"fd77::{n}"}
                for n, name in hosts
            }
        )

    def start(self) -> None:
        self.began += 1

    def set(self, link: str, direction: str | None, shape: str) -> None:
        if link != "client-1":
            raise _core.CoreError(f"there is no link {link}", "take another", kind="config", operation="set link")
        for way in self.shapes if direction is None else (direction,):
            self.shapes[way] = json.loads(shape)

    def status(self) -> str:
        links = [{"link": "client-1", "direction": way, "shape": shape} for way, shape in self.shapes.items()]
        return json.dumps({"elapsed": 1.5, "relay": {"failure": self.broken}, "links": links, "hosts": {}})

    def samples(self) -> str:
        return json.dumps([{"seconds": 0.5, "link": "client-1", "direction": "ab", "queue_bytes": 0, "bytes_out": 0}])

    def failure(self) -> str | None:
        return self.broken

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for labs of this test alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


StartLab = Callable[..., tuple[RunningLab, FakeLab, Supervisor]]


@pytest.fixture
def start_lab(runtime: Path) -> Iterator[StartLab]:
    """Supervise labs in threads of this process; end those that still run after the test."""
    running: list[tuple[Supervisor, threading.Thread]] = []

    def start(name: str = "wan") -> tuple[RunningLab, FakeLab, Supervisor]:
        lab = FakeLab()
        state = states.claim(name, unique=True)
        hosts = {name: Host(**host) for name, host in json.loads(lab.hosts()).items()}
        state = states.State(state.name, os.getpid(), state.started, hosts, tuple(SPEC["links"]), ())
        state.write()
        supervisor = Supervisor(lab, state)
        thread = threading.Thread(target=supervisor.serve)
        thread.start()
        running.append((supervisor, thread))
        return RunningLab(state), lab, supervisor

    yield start
    for supervisor, thread in running:
        supervisor.end()
        thread.join(30)
        assert not thread.is_alive()
