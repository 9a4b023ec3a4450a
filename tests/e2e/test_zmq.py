"""Jobs over ZMTP: encrypted by CURVE with files of ``thalweg pki``, and with a server that is started again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Program, Start

pytestmark = pytest.mark.e2e
PATTERNS = ("router", "pubsub", "pushpull", "reqrep")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_run_is_encrypted_if_asked(result: Callable[..., Any], pattern: str) -> None:
    arguments = ("--transport", "zmq", "--option", f"pattern={pattern}", "--model", "payload:3MiB", "--tls", "on")
    done = result("run", *arguments, "--clients", "3", "--rounds", "2")
    assert [(entry["participants"], entry["complete"]) for entry in done["rounds"]] == [(3, True), (3, True)]


def port(server: Program) -> str:
    match = re.search(r"zmq://[0-9.]+:([0-9]+)", server.until("listening on"))
    assert match is not None
    return match[1]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_clients_come_back_to_a_server_that_was_killed_and_started_again(
    start: Start, tmp_path: Path, pattern: str
) -> None:
    assert start("pki", "init", "--host", "127.0.0.1").end()[0] == 0
    assert start("pki", "issue", "anna").end()[0] == 0
    plan = "[job]\nrounds = {rounds}\nclients = 1\n[model]\nname = 'payload:1MiB'\n"
    plan += f"[transport.options]\npattern = '{pattern}'\n"
    (tmp_path / "long.toml").write_text(plan.format(rounds=100_000))
    (tmp_path / "short.toml").write_text(plan.format(rounds=2))
    first = start("server", "long.toml", "--listen", "zmq://127.0.0.1:0", "--pki", "pki")
    number = port(first)
    client = start(
        "client",
        f"zmq://127.0.0.1:{number}",
        "--token-file",
        "pki/anna.token",
        "--option",
        f"pattern={pattern}",
        "--json",
    )
    first.until("round 1/")
    first.process.kill()
    first.process.communicate()
    second = start("server", "short.toml", "--listen", f"zmq://127.0.0.1:{number}", "--pki", "pki", "--json")
    code, out, err = second.end()
    assert code == 0, err
    assert [entry["participants"] for entry in json.loads(out)["rounds"]] == [1, 1]
    code, out, err = client.end()
    assert code == 0, err
    assert [entry["status"] for entry in json.loads(out)["rounds"]][-2:] == ["accepted", "accepted"]
