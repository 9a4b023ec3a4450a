"""A signal ends a command: its output and its record report that, and no process is left.

A terminal sends Ctrl-C to all processes of its foreground group at once. Service managers, containers and shells send
SIGTERM and SIGHUP to the command alone, or to all of its processes.
"""

from __future__ import annotations

import json
import os
import pty
import secrets
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.e2e.conftest import why_no_lab
from thalweg.brokers.base import installed
from thalweg.record import Record

pytestmark = pytest.mark.e2e

RUN = ["run", "--clients", "2", "--rounds", "100000", "--model"]
PAYLOAD = [*RUN, "payload:256KiB"]
# Seconds after which a program that ignores Ctrl-C fails its test. It is no limit on speed.
HUNG_SECONDS = 120.0
BENCH = 'repetitions = 9\n[base]\njob = {clients = 2, rounds = 9}\nmodel = {name = "lenet"}\n'
LONG = 'repetitions = 9\n[base]\njob = {clients = 2, rounds = 300}\nmodel = {name = "payload:256KiB"}\n'
LAB = pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
MQTT = pytest.mark.skipif(installed("mosquitto") is None, reason="mosquitto is not installed: make system")
AMQP = pytest.mark.skipif(installed("rabbitmq-server") is None, reason="rabbitmq-server is not installed: make system")


class Terminal:
    """A program in the foreground of a terminal, in a process group of its own. All its descendants can be found."""

    def __init__(self, arguments: list[str], folder: Path, through: Sequence[str] = ()) -> None:
        self.mark = f"THALWEG_TEST={secrets.token_hex(8)}"
        name, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [*through, sys.executable, "-m", *arguments],
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
        """Send Ctrl-C; return the exit code, the output after it, and the programs that are left at the end."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self._ended()

    def terminate(self, number: signal.Signals, *, everyone: bool = False) -> tuple[int, str, list[str]]:
        """Send a signal to the command, or to each of its processes as a service manager does; return the same."""
        for pid in [self.process.pid, *(self.pids() if everyone else ())]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return self._ended()

    def _ended(self) -> tuple[int, str, list[str]]:
        self.process.wait(HUNG_SECONDS)  # it usually ends within two seconds
        left = self.left()
        _, said = self.process.communicate()
        return self.process.returncode, said, left

    def left(self) -> list[str]:
        return [command for _, command in self._processes()]

    def pids(self) -> list[int]:
        return [pid for pid, _ in self._processes()]

    def _processes(self) -> list[tuple[int, str]]:
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                try:
                    if self.mark.encode() in (path / "environ").read_bytes():
                        command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        found.append((int(path.name), command))
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
        # With `exec`, because dash loses a Ctrl-C that arrives while it starts another program, and then waits for
        # that.
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


APP = """
import numpy as np


class App:
    def model(self):
        return {"w": np.zeros(10, np.float32)}

    def client_data(self, name, index, clients, seed):
        return index

    def train(self, model, data, config):
        model["w"] += 1
        return 1, {}
