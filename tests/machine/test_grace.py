"""After Ctrl-C, waiting for other programs to end has a much shorter timeout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from thalweg.bench import process
from thalweg.brokers import base
from thalweg.job.common.fleet import ClientOrder, Fleet, Member
from thalweg.lab import client, inside, namespaces
from thalweg.lab import state as states
from thalweg.lab.values import Answer, Host
from thalweg.machine import grace
from thalweg.machine.grace import HURRIED_SECONDS, is_hurried, within


def interrupted(do: Callable[[], Any]) -> Any:
    """Call ``do`` while Ctrl-C ends the command, and return its result."""
    with suppress(KeyboardInterrupt):
        try:
            raise KeyboardInterrupt
        finally:
            value = do()
    return value


def test_only_an_interruption_is_in_a_hurry() -> None:
    assert not is_hurried()
    assert within(10.0) == 10.0
    assert interrupted(is_hurried)
    assert interrupted(lambda: within(10.0)) == HURRIED_SECONDS
    assert interrupted(lambda: within(0.1)) == 0.1, "never longer"
    assert interrupted(lambda: within(30.0, 1.5)) == 1.5
    with suppress(ValueError):
        try:
            raise ValueError
        finally:
            assert not is_hurried()
    assert not is_hurried(), "and then it is over"


def test_context_managers_and_what_fails_meanwhile_are_in_a_hurry_too() -> None:
    seen: list[bool] = []

    @contextmanager
    def ending() -> Any:
        try:
            yield
        finally:
            seen.append(is_hurried())

    class Ending:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            try:
                raise OSError
            except OSError:
                seen.append(is_hurried())

    with pytest.raises(KeyboardInterrupt), ending(), Ending():
        raise KeyboardInterrupt
    assert seen == [True, True]


class Ignores:
    """A fake process that ends only when it is killed. It stores the timeouts with which it was waited for."""

    returncode = None

    def __init__(self) -> None:
        self.waits: list[float | None] = []
        self.signals: list[str] = []

    def poll(self) -> None:
        return None

    def send_signal(self, number: int) -> None:
        self.signals.append(signal.Signals(number).name)

    def kill(self) -> None:
        self.signals.append("SIGKILL")

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        self.waits.append(timeout)
        if timeout is not None:
            raise subprocess.TimeoutExpired("x", timeout)
        return b"", b""


def test_a_benchs_run_that_does_not_end_is_killed_soon() -> None:
    ordinary, hurried = Ignores(), Ignores()
    process._end(ordinary)  # type: ignore[arg-type]
    interrupted(lambda: process._end(hurried))  # type: ignore[arg-type]
    assert ordinary.signals == hurried.signals == ["SIGTERM", "SIGKILL"]
    assert ordinary.waits == [process.END_SECONDS, None]
    assert hurried.waits == [process.HURRIED_SECONDS, None]
    assert process.HURRIED_SECONDS < 2


def test_clients_are_ended_at_once(tmp_path: Path) -> None:
    notes: list[str] = []

    class Client(Ignores):
        def terminate(self) -> None:
            notes.append("terminate")
            ended.set()

    ended = threading.Event()
    fleet: Fleet[ClientOrder] = Fleet(tmp_path / "log.txt", lambda *_: None)
    thread = threading.Thread(target=ended.wait, daemon=True)
    fleet.members.append(Member("client-1", thread, Client()))  # type: ignore[arg-type]
    thread.start()
    interrupted(fleet.stop)
    assert notes == ["terminate"]
    assert not thread.is_alive()


def test_threads_of_clients_are_not_waited_for(tmp_path: Path) -> None:
    forever = threading.Event()
    fleet: Fleet[ClientOrder] = Fleet(tmp_path / "log.txt", lambda *_: None, in_process=True)
    thread = threading.Thread(target=forever.wait, daemon=True)
    fleet.members.append(Member("client-1", thread))
    thread.start()
    interrupted(fleet.stop)
    assert thread.is_alive(), "it ends with the process"
    forever.set()


def test_a_broker_that_is_interrupted_while_it_starts_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    class Run:
        def __init__(self, *_: object) -> None: ...

        def wait(self) -> bool:
            raise KeyboardInterrupt

        def stop(self) -> None:
            notes.append("killed" if is_hurried() else "stopped")

    class Program:
        name = "played"

        def find(self) -> str:
            return "here"

    monkeypatch.setattr(base, "_Run", Run)
    monkeypatch.setattr(base, "reap", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        base.Broker(Program(), base.BrokerPlace())  # type: ignore[arg-type]
    assert notes == ["killed"]


def test_a_lab_is_asked_to_give_programs_inside_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, float]] = []

    def exchange(_: object, request: dict[str, object], seconds: float) -> Answer:
        asked.append((request["grace"], seconds))
        return Answer()

    monkeypatch.setattr(client, "exchange", exchange)
    ended = states.State("wan", os.getpid(), started=0)  # another start time: the lab's own supervisor has ended
    client.RunningLab(ended).down()
    interrupted(lambda: client.RunningLab(ended).down())
    assert asked[0] == (namespaces.GRACE_SECONDS, client.ANSWER_SECONDS)
    assert asked[1][0] == HURRIED_SECONDS
    assert asked[1][1] < 2


def test_a_program_of_a_lab_does_not_hear_ctrl_c_before_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda _: seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    inside.popen(["true"], Host(), "/none")
    assert signal.SIGINT in seen[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    code = [
        sys.executable, "-c",
        "import signal, sys; sys.exit(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
    ]  # fmt: skip
    monkeypatch.undo()
    done = inside.popen(code, Host(), "")
    assert done.wait() == 0, "the program itself hears it"


def test_leaving_flushes_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    script = "import sys, threading; from thalweg.machine.grace import leave; sys.stdout.write('said'); leave(130)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "said", "")
    assert grace.HURRIED_SECONDS < 1


LOST = """
import signal
from thalweg.machine import grace
grace.remember_interrupts()
grace.end_if_interrupted()
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    print("lost")
try:
    grace.end_if_interrupted()
