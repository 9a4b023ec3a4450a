"""Apps as people have them, unmodified, over transports of a network and under loss: legacy, scikit-learn, PyTorch."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from thalweg.flower import data
from thalweg.flower.run import plan_of, run
from thalweg.ui.progress import LineProgress

pytestmark = pytest.mark.e2e

APPS = Path(__file__).parent / "apps"
LIMIT = 120.0
NODES = 2
MQTT = pytest.param("mqtt", marks=pytest.mark.skipif(shutil.which("mosquitto") is None, reason="no mosquitto here"))
#: What the fault layer does to each chunk.
FAULTS = {"loss": 0.2, "duplicate": 0.1, "corrupt": 0.1, "reorder": 0.2}
HAS_DATA = importlib.util.find_spec("flwr_datasets") is not None and importlib.util.find_spec("torchvision") is not None


def said_of(transport: str) -> dict[str, Any]:
    """Return the overrides of a run whose nodes share a process; over udp it loses chunks."""
    faults = {"layers.fault": FAULTS} if transport == "udp" else {}
    return {"transport.url": transport, "job.clients": NODES, "app.processes": 1, **faults}


@pytest.mark.parametrize("transport", ["tcp", "grpc", MQTT, "udp"])
@pytest.mark.parametrize("name", ["numpy_legacy", "legacy_workflow"])
def test_legacy_apps_run_over_any_transport(tmp_path: Path, name: str, transport: str) -> None:
    said = {**said_of(transport), "record.folder": str(tmp_path)}
    result = run(plan_of(APPS / name, said, ["num-server-rounds=1"]), LineProgress())
    assert [(row["replies"], row["errors"], row["folded"]) for row in result.rows] == [(2 * NODES, 0, False)]


#: A run by the command's function, with overrides that the command line has no option for.
PROGRAM = """
import json, sys
from pathlib import Path
from thalweg.flower.run import plan_of, run
from thalweg.ui.progress import LineProgress
app, said = Path(sys.argv[1]), json.loads(sys.argv[2])
print(json.dumps(run(plan_of(app, said, ["num-server-rounds=1"]), LineProgress()).table()))
"""


def ran(app: Path, folder: Path, said: Mapping[str, Any]) -> dict[str, Any]:
    """Run an app in a folder with its data, in a process of its own that loads no data from elsewhere."""
    environment = {**os.environ, **data.ENVIRONMENT, "HF_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", PROGRAM, str(app), json.dumps({**said, "record.folder": str(folder / "runs")})]
    done = subprocess.run(
        words, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(not HAS_DATA, reason="flwr_datasets or torchvision is not installed")
@pytest.mark.parametrize(("name", "transport"), [("sklearn_iris", "grpc"), ("torch_vision", "udp")])
def test_apps_with_data_sets_run_and_learn(tmp_path: Path, name: str, transport: str) -> None:
    data.prepare(APPS / name, tmp_path, substitute="digits" if name == "torch_vision" else None)
    said = ran(APPS / name, tmp_path, said_of(transport))
    (row,) = said["rounds"]
    assert (row["replies"], row["errors"], row["folded"]) == (2 * NODES, 0, True)
    metrics = said["metrics"][-1]
    assert metrics["evaluate"]["accuracy"] > 0.5, metrics