"""
OWN = ["run", "--clients", "2", "--rounds", "10000", "--app", "app.py:App"]
GRAPH = [*PAYLOAD, "--graph", "ring"]
TREE = [*OWN, "--aggregation", "tree", "--nodes", "2", "--placement", "worst-fit"]
FLOWER = Path(__file__).parents[1] / "flower" / "apps" / "adder"
PLAN_OF_NODES = """
[job]
graph = "ring"
clients = 2
rounds = 9
[hosts.nodes]
a = "127.0.0.1:0"
b = "127.0.0.1:1"
"""


@pytest.mark.parametrize("everyone", [False, True])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(OWN, "round 2/", id="star"),
        pytest.param([*OWN, "--transport", "memory"], "round 2/", id="threads"),
        pytest.param(GRAPH, "iteration 2", id="graph"),
        pytest.param(TREE, "round 2/", id="tree"),
        pytest.param([*OWN, "--aggregation", "tree"], "round 2/", id="workers"),
        pytest.param([*PAYLOAD, "--network", "rate=20mbit", "--emulator", "packet"], "round 2/", marks=LAB, id="lab"),
        pytest.param([*PAYLOAD, "--transport", "mqtt"], "round 2/", marks=MQTT, id="mqtt"),
        pytest.param([*PAYLOAD, "--transport", "amqp"], "round 2/", marks=AMQP, id="amqp"),
    ],
)
def test_sigterm_ends_a_job_with_its_record(
    opened: list[Terminal], tmp_path: Path, arguments: list[str], words: str, everyone: bool
) -> None:
    (tmp_path / "app.py").write_text(APP)
    opened.append(Terminal(["thalweg", *arguments], tmp_path))
    opened[-1].until(words)
    code, said, left = opened[-1].terminate(signal.SIGTERM, everyone=everyone)
    assert left == []
    assert code == 128 + signal.SIGTERM, said
    assert said.splitlines()[-1] == "interrupted"
    assert "Traceback" not in said
    (folder,) = (tmp_path / "runs").iterdir()
    record = Record(folder)
    assert record.manifest["status"] == "interrupted"
    assert pyarrow.parquet.read_table(folder / "rounds.parquet").num_rows == len(record.entries) >= 1
    if "--app" in arguments:
        done = record.checkpoint_round
        assert f"to go on after round {done}: thalweg run --resume runs/{folder.name}" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["server", "--listen", "tcp://127.0.0.1:0"], "waiting for", None),
        (["client", "tcp://127.0.0.1:1"], "joining", None),
        (["node", "tcp://127.0.0.1:0", "--parent", "tcp://127.0.0.1:1", "--clients", "1"], "joining", None),
        (["node", "nodes.toml", "--name", "a"], "waiting for", None),
        (["tree", "calibrate", "--seconds", "600"], "", None),
        (["bench", "plan.toml"], "[1/9]", None),
        (["flower", "server", "app"], "waiting for", None),
        (["doctor", "--serve", "tcp://127.0.0.1:0"], "answering", None),
        # These commands run until a signal ends them, so a signal is their normal end.
        (["forward", "--listen", "tcp://127.0.0.1:0", "--to", "127.0.0.1:1"], "listening", 0),
        (["forward", "--mask", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--plain"], "listening", 0),
        pytest.param(["lab", "exec", "--network", "lan", "--", "sh", "-c", "echo here >&2; exec sleep 600"], "here",
                     None, marks=LAB),
    ],
)  # fmt: skip
def test_sigterm_and_sighup_end_each_command(  # noqa: PLR0917 - pytest gives them
    opened: list[Terminal],
    tmp_path: Path,
    arguments: list[str],
    words: str,
    code: int | None,
    number: signal.Signals,
) -> None:
    (tmp_path / "plan.toml").write_text(LONG)
    (tmp_path / "nodes.toml").write_text(PLAN_OF_NODES)
    if arguments[0] == "flower":
        pytest.importorskip("flwr")
        shutil.copytree(FLOWER, tmp_path / "app")
    opened.append(Terminal(["thalweg", *arguments], tmp_path))
    opened[-1].until(words)
    ended, said, left = opened[-1].terminate(number)
    assert left == []
    assert ended == (128 + number if code is None else code), said
    assert "Traceback" not in said
    assert code is not None or said.splitlines()[-1] == "interrupted"
    records = [json.loads(path.read_text())["status"] for path in tmp_path.rglob("manifest.json")]
    assert set(records) <= {"interrupted", "complete"}, "none says that it still runs"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_as_the_first_process_of_a_container_it_ends_too(
    opened: list[Terminal], tmp_path: Path, number: signal.Signals
) -> None:
    """The kernel delivers a signal to PID 1 only if that process has a handler for it."""
    own = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make a PID namespace")
    opened.append(Terminal(["thalweg", "server", "--listen", "tcp://127.0.0.1:0"], tmp_path, through=own))
    opened[-1].until("waiting for")
    outer = opened[-1].process.pid
    (first,) = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    os.kill(int(first), number)
    code, said, left = opened[-1]._ended()
    assert (code, left) == (128 + number, []), said
    (folder,) = (tmp_path / "runs").iterdir()
    assert Record(folder).manifest["status"] == "interrupted"


def test_a_terminal_that_is_closed_ends_a_run_in_good_order(tmp_path: Path) -> None:
    """The command drops its last output, because an error on writing to the closed terminal would stop its clean-up."""
    here, there = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-m", "thalweg", *PAYLOAD],
        stdin=there, stdout=there, stderr=there, cwd=tmp_path, start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # noqa: PLW1509 - which makes it its terminal
    )  # fmt: skip
    os.close(there)
    said = b""
    while b"round 2/" not in said:
        assert select.select([here], [], [], HUNG_SECONDS)[0], said
        said += os.read(here, 1 << 16)
    os.close(here)
    assert run.wait(HUNG_SECONDS) == 128 + signal.SIGHUP
    (folder,) = (tmp_path / "runs").iterdir()
    assert Record(folder).manifest["status"] == "interrupted"
