"""The files of ``deploy``: what can be checked here is run, the rest is read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from thalweg.cli import app as program
from thalweg.job.common import metrics

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
CHART: Final = DEPLOY / "helm" / "thalweg"
UNITS: Final = sorted((DEPLOY / "systemd").glob("*.service"))
# Kinds of jobs of the chart: the default, clients of the server, and a tree of two nodes with their clients.
VALUES: Final[dict[str, dict[str, Any]]] = {
    "alone": {},
    "star": {"clients": [{"name": "anna", "secret": "a"}], "serviceMonitor": {"enabled": True}},
    "tree": {
        "nodes": {"count": 2, "clients": 1},
        "clients": [{"name": "anna", "secret": "a"}, {"name": "berta", "secret": "b", "node": 1}],
    },
}


def served(records: Path, arguments: list[str], **environment: str) -> list[str]:
    """Run serve.sh with a stand-in for thalweg; return the arguments that this gets."""
    stand_in = records.parent / "stand-in"
    stand_in.write_text('#!/bin/sh\nfor one in "$@"; do echo "$one"; done\n')
    stand_in.chmod(0o755)
    done = subprocess.run(
        [str(DEPLOY / "serve.sh"), str(records), *arguments],
        env={**os.environ, "THALWEG": str(stand_in), **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def a_record(folder: Path, name: str, status: str, *, checkpoint: bool) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "manifest.json").write_text(json.dumps({"status": status, "seed": 0}, indent=2))
    if checkpoint:
        (path / "checkpoint.safetensors").touch()
    return path


def test_a_service_begins_resumes_and_ends_a_job(tmp_path: Path) -> None:
    records = tmp_path / "my records"
    new = ["server", "--record", str(records), "plan.toml", "--listen", "x y"]
    assert served(records, ["plan.toml", "--listen", "x y"]) == new
    a_record(records, "20260101-000000-a", "complete", checkpoint=True)
    a_record(records, "20260102-000000-a", "running", checkpoint=False)
    assert served(records, ["plan.toml", "--listen", "x y"]) == new
    last = a_record(records, "20260103-000000-a", "running", checkpoint=True)
    assert served(records, ["plan.toml"]) == ["server", "--resume", str(last), "plan.toml"]
    a_record(records, "20260104-000000-a", "complete", checkpoint=True)
    assert served(records, ["plan.toml"]) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    # systemd looks whether the programs exist, so they are replaced by one that does.
    text = re.sub(r"(?<=ExecStart=)\S+", "/bin/true", unit.read_text())
    copy = tmp_path / unit.name.replace("@", "@job")
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """Yield file, command and options of each call of thalweg in these files."""
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
        command = "server" if "serve.sh" in line else line.split()[1]
        yield unit.name, command, re.findall(r"--[a-z-]+", line)
    for template, command in (("server", "server"), ("clients", "client"), ("nodes", "node")):
        text = (CHART / "templates" / f"{template}.yaml").read_text()
        yield template, command, re.findall(r"^ +- (--[a-z-]+)$", text, re.MULTILINE)
    compose = (DEPLOY / "docker" / "compose.yaml").read_text()
    for line in re.findall(r"command: (\[.*\])", compose):
        words = json.loads(line)
        yield "compose", "client" if words[0] == "client" else "server", [one for one in words if one[:2] == "--"]


@pytest.mark.parametrize(("file", "command", "options"), list(commands()), ids=lambda one: str(one)[:20])
def test_the_options_exist(file: str, command: str, options: list[str]) -> None:
    from typer.testing import CliRunner

    known = CliRunner().invoke(program, [command, "--help"]).output
    assert options, file
    assert [one for one in options if not re.search(rf"{one}\b", known)] == []


def test_alerts_are_about_metrics_that_exist() -> None:
    text = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    named = set(re.findall(r"\bthalweg_[a-z_]+", text))
    source = Path(metrics.__file__).read_text()
    assert named
    assert [name for name in named if name.removesuffix("_total") not in source] == []


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("status", "code"), [(200, 0), (500, 1)])
def test_the_health_check_asks_the_server(status: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Health, "status", status)
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert checked(str(server.server_port)) == code
        thread.join()
        port = str(server.server_port)
    assert checked(port) == 1
    assert checked("") == 0


def checked(port: str) -> int:
    script = [sys.executable, str(DEPLOY / "docker" / "healthy.py")]
    return subprocess.run(script, env={**os.environ, "METRICS_PORT": port}, capture_output=True, check=False).returncode


def test_the_image_is_not_run_by_root() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == ["10001"]
    assert "HEALTHCHECK" in text


def test_the_image_has_the_folder_of_each_volume() -> None:
    """Docker makes a folder that the image lacks for root, and a new volume takes over the owner of the folder."""
    compose = (DEPLOY / "docker" / "compose.yaml").read_text()
    folders = re.findall(r"^ +- (?![./])\w+:(/\S+)$", compose, re.MULTILINE)
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert folders
    assert re.findall(r"install -d -o thalweg -g thalweg (.+)$", text, re.MULTILINE) == [" ".join(folders)]


def test_the_chart_reads_the_job_that_the_alerts_name() -> None:
    alerts = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    monitor = (CHART / "templates" / "servicemonitor.yaml").read_text()
    labels = (CHART / "templates" / "_helpers.tpl").read_text()
    (label,) = re.findall(r"^  jobLabel: (\S+)$", monitor, re.MULTILINE)
    (job,) = re.findall(rf"^{label}: (\S+)$", labels, re.MULTILINE)
    assert set(re.findall(r'job="(\w+)"', alerts)) == {job}


def test_the_charts_secret_is_made_of_files_that_a_new_pki_has(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    folder = tmp_path / "pki"
    done = CliRunner().invoke(program, ["pki", "init", "--host", "server", "--dir", str(folder)])
    assert done.exit_code == 0, done.output
    (command,) = re.findall(r"generic thalweg-pki((?:.*\\\n)*.*)", (CHART / "values.yaml").read_text())
    files = re.findall(r"--from-file=pki/(\S+)", command)
    assert files
    assert [name for name in files if not (folder / name).exists()] == []


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.parametrize("values", VALUES)
def test_helm_takes_the_chart(values: str, tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(VALUES[values]))
    linted = subprocess.run(
        ["helm", "lint", "--strict", str(CHART), "-f", str(file)], capture_output=True, text=True, check=False
    )
    assert linted.returncode == 0, linted.stdout
    made = subprocess.run(
        ["helm", "template", "job", str(CHART), "-f", str(file)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    kinds = sorted(re.findall(r"^kind: (\w+)$", made.stdout, re.MULTILINE))
    jobs = {"alone": 1, "star": 2, "tree": 5}[values]
    assert kinds.count("Job") == jobs
    assert ("ServiceMonitor" in kinds) == (values == "star")
    if values == "tree":
        assert "tcp://job-thalweg-nodes-1.job-thalweg-nodes:7070" in made.stdout