except KeyboardInterrupt:
    print("found")
"""


def test_an_interruption_that_some_library_catches_is_not_lost() -> None:
    said = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["lost", "found"]


SWALLOWING = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
    print("went on")
except BaseException:
    print("swallowed")
"""
IMPORTING = """
from thalweg.machine import grace
grace.remember_interrupts()
try:
    import swallowing
    while True:
        pass
except KeyboardInterrupt:
    print("ended")
"""


def test_an_interruption_waits_for_the_end_of_an_import(tmp_path: Path) -> None:
    (tmp_path / "swallowing.py").write_text(SWALLOWING)
    (tmp_path / "program.py").write_text(IMPORTING)
    program = [sys.executable, str(tmp_path / "program.py")]
    said = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["went", "on", "ended"]


def test_a_second_interruption_ends_an_import(tmp_path: Path) -> None:
    (tmp_path / "swallowing.py").write_text(
        "import signal\n" + 2 * "signal.raise_signal(signal.SIGINT)\n" + "print(0)\n"
    )
    (tmp_path / "program.py").write_text(IMPORTING)
    program = [sys.executable, str(tmp_path / "program.py")]
    said = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["ended"]


STARTING = """
import signal, subprocess
from thalweg.machine import grace
grace.remember_interrupts()
execute = subprocess.Popen._execute_child
def interrupted(*arguments):
    execute(*arguments)
    signal.raise_signal(signal.SIGINT)
subprocess.Popen._execute_child = interrupted
program = None
try:
    program = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    while True:
        pass
except KeyboardInterrupt:
    program.communicate()
    print(program.returncode)
"""


def test_an_interruption_waits_until_a_program_is_started_so_that_it_can_be_ended() -> None:
    said = subprocess.run([sys.executable, "-c", STARTING], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["0"]


FIRST = """
import signal, sys
from thalweg.machine import grace
grace.remember_interrupts()
came = 0
for number in map(int, sys.argv[1:]):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        came += 1
print(came, grace.interrupted_code())
"""


@pytest.mark.parametrize(
    ("numbers", "came", "code"),
    [
        ([signal.SIGINT], 1, 130),
        ([signal.SIGTERM], 1, 143),
        ([signal.SIGHUP], 1, 129),
        ([signal.SIGTERM, signal.SIGTERM, signal.SIGHUP], 1, 143),
        ([signal.SIGHUP, signal.SIGINT], 2, 129),
        ([signal.SIGINT, signal.SIGINT], 2, 130),
        ([], 0, 130),
    ],
)
def test_the_first_signal_ends_a_command_and_only_ctrl_c_counts_again(
    numbers: list[signal.Signals], came: int, code: int
) -> None:
    program = [sys.executable, "-c", FIRST, *(str(int(number)) for number in numbers)]
    said = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == [str(came), str(code)]


def test_what_a_process_was_started_to_ignore_stays_ignored() -> None:
    program = f"import signal, os; signal.signal({int(signal.SIGHUP)}, signal.SIG_IGN); os.execv({sys.executable!r}, "
    program += f"[{sys.executable!r}, '-c', {FIRST!r}, '{int(signal.SIGHUP)}'])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["0", "130"], "as nohup does"


FORKED = """
import os, signal
from thalweg.machine import grace
grace.remember_interrupts()
child = os.fork()
if child == 0:
    signal.pause()
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_programs_that_are_forked_off_end_as_ever() -> None:
    said = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == [str(-signal.SIGTERM)]
