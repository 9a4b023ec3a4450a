"""Ctrl-C as a terminal sends it, to all processes in front at once: it is told, and nothing is left."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import why_no_lab
from thalweg.brokers.base import installed

pytestmark = pytest.mark.e2e

RUN = ["run", "--clients", "2", "--rounds", "100000", "--model"]
PAYLOAD = [*RUN, "payload:256KiB"]
# No measure of speed: without it a program that does not hear Ctrl-C would hold up the tests for ever.
HUNG_SECONDS = 120.0
BENCH = 'repetitions = 9\n[base]\njob = {clients = 2, rounds = 9}\nmodel = {name = "lenet"}\n'
LAB = pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
MQTT = pytest.mark.skipif(installed("mosquitto") is None, reason="mosquitto is not installed: make system")
AMQP = pytest.mark.skipif(installed("rabbitmq-server") is None, reason="rabbitmq-server is not installed: make system")


class Terminal:
    """A program in front of a terminal: a group of processes of its own, all of whose descendants can be found."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.mark = f"THALWEG_TEST={secrets.token_hex(8)}"
        name, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd()), name: value},
            start_new_session=True,
        )

    def until(self, words: str) -> None:
        assert self.process.stderr is not None
        seen = []
        for line in self.process.stderr:
            seen.append(line)
            if words in line:
                return
        raise AssertionError(f"{words!r} did not come; it said: {''.join(seen)}")

    def interrupt(self) -> tuple[int, str, list[str]]:
        """Send Ctrl-C; return the exit code, what it said then, and the programs that are left at its end."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(HUNG_SECONDS)  # it ends in two; one that never does fails here
        left = self.left()
        _, said = self.process.communicate()
        return self.process.returncode, said, left

    def left(self) -> list[str]:
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                try:
                    if self.mark.encode() in (path / "environ").read_bytes():
                        found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
                except OSError:  # it has ended meanwhile
                    continue
        return found


@pytest.fixture
def opened() -> Iterator[list[Terminal]]:
    terminals: list[Terminal] = []
    yield terminals
    for terminal in terminals:
        if terminal.process.poll() is None:
            os.killpg(terminal.process.pid, signal.SIGKILL)
            terminal.process.communicate()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*RUN, "lenet"], "preparing"),
        ([*RUN, "lenet"], "starting 2 clients"),
        ([*RUN, "lenet"], "round 1/"),
        ([*RUN, "lenet", "--transport", "memory"], "round 1/"),
        pytest.param([*PAYLOAD, "--network", "rate=20mbit", "--emulator", "packet"], "packet level", marks=LAB),
        pytest.param([*PAYLOAD, "--network", "rate=20mbit", "--emulator", "packet"], "round 1/", marks=LAB),
        pytest.param([*PAYLOAD, "--transport", "mqtt"], "mosquitto", marks=MQTT),
        pytest.param([*PAYLOAD, "--transport", "amqp"], "rabbitmq-server", marks=AMQP),
        (["server", "--listen", "tcp://127.0.0.1:0"], "waiting for"),
        (["client", "tcp://127.0.0.1:1"], "joining"),
        (["bench", "plan.toml"], "bench: "),
        (["bench", "plan.toml"], "[1/9]"),
        # `exec`, since dash loses a Ctrl-C that comes while it starts another program, and waits for that.
        pytest.param(["lab", "exec", "--network", "lan", "--", "sh", "-c", "echo here >&2; exec sleep 600"], "here",
                     marks=LAB),
        (["doctor", "--serve", "tcp://127.0.0.1:0"], "answering"),
    ],
)  # fmt: skip
def test_ctrl_c_ends_everything_and_says_so(
    opened: list[Terminal], tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "plan.toml").write_text(BENCH)
    opened.append(Terminal(["thalweg", *arguments], tmp_path))
    opened[-1].until(words)
    code, said, left = opened[-1].interrupt()
    assert left == []
    assert code == 130, said
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said


def test_an_experiment_too(opened: list[Terminal], tmp_path: Path) -> None:
    opened.append(
        Terminal(["experiments", "run", "fedcomm/fig03", "--scale", "ci", "--out", str(tmp_path)], Path.cwd())
    )
    opened[-1].until("mode paper")
    code, said, left = opened[-1].interrupt()
    assert (code, left) == (130, [])
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said
