"""``thalweg server`` and ``thalweg client``, for several machines; here all run on one."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Program, Start
from thalweg.record import Record

pytestmark = pytest.mark.e2e

APP = """
import numpy as np


class App:
    def model(self):
        import torch

        return torch.nn.Linear(4, 2)

    def train_data(self):
        return np.ones(3)

    def train(self, model, data, config):
        for parameter in model.parameters():
            parameter.data.add_(float(config["round"]))
        return len(data), {"seen": 1.0}
"""


def address(server: Program) -> str:
    match = re.search(r"tcp://[0-9.]+:([0-9]+)", server.until("listening on"))
    assert match is not None
    return f"tcp://127.0.0.1:{match[1]}"


@pytest.fixture
def pki(start: Start, tmp_path: Path) -> Path:
    assert start("pki", "init", "--host", "127.0.0.1").end()[0] == 0
    for name in ("anna", "berta"):
        assert start("pki", "issue", name).end()[0] == 0
    return tmp_path / "pki"


@pytest.mark.usefixtures("pki")
def test_clients_with_tokens_take_part_over_tls(start: Start, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[job]\nrounds = 2\n[model]\nname = 'payload:1MiB'\n[hosts]\nclients = {anna = 'a', berta = 'b'}\n")
    server = start("server", str(plan), "--listen", "tcp://0.0.0.0:0", "--pki", "pki", "--json")
    url = address(server)
    assert "waiting for 2 clients: anna (a), berta (b)" in server.until("waiting for")
    clients = [start("client", url, "--token-file", f"pki/{name}.token", "--json") for name in ("anna", "berta")]
    code, out, err = server.end()
    assert code == 0, err
    done = json.loads(out)
    assert [entry["participants"] for entry in done["rounds"]] == [2, 2]
    assert all(peak > 0 for peak in done["peak_rss_bytes"]["clients"])
    for client, name in zip(clients, ("anna", "berta"), strict=True):
        code, out, err = client.end()
        assert code == 0, err
        said = json.loads(out)
        assert said["name"] == name
        assert [(entry["round"], entry["status"]) for entry in said["rounds"]] == [(1, "accepted"), (2, "accepted")]


def test_a_certificate_does_as_well_as_a_token(start: Start, pki: Path) -> None:
    server = start("server", "--clients", "1", "--rounds", "1", "--listen", "tcp://0.0.0.0:0", "--pki", str(pki))
    files = ["--ca", "pki/ca.crt", "--cert", "pki/anna.crt", "--key", "pki/anna.key"]
    client = start("client", address(server), "--name", "anna", *files)
    code, _, err = client.end()
    assert code == 0, err
    assert server.end()[0] == 0


@pytest.mark.usefixtures("pki")
def test_a_wrong_token_does_not_get_in(start: Start, tmp_path: Path) -> None:
    assert start("pki", "init", "--dir", "other", "--host", "127.0.0.1").end()[0] == 0
    assert start("pki", "issue", "anna", "--dir", "other").end()[0] == 0
    server = start("server", "--clients", "1", "--listen", "tcp://0.0.0.0:0", "--pki", "pki")
    token = ["--token-file", "other/anna.token", "--ca", "pki/ca.crt"]
    code, _, err = start("client", address(server), *token, "--timeout", "5").end()
    assert code == 1
    assert "token" in err
    assert "hint: " in err


@pytest.mark.usefixtures("pki")
def test_without_a_token_nobody_gets_in(start: Start) -> None:
    server = start("server", "--clients", "1", "--listen", "tcp://0.0.0.0:0", "--pki", "pki")
    code, _, err = start("client", address(server), "--ca", "pki/ca.crt", "--timeout", "5").end()
    assert code == 1
    assert "--token-file" in err


def test_an_app_of_ones_own(start: Start, tmp_path: Path) -> None:
    """The client's app is not the server's, so the client is refused. Both ends name the first tensor that differs."""
    (tmp_path / "my_app.py").write_text(APP)
    (tmp_path / "other_app.py").write_text(APP.replace("Linear(4, 2)", "Linear(5, 2)"))
    server = start("server", "--app", "my_app:App", "--clients", "1", "--rounds", "1")
    url = address(server)
    code, _, err = start("client", url, "--app", "other_app:App", "--name", "anna", "--timeout", "5").end()
    assert code == 1
    assert "weight is float32 [2, 5] here and float32 [2, 4] at the server" in " ".join(err.split())
    told = server.until("was not let in")
    assert "anna was not let in: its model differs: weight is float32 [2, 4] here and" in told
    code, _, err = start("client", url, "--app", "my_app:App", "--name", "anna").end()
    assert code == 0, err
    assert server.end()[0] == 0


def test_nobody_there(start: Start) -> None:
    code, _, err = start("client", "tcp://127.0.0.1:1", "--timeout", "0.1").end()
    assert code == 1
    assert "hint: " in err


def test_a_server_that_waits_for_clients_can_be_interrupted(start: Start, tmp_path: Path) -> None:
    server = start("server", "--clients", "1", "--listen", "tcp://127.0.0.1:0")
    server.until("waiting for 1 client")
    server.process.send_signal(signal.SIGINT)
    code, _, err = server.end()
    assert code == 130, err
    assert "interrupted" in err
    (folder,) = (tmp_path / "runs").iterdir()
    assert Record(folder).manifest["status"] == "interrupted"


def test_a_client_that_waits_for_a_server_can_be_interrupted(start: Start) -> None:
    client = start("client", "tcp://127.0.0.1:1", "--timeout", "600")
    client.until("joining")
    client.process.send_signal(signal.SIGINT)
    code, _, err = client.end()
    assert code == 130, err
