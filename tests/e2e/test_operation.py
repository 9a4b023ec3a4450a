"""Jobs that run for weeks: a party that is revoked is shut out, certificates are renewed, a server is replaced."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import Program, Start
from tests.ports import free_ports
from thalweg.record import Record
from thalweg.transports import pki

pytestmark = pytest.mark.e2e

PLAN = """
[job]
rounds = {rounds}
enough = 1

[app]
object = "own:App"

[hosts]
clients = {{anna = "a", berta = "b"}}

[record]
checkpoint_every = 1
"""
HOST = "127.0.0.1"
# The option of a node that takes a file, by the ending of its name.
FILE = {"token": "--token-file", "crt": "--cert", "key": "--key"}
APP = """
import numpy as np


class App:
    def model(self):
        return {"w": np.zeros(1000, np.float32)}

    def train_data(self):
        return ()

    def train(self, model, data, config):
        model["w"][:] += 1
        return 1, {}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(APP)
    pki.init(tmp_path / "pki", [HOST], 30)
    for name in ("anna", "berta"):
        pki.issue(tmp_path / "pki", name, 30)
    return tmp_path / "pki"


def url_of(server: Program) -> str:
    found = re.search(r"tcp://[0-9.]+:[0-9]+", server.until("listening on"))
    assert found is not None
    return found[0]


def client(start: Start, url: str, name: str, *more: str) -> Program:
    return start("client", url, "--app", "own:App", "--token-file", f"pki/{name}.token", *more)


class Job:
    """A server at a fixed address and its two clients, in a job that does not end by itself."""

    def __init__(self, start: Start, folder: Path) -> None:
        self._start, self._folder = start, folder.parent
        (port,) = free_ports(1)
        url = f"tcp://{HOST}:{port}"
        self.listen = ("--listen", url, "--pki", str(folder))
        (self._folder / "plan.toml").write_text(PLAN.format(rounds=100_000))
        self.server = start("server", "plan.toml", *self.listen)
        self.clients = [client(start, url, name, "--timeout", "300") for name in ("anna", "berta")]

    def kill_server(self, number: int) -> None:
        """Kill the server in round ``number``, as if the machine's power failed: it says no goodbye."""
        self.server.until(f"round {number}/")
        self.server.process.kill()
        self.server.process.communicate()

    @property
    def record(self) -> Record:
        """The job's record, read anew."""
        (run,) = (self._folder / "runs").iterdir()
        return Record(run)

    def resume(self, rounds: int) -> list[int]:
        """Resume the job up to ``rounds`` rounds by a new server; return the numbers of all rounds."""
        words = ("--resume", f"runs/{self.record.path.name}", "--rounds", str(rounds), "--json")
        code, out, err = self._start("server", *words, *self.listen).end()
        assert code == 0, err
        return [one["round"] for one in json.loads(out)["rounds"]]


def last_states(record: Record) -> Mapping[str, str]:
    (*_, last) = record.rounds()
    return {part["client"]: part["state"] for part in last["clients"]}


def test_a_revoked_client_is_cut_off_and_does_not_come_back(start: Start, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.format(rounds=100_000))
    server = start("server", "plan.toml", "--listen", f"tcp://{HOST}:0", "--pki", str(folder))
    url = url_of(server)
    anna, berta = client(start, url, "anna"), client(start, url, "berta", "--timeout", "60")
    server.until("round 3/")
    code, out, err = start("pki", "revoke", "berta").end()
    assert (code, out.splitlines()) == (0, ["berta is revoked as client, in pki/revoked"]), err
    assert "revoked" in server.until("berta")
    code, _, err = berta.end()
    assert code == 1
    assert "its token and certificate were revoked" in err
    # The job goes on with anna alone, and berta's token does not let it in again, nor does its certificate.
    done = int(server.until("round ").split("round ")[1].split("/")[0])
    server.until(f"round {done + 20}/")
    assert anna.process.poll() is None
    files = ("--ca", "pki/ca.crt", "--cert", "pki/berta.crt", "--key", "pki/berta.key", "--name", "berta")
    for again in (client(start, url, "berta"), start("client", url, "--app", "own:App", *files)):
        code, _, err = again.end()
        assert code == 1
        assert "its token and certificate were revoked" in err
    server.process.send_signal(signal.SIGINT)
    assert server.end()[0] == 130
    assert last_states(Record(next((tmp_path / "runs").iterdir()))) == {"anna": "whole"}


def test_a_name_that_was_revoked_is_not_issued_again(start: Start, folder: Path) -> None:
    pki.revoke(folder, "berta", "client")
    for words in (("issue", "berta", "--to", "new"), ("renew", "berta"), ("revoke", "berta")):
        code, _, err = start("pki", *words).end()
        assert code != 0
        assert "berta was revoked as client" in err
    assert start("pki", "issue", "berta", "--role", "task-member", "--to", "new").end()[0] == 0


