"""A client whose training raises an exception: the others continue, and all parties report who left and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.test_remote import address
from thalweg.record import Record
from thalweg.record.tables import read_table

pytestmark = pytest.mark.e2e

APP = """
from thalweg import models


class App:
    def model(self):
        return models.build("lenet")

    def train(self, model, data, config):
        if config["round"] == 2:
            raise LookupError("no data \\x1b[2J\\nfor round 2")
        return 10, {"seen": 1.0}
"""
PLAN = """
[job]
clients = 2
rounds = 4
enough = {enough}
[model]
name = "lenet"
[data]
name = "digits"
"""
SAID = "left: LookupError: no data \ufffd[2J for round 2"


def test_the_job_goes_on_and_says_who_did_not_take_part(start: Start, tmp_path: Path) -> None:
    (tmp_path / "some_app.py").write_text(APP)
    (tmp_path / "plan.toml").write_text(PLAN.format(enough=1))
    server = start("server", "plan.toml", "--listen", "tcp://127.0.0.1:0", "--json")
    url = address(server)
    good = start("client", url, "--name", "good")
    bad = start("client", url, "--name", "bad", "--app", "some_app:App")
    code, out, err = server.end()
    assert code == 0, err
    done = json.loads(out)
    assert done["absent"] == [{"client": "bad", "counted": 1, "reason": SAID, "left": True}]
    assert [entry["participants"] for entry in done["rounds"]] == [2, 1, 1, 1]
    assert "bad left: LookupError" in err
    assert "\x1b" not in err
    record = Record(tmp_path / done["record"])
    (log,) = (line for line in (record.path / "log.txt").read_text().splitlines() if "is in 1 of 4 means" in line)
    assert SAID in log
    assert [row["reason"] for row in read_table(record.path, "participants") if row["state"] == "lost"] == [SAID]
    assert good.end()[0] == 0
    code, _, err = bad.end()
    assert code != 0
    assert "LookupError" in err


def test_a_job_that_needs_the_client_ends_with_its_reason(start: Start, tmp_path: Path) -> None:
    (tmp_path / "some_app.py").write_text(APP)
    (tmp_path / "plan.toml").write_text(PLAN.format(enough=2))
    server = start("server", "plan.toml", "--listen", "tcp://127.0.0.1:0")
    url = address(server)
    start("client", url, "--name", "good")
    start("client", url, "--name", "bad", "--app", "some_app:App")
    code, _, err = server.end()
    assert code == 1
    assert "round 2: 1 of 2 updates came and nobody is left who could send one, 2 are needed" in err
    assert "if fewer updates will do, lower `enough`" in " ".join(err.split())
    assert f": bad {SAID}" in err
    (folder,) = (tmp_path / "runs").iterdir()
    assert Record(folder).manifest["status"] == "failed"
