"""The command line: help, errors, exit codes, and the structure of its output."""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from thalweg import _core, doctor
from thalweg.cli import app
from thalweg.cli.doctor import _show
from thalweg.errors import CoreError
from thalweg.transports import forwarding
from thalweg.ui import terminal

HEAVY = ("torch", "pyarrow", "pydantic", "numpy", "sklearn", "rich")
COMMANDS = (
    "run",
    "new",
    "server",
    "client",
    "pki",
    "doctor",
    "export",
    "lab",
    "bench",
    "advise",
    "tree",
    "forward",
)
PROXY = ["forward", "--mask", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def document(*arguments: str) -> Any:
    code, out, err = invoke(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = f"""
import sys
from thalweg.cli import main
sys.argv = ["thalweg", "--help"]
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    *text, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    for command in COMMANDS:
        assert any(line.split()[:1] == [command] for line in text), command


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    code, out, _ = invoke(command, "--help")
    assert code == 0
    assert f" {command} " in out.splitlines()[0]


def test_version() -> None:
    code, out, _ = invoke("--version")
    assert code == 0
    assert out.startswith("thalweg 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["run", "--clients", "many"],
        ["run", "--bogus"],
        ["client"],
        ["pki", "issue"],
        ["forward", "--mask", "--to", ":9000"],
        ["forward", "--via", "tcp://127.0.0.1:1"],
        ["forward", "--listen", ":9000", "--via", "tcp://127.0.0.1:1", "--connections", "0"],
        [*PROXY, "--budget", "2"],
        [*PROXY, "--align", "0"],
        [*PROXY, "--connections", "0"],
    ],
)
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    assert invoke(*arguments)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "cause", "hint"),
    [
        (["run", "none.toml"], "cannot read the plan none.toml", "Give the path"),
        (["client", "127.0.0.1:7070"], "neither a URL nor a plan", "Did you mean tcp://127.0.0.1:7070?"),
        (["server", "--listen", "0.0.0.0:7183"], "unknown transport", "Did you mean tcp://0.0.0.0:7183?"),
        (["run", "--compression", "topk:5"], "scheme in [compression] is 'topk:5'", "above 0 and at most 1"),
        (["run", "--model", "payload:1M"], "no size", "B kB MB GB"),
        (["run", "--rounds", "0"], "the command line: rounds in [job] is 0", "Give rounds as at least 1"),
        (["run", "--model", "vgg55"], "unknown model 'vgg55'", "Did you mean 'vgg5'?"),
        (["run", "--transport", "tpc"], "unknown transport 'tpc'", "tcp"),
        (
            ["run", "--model", "payload:8MiB", "--data", "mnist"],
            "not trained, but the plan has [data]",
            "Remove [data]",
        ),
        (["run", "--throttle", "fast"], "throttle in [layers] is 'fast'", "as 20mbit"),
        (["run", "--data", "cifar10", "--data-root", "/none"], "'cifar10' is not there", "--data-root"),
        (["forward", "--listen", ":1"], "one end has --via, the other --to", "--to HOST:PORT beside the server"),
        (
            ["forward", "--listen", "9370", "--via", "tcp://127.0.0.1:1"],
            "--listen is '9370'",
            ":port for this machine",
        ),
        (["forward", "--listen", "tcp://127.0.0.1:0", "--to", "9"], "--to is '9'", "Write it as host:port"),
        (["export", "/none"], "/none is not the record of a run", "runs/"),
        (["report", "/none"], "/none is not the record of a run", "runs/"),
        (["client", "tcp://127.0.0.1:1", "--token-file", "/none"], "cannot read /none", "thalweg pki"),
        (["client", "tcp://127.0.0.1:1", "--app", "nothing"], "'nothing' does not name an app", "module:object"),
        (["client", "tcp://127.0.0.1:1", "--cert", "c"], "go together", "--key"),
        (["pki", "issue", "a", "--dir", "/none"], "cannot read /none/ca.crt", "thalweg pki init"),
        (["doctor", "--size", "big"], "'big'", "64MiB"),
        (PROXY, "loss cannot be masked at 127.0.0.1:", "--plain"),
        ([*PROXY, "--reliable", "much"], "--reliable: 'much'", "4MiB"),
        ([*PROXY, "--to", "here"], 'to is "here"', "192.0.2.1:9000"),
        ([*PROXY, "--control", "fast"], "control must be one of delay, paper, fixed, none", "thalweg doctor"),
        ([*PROXY, "--option", "speed"], "'speed' is no option", "KEY=VALUE"),
        ([*PROXY, "--holes", "/none/holes"], "/none/holes: No such file", "unix:PATH"),
        ([*PROXY, "--via", "tcp://127.0.0.1:1"], "--via has no effect with --mask", "Leave --via out"),
        ([*PROXY, "--connections", "4096"], "at most 2048 connections", "--connections"),
        ([*PROXY[:4]], "--mask needs the server", "--to HOST:PORT"),
        (["forward", "--listen", ":1", "--budget", "0.1"], "--budget has no effect without --mask", "Give --mask"),
        (["doctor", "--transports", "tcp://127.0.0.1:1"], "--transports measures nothing", "Leave the URL"),
        (["doctor", "--transports", "--size", "1MiB"], "--size has no effect with --transports", "Leave --size out"),
        (["doctor", "--transports", "--seconds", "1"], "--seconds has no effect with --transports", "--seconds out"),
        (["doctor", "--transports", "--pki", "d"], "--pki has no effect with --transports", "Leave --pki out"),
        (["doctor", "--transports", "--token-file", "t"], "--token-file has no effect with", "Leave --token-file out"),
        (["doctor", "--transports", "--cert", "c"], "--cert has no effect with --transports", "Leave --cert out"),
        (["doctor", "--transports", "--key", "k"], "--key has no effect with --transports", "Leave --key out"),
    ],
)
def test_an_error_is_two_lines_and_a_code(arguments: list[str], cause: str, hint: str) -> None:
    code, out, err = invoke(*arguments)
    lines = err.splitlines()
    assert code == (1 if arguments[0] in ("export", "report") else 2), err
    assert lines[-2].startswith("error: ")
    assert cause in lines[-2]
    assert lines[-1].startswith("hint: ")
    assert hint in lines[-1]
    assert out == ""


def test_an_unknown_key_in_a_plan_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[job]\nrunds = 3\n")
    code, out, err = invoke("run", str(path), "--json")
    assert code == 2
    assert "unknown key 'runds' in [job]" in err
    assert json.loads(out)["error"]["hint"].startswith("Did you mean 'rounds'?")


def test_transports() -> None:
    entries = document("doctor", "--transports")
    assert {entry["name"] for entry in entries} >= {"memory", "tcp"}
    for entry in entries:
        assert set(entry) == {"name", "available", "reason", "capabilities", "settings"}
    code, out, _ = invoke("doctor", "--transports")
    assert code == 0
    assert "tcp" in out


@pytest.mark.parametrize(
    ("old", "new"), [("transports", "thalweg doctor --transports"), ("unifl proxy --to :1", "thalweg forward --mask")]
)
def test_an_old_command_names_the_new_one(old: str, new: str) -> None:
    code, out, err = invoke(*old.split(), "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (2, "usage")
    assert err.splitlines()[-1] == f"Error: `thalweg {old.split(maxsplit=1)[0]}` is now `{new}`."


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["server", "--model", "payload:1MiB"], "No such option: --model. It is model.name in the plan."),
        (["client", "tcp://h:1", "--rounds", "3"], "No such option: --rounds. It is job.rounds in the server's plan."),
    ],
)
def test_an_option_of_another_command_names_its_key(words: list[str], where: str) -> None:
    code, _, err = invoke(*words)
    assert (code, err.splitlines()[-1]) == (2, f"Error: {where}")
    assert json.loads(invoke(*words, "--json")[1])["error"]["kind"] == "usage"


def test_a_long_form_of_values_is_printed_once() -> None:
    _, _, err = invoke("run", "--compression", "int7")
    assert err.count("powersgd:R") == 1


def test_doctor() -> None:
    printed = document("doctor", "--size", "1MiB")
    sections = {"thalweg", "versions", "kernel", "machine", "tcp", "advice", "checks", "path", "certificates"}
    assert set(printed) == sections
    assert printed["certificates"] == []
    assert printed["path"]["raw_bytes_per_second"] > 0
    assert printed["path"]["thalweg_bytes_per_second"] > 0
    names = {check["name"] for check in printed["checks"]}
    assert names >= {
        "root",
        "tun",
        "lab",
        "guest",
        "mappings",
        "sched_fifo",
        "cgroup",
        "stress-ng",
        "netem",
        "ebpf",
        "rdma",
        "mosquitto",
        "rabbitmq-server",
        "torch",
        "data mnist",
    }
    assert all(check["cost"] and check["detail"] for check in printed["checks"])
    assert printed["tcp"]["congestion"] in printed["tcp"]["available"]


def test_doctor_says_by_which_ways_a_link_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(passes_tcp: bool) -> doctor.Throughput:
        tcp = doctor.Way(True, 0.05, None) if passes_tcp else doctor.Way(False, None, "no answer within 5 s")
        ways = doctor.Ways(doctor.Way(True, 0.04, None), tcp)
        raw = 2.5e6 if passes_tcp else None
        return doctor.Throughput("ltp://127.0.0.1:1", raw, 2e6, 0.041, doctor.Carriers("udp", "udp"), ways)

    monkeypatch.setattr(doctor, "CHECKS", ())
    for passes_tcp, rates, tcp in (
        (True, "raw TCP 20.0 Mbit/s, thalweg 16.0 Mbit/s (80 %)", "TCP passes, with an answer after 50.0 ms"),
        (False, "thalweg 16.0 Mbit/s, no raw TCP", "TCP does not pass: no answer within 5 s"),
    ):
        path = measured(passes_tcp)
        monkeypatch.setattr(doctor, "path_to", lambda *_, path=path: path)
        code, out, err = invoke("doctor", "ltp://127.0.0.1:1")
        assert code == 0, err
        assert out.splitlines()[-3:] == [
            f"ltp://127.0.0.1:1: {rates}, control message there and back 41.0 ms",
            "this link's control messages go over UDP, its chunks over UDP",
            f"to that port: UDP passes, with an answer after 40.0 ms; {tcp}",
        ]
        found = document("doctor", "ltp://127.0.0.1:1")["path"]
        assert found["carriers"] == {"control": "udp", "chunks": "udp"}
        assert found["ways"]["tcp"]["passes"] is passes_tcp
        assert (found["raw_bytes_per_second"] is None) is not passes_tcp


def test_doctor_fits_a_terminal_and_asks_for_no_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    carriers, way = doctor.Carriers("udp", "udp"), doctor.Way(True, 0.04, None)
    path = doctor.Throughput("ltp://127.0.0.1:1", 2.5e6, 2e6, 0.041, carriers, doctor.Ways(way, way))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(terminal, "console", lambda: console)
    _show(doctor.report(path), peer=False)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert re.search("what +here +seen +cost", text)
    assert "`make " not in text
    assert "make setup" not in text


def test_doctor_of_a_peer_that_closes_the_link_asks_for_its_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    def closes(*_: object) -> str:
        raise CoreError("tcp://127.0.0.1:1 has closed the link", None, "closed", "receive", True)

    monkeypatch.setattr(_core, "probe_peer", closes)
    code, _, err = invoke("doctor", "udp://127.0.0.1:1")
    assert code == 1
    assert "hint: Check that `thalweg doctor --serve udp://...` runs there, with the same transport" in err


def test_doctor_of_a_peer_prints_the_path_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    path = doctor.Throughput("tcp://127.0.0.1:1", 2.5e6, 2e6, 0.041, None, None)
    monkeypatch.setattr(doctor, "path_to", lambda *_: path)
    monkeypatch.setattr(doctor, "CHECKS", ())
    assert invoke("doctor", "tcp://127.0.0.1:1")[1].splitlines() == [
        "tcp://127.0.0.1:1: raw TCP 20.0 Mbit/s, thalweg 16.0 Mbit/s (80 %), control message there and back 41.0 ms"
    ]
    assert "checks" in document("doctor", "tcp://127.0.0.1:1")


def test_pki(tmp_path: Path) -> None:
    made = document("pki", "init", "--dir", str(tmp_path / "pki"), "--host", "10.0.0.1")
    assert made["hosts"] == ["10.0.0.1"]
    assert all(Path(path).is_file() for path in made["files"])
    code, out, _ = invoke("pki", "issue", "anna", "--dir", str(tmp_path / "pki"))
    assert code == 0
    assert "anna.token to the client's machine" in out
    assert "--token-file anna.token" in out


def test_a_server_others_can_reach_names_what_is_missing() -> None:
    code, _, err = invoke("server", "--listen", "tcp://0.0.0.0:0")
    assert code == 1
    assert "thalweg pki init" in err


def test_a_near_end_gives_a_silent_peer_no_longer_than_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        code, out, _ = invoke("forward", "--listen", ":0", "--via", url, "--timeout", "0.2", "--json")
    error = json.loads(out)["error"]
    assert (code, error["kind"]) == (1, "timeout")
    assert "did not answer within 200 ms" in error["cause"]
    assert error["hint"] == "check the address and the firewall, or raise the timeout"


@pytest.mark.parametrize(("timeout", "milliseconds"), [(0.0, 10_000), (0.2, 200), (10.0, 10_000), (30.0, 30_000)])
def test_an_attempt_of_a_near_end_takes_no_longer_than_its_timeout(timeout: float, milliseconds: int) -> None:
    settings = forwarding.near_end(":0", "tcp://127.0.0.1:1", "anna", {"transport": {}}, timeout=timeout)
    assert settings["transport"] == {"connect_timeout_ms": milliseconds}


@pytest.mark.parametrize(
    ("arguments", "cause", "hint"),
    [
        (["--listen", "tcp://0.0.0.0:0", "--to", ":9"], "nothing says who may join", "thalweg pki init"),
        (
            ["--listen", "127.0.0.1:0", "--via", "tcp://127.0.0.1:1", "--timeout", "0"],
            "127.0.0.1:1",
            "tart the server first",
        ),
    ],
)
def test_an_end_that_cannot_forward_says_why(arguments: list[str], cause: str, hint: str) -> None:
    code, out, err = invoke("forward", *arguments, "--json")
    assert code == 1
    error = json.loads(out)["error"]
    assert cause in error["cause"]
    assert hint in error["hint"], err
