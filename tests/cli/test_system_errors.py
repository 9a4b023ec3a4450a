"""No command ends in a traceback when a system call fails. The rule is checked for every command."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from thalweg import cli
from thalweg.lab.client import RunningLab
from thalweg.lab.state import State
from thalweg.lab.status import Status
from thalweg.ui import system
from thalweg.ui.explain import explain
from thalweg.ui.output import Emit, nobody_reads, output

# The arguments that each command requires. A command that is missing here fails the first test.
NEEDED: dict[str, Sequence[str]] = {
    "run": (),
    "server": (),
    "client": ("tcp://127.0.0.1:1",),
    "doctor": (),
    "node": ("plan.toml", "--name", "anna"),
    "new": ("a-project",),
    "export": ("a-record",),
    "report": ("a-record",),
    "bench": ("plan.toml",),
    "advise": ("--network", "none", "--model", "vgg5"),
    "pki init": (),
    "pki issue": ("anna",),
    "pki renew": ("anna",),
    "pki revoke": ("anna",),
    "lab up": ("--network", "lan"),
    "lab shell": ("--network", "lan"),
    "lab exec": ("--network", "lan", "true"),
    "lab status": (),
    "lab set": ("client-1", "loss=1%"),
    "lab down": (),
    "lab guest build": (),
    "lab guest status": (),
    "lab guest shell": ("true",),
    "flower data": ("an-app",),
    "flower run": ("an-app",),
    "flower server": ("an-app",),
    "flower client": ("an-app", "tcp://127.0.0.1:1"),
    "tree watch": ("a-record",),
    "tree plan": (),
    "tree calibrate": (),
    "tree simulate": (),
    "forward": ("--listen", "tcp://127.0.0.1:0", "--to", "127.0.0.1:9"),
}
ERRORS: list[tuple[Exception, str, str]] = [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x"), "runs/x: No space left on device", "Make room"),
    (PermissionError(errno.EPERM, os.strerror(errno.EPERM), "/proc/sys/x"), "/proc/sys/x: Operation not", "as root"),
    (FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "program"), "program: No such file", "install it"),
    (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files", "ulimit -n"),
    (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "Resource temporarily unavailable", "ulimit -u"),
    (BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)), "Broken pipe", "Try again"),
    (TimeoutError(), "TimeoutError", "Try again"),
    (subprocess.CalledProcessError(-9, ["program", "x"]), "program was killed by signal 9", "Try again"),
    (subprocess.TimeoutExpired(["program"], 10), "program did not end within 10 s", "Try again"),
]
Failing = Callable[..., AbstractContextManager[Emit]]


def leaves(group: Any, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


COMMANDS = sorted(leaves(typer.main.get_command(cli.app)))


def module_of(command: str) -> ModuleType:
    *groups, _ = command.split()
    return sys.modules[f"thalweg.cli.{groups[-1] if groups else command}"]


def refuse(error: Exception) -> None:
    raise error


def failing(error: Exception) -> Failing:
    """Return a replacement of ``output`` whose command fails at its first step."""

    @contextmanager
    def fail(*, as_json: bool) -> Iterator[Emit]:
        with output(as_json=as_json) as emit:
            refuse(error)
            yield emit

    return fail


def invoke(*arguments: str) -> tuple[int, str, str, BaseException | None]:
    done = CliRunner().invoke(cli.app, list(arguments))
    return done.exit_code, done.stdout, done.stderr, done.exception


def test_every_command_is_tested() -> None:
    assert sorted(NEEDED) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("error", "cause", "hint"), ERRORS)
def test_what_the_system_refuses_has_a_cause_and_a_hint(
    monkeypatch: pytest.MonkeyPatch, command: str, error: Exception, cause: str, hint: str
) -> None:
    monkeypatch.setattr(module_of(command), "output", failing(error))
    words = [*command.split(), *NEEDED[command]]
    code, out, err, raised = invoke(*words)
    assert isinstance(raised, SystemExit), raised
    assert code == 1
    first, second = err.splitlines()[-2:]
    assert first.startswith(f"error: {cause}")
    assert second.startswith("hint: ")
    assert hint in second
    assert out == ""
    code, out, err, _ = invoke(*command.split(), "--json", *NEEDED[command])
    assert code == 1
    said = json.loads(out)["error"]
    assert said["cause"].startswith(cause)
    assert hint in said["hint"]


def test_errors_before_the_command_is_known_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(cli.Commands, "make_context", lambda *_, **__: refuse(error))
    code, _, err, raised = invoke("run")
    assert (code, isinstance(raised, SystemExit)) == (1, True)
    assert err.startswith("error: Input/output error\nhint: ")


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of("doctor"), "output", failing(KeyError("a fault of ours")))
    assert isinstance(invoke("doctor", "--transports")[3], KeyError)


def test_two_paths_are_both_named() -> None:
    error = OSError(errno.EXDEV, os.strerror(errno.EXDEV), "a", None, "b")
    assert explain(error)[0] == "a to b: Invalid cross-device link"


def test_all_of_a_kind_have_words() -> None:
    for number in errno.errorcode:
        cause, hint = system.explain(OSError(number, os.strerror(number)))
        assert cause
        assert hint


def test_a_reader_that_closed_the_pipe_causes_no_error() -> None:
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as stream:
        assert not nobody_reads(stream)
        os.close(reads)
        assert nobody_reads(stream)
    assert not nobody_reads(stream)


@pytest.mark.parametrize(
    ("words", "cause", "hint"),
    [
        (["run", "--bogus", "--json"], "--bogus", "thalweg run --help"),
        (["--json", "run"], "--json", "--help"),
        (["client", "--json"], "Missing argument", "client --help"),
        (["pki", "issue", "--json"], "Missing argument", "pki issue --help"),
        (["run", "--json", "--clients", "many"], "Invalid value for", "run --help"),
        (["bogus", "--json"], "No such command 'bogus'", "--help"),
    ],
)
def test_a_command_line_that_means_nothing_obeys_json(words: list[str], cause: str, hint: str) -> None:
    code, out, err, _ = invoke(*words)
    assert code == 2
    said = json.loads(out)["error"]
    assert cause in said["cause"]
    assert hint in said["hint"]
    assert said["cause"] in err


def test_without_json_standard_output_stays_empty() -> None:
    assert invoke("run", "--bogus")[:2] == (2, "")


def test_what_stands_behind_two_dashes_is_another_programs() -> None:
    assert not cli.wants_json(["lab", "exec", "--bogus", "--", "iperf3", "--json"])


def test_shells_can_complete_commands() -> None:
    assert invoke("--help")[1].count("-completion") == 2
    environment = {**os.environ, "_THALWEG_COMPLETE": "complete_bash", "COMP_WORDS": "thalweg doc", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "thalweg"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["doctor"], done.stderr


def test_an_interruption_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*, as_json: bool) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(module_of("doctor"), "output", interrupt)
    code, _, err, _ = invoke("doctor", "--transports")
    assert (code, err) == (130, "interrupted\n")


def test_an_interruption_before_the_command_is_known_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.Commands, "parse_args", interrupt)
    code, _, err, _ = invoke("doctor", "--transports")
    assert (code, err) == (130, "interrupted\n")


@pytest.mark.parametrize(
    "words",
    [("run", "--record", "x\udcff"), ("report", "r\udcff"), ("advise", "r\udcff"), ("bench", "p\udcff.toml")],
)
def test_a_path_that_is_not_utf_8_is_one_clear_error(words: tuple[str, ...]) -> None:
    code, out, err, _ = invoke(*words)
    assert (code, out) == (2, "")
    assert "' is not UTF-8\nhint: Give the file or folder a name in UTF-8" in err
    code, out, _, _ = invoke(*words, "--json")
    assert code == 2
    assert "is not UTF-8" in json.loads(out)["error"]["cause"]


def test_what_another_program_is_given_may_be_anything() -> None:
    cli.check_text(["lab", "exec", "--", "cat", "x\udcff", "a \u00e4"])


def test_a_lab_that_is_starting_has_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    module_of("lab")._show([(RunningLab(State("wan", pid=7, started=0)), Status(elapsed=None))])
    assert "wan: is starting, supervisor 7" in capsys.readouterr().out