def test_a_resumed_job_waits_once_for_a_client_that_is_gone(start: Start, folder: Path) -> None:
    job = Job(start, folder)
    job.kill_server(3)
    job.clients[1].process.kill()
    job.clients[1].process.communicate()
    done = job.record.checkpoint_round or 0
    run = f"runs/{job.record.path.name}"
    code, out, err = start("server", "--resume", run, "--rounds", str(done + 2), "--grace", "3", *job.listen).end()
    assert code == 0, err
    assert "going on with 1 of 2 clients" in err
    assert [one["seconds"] < 3 for one in job.record.rounds()][done:] == [True, True]
    assert re.search(rf"berta is in [0-9]+ of {done + 2} means: it has not connected again", out), out


def test_a_server_is_killed_in_mid_job_and_a_new_process_resumes(start: Start, folder: Path) -> None:
    job = Job(start, folder)
    job.kill_server(5)
    # Meanwhile the server's certificate is renewed. The new process reads it when it starts.
    before = pki.Certificate.read(folder / "server.crt")
    assert start("pki", "renew", "server", "--days", "60").end()[0] == 0
    after = pki.Certificate.read(folder / "server.crt")
    assert after.not_after > before.not_after
    assert (after.name, after.role, after.hosts) == (before.name, before.role, before.hosts)
    done = job.record.checkpoint_round
    assert done is not None
    assert job.resume(done + 30) == list(range(1, done + 31))
    assert all(one.end()[0] == 0 for one in job.clients)
    record = job.record
    assert (record.manifest["status"], record.manifest["resumed_after_round"]) == ("complete", done)
    assert last_states(record) == {"anna": "whole", "berta": "whole"}


def test_a_server_is_upgraded_in_mid_job_and_keeps_its_clients(start: Start, folder: Path) -> None:
    """A service manager ends the server by SIGTERM; its clients wait for the server that resumes the job."""
    job = Job(start, folder)
    job.server.until("round 3/")
    job.server.process.send_signal(signal.SIGTERM)
    assert job.server.end()[0] == 143
    done = job.record.checkpoint_round or 0
    assert job.record.manifest["status"] == "interrupted"
    assert job.resume(done + 3) == list(range(1, done + 4))
    assert last_states(job.record) == {"anna": "whole", "berta": "whole"}
    assert [one.end()[0] for one in job.clients] == [0, 0]


def test_a_server_killed_after_its_last_round_tells_its_clients_and_ends(start: Start, folder: Path) -> None:
    job = Job(start, folder)
    job.kill_server(3)
    done = job.record.checkpoint_round or 0
    # With as many rounds as are done, this is as if the server had been killed after its last round.
    assert job.resume(done) == list(range(1, done + 1))
    assert [one.end()[0] for one in job.clients] == [0, 0]
    assert job.record.manifest["status"] == "complete"
    # Now both commands have nothing to do, and do not listen.
    run = f"runs/{job.record.path.name}"
    for command in ("server", "run"):
        code, out, err = start(command, "--resume", run, "--json").end()
        assert (code, json.loads(out)) == (0, {"record": run, "status": "complete", "rounds_done": done})
        assert f"all {done} rounds of {run} are done; ask for more with --rounds" in err


def test_doctor_shows_when_certificates_expire(start: Start, folder: Path) -> None:
    pki.revoke(folder, "berta", "client")
    code, out, err = start("doctor", "--pki", str(folder), "--size", "1MiB", "--json").end()
    assert code == 0, err
    found = {one["file"]: one for one in json.loads(out)["certificates"]}
    assert set(found) == {"ca.crt", "server.crt", "anna.crt", "berta.crt"}
    assert all(29 < one["days"] <= 30 for one in found.values())
    assert [name for name, one in found.items() if one["revoked"] is not None] == ["berta.crt"]


TREE = """
[job]
clients = 2
rounds = 100000

[app]
object = "own:App"

[aggregation]
shape = "tree"

[tree]
top = "dedicated"

[nodes]
count = 2
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers share memory as Linux alone does")
def test_a_revoked_node_of_a_tree_is_cut_off(start: Start, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tree.toml").write_text(TREE)
    server = start("server", "tree.toml", "--listen", f"tcp://{HOST}:0", "--pki", str(folder))
    parent = url_of(server)
    nodes = {}
    for name in ("west", "east"):
        pki.issue(folder, name, 30, hosts=[HOST], role="tree-node")
        files = [word for kind in ("token", "crt", "key") for word in (FILE[kind], f"pki/{name}.{kind}")]
        nodes[name] = start("node", f"tcp://{HOST}:0", "--parent", parent, "--name", name, "--clients", "1", *files)
    for node in nodes.values():
        node.until("listening on")
    pki.revoke(folder, "west", "tree-node")
    code, _, err = nodes["west"].end()
    assert code != 0
    assert "its token and certificate were revoked" in err
    assert nodes["east"].process.poll() is None
