"""Unmodified apps (legacy API, scikit-learn, PyTorch) over network transports, and under loss."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from thalweg.flower import data
from thalweg.flower.run import plan_of, run
from thalweg.ui.progress import LineProgress

pytestmark = pytest.mark.e2e

APPS = Path(__file__).parent / "apps"
LIMIT = 180.0
NODES = 2
TRANSPORTS = ("tcp", "grpc", *(("mqtt",) if shutil.which("mosquitto") else ()), "udp")
#: The options of the fault layer, which loses and reorders chunks.
FAULTS = {"loss": 0.2, "duplicate": 0.1, "corrupt": 0.1, "reorder": 0.2}
HAS_DATA = importlib.util.find_spec("flwr_datasets") is not None and importlib.util.find_spec("torchvision") is not None


def said_of(transport: str) -> dict[str, Any]:
    """Return the overrides of a run whose nodes share a process; over udp it loses chunks."""
    faults = {"layers.fault": FAULTS} if transport == "udp" else {}
    return {"transport.url": transport, "job.clients": NODES, "app.processes": 1, **faults}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["numpy_legacy", "legacy_workflow"])
def test_legacy_apps_run_over_any_transport(tmp_path: Path, name: str, transport: str) -> None:
    said = {**said_of(transport), "record.folder": str(tmp_path)}
    result = run(plan_of(APPS / name, said, ["num-server-rounds=1"]), LineProgress())
    assert [(row["replies"], row["errors"], row["folded"]) for row in result.rows] == [(2 * NODES, 0, False)]


#: A program that calls the function of `thalweg flower run` for each set of overrides, some of which have no option.
PROGRAM = """
import json, sys
from pathlib import Path
from thalweg.flower.run import plan_of, run
from thalweg.ui.progress import LineProgress
app, overrides = Path(sys.argv[1]), json.loads(sys.argv[2])
for said in overrides:
    print(json.dumps(run(plan_of(app, said, ["num-server-rounds=1"]), LineProgress()).table()), flush=True)
"""


def ran(app: Path, folder: Path, overrides: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Run an app once for each set of overrides, in a folder with its data; return what the command prints.

    The process cannot load data from a network. All runs share one process, because loading the libraries takes longer
    than a run.
    """
    environment = {**os.environ, **data.ENVIRONMENT, "HF_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    record = {"record.folder": str(folder / "runs")}
    words = [sys.executable, "-c", PROGRAM, str(app), json.dumps([{**said, **record} for said in overrides])]
    done = subprocess.run(
        words, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(not HAS_DATA, reason="flwr_datasets or torchvision is not installed")
@pytest.mark.parametrize("name", ["sklearn_iris", "torch_vision"])
def test_apps_with_data_sets_run_and_learn_over_any_transport(tmp_path: Path, name: str) -> None:
    data.prepare(APPS / name, tmp_path, substitute="digits" if name == "torch_vision" else None)
    run_result = ran(APPS / name, tmp_path, [said_of(transport) for transport in TRANSPORTS])
    for transport, said in zip(TRANSPORTS, run_result, strict=True):
        (row,) = said["rounds"]
        assert (row["replies"], row["errors"], row["folded"]) == (2 * NODES, 0, True), transport
        assert said["metrics"][-1]["evaluate"]["accuracy"] > 0.5, (transport, said["metrics"])
