"""Users' own apps from end to end: the examples, in each command that takes an app."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.e2e.conftest import Program, Start
from thalweg.record import Record

pytestmark = pytest.mark.e2e

Result = Callable[..., Any]
EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = f"{EXAMPLES / 'own_app.py'}:Line"
ADAPTERS = f"{EXAMPLES / 'adapters.py'}:Adapters"
# An app without PyTorch, whose import takes longer than everything else here.
OWN = """
import numpy as np

class App:
    def __init__(self, step=1.0, hook=""):
        self.step, self.hook = step, hook
    def model(self):
        if self.hook == "model":
            raise ValueError("no way")
        return {"head": np.zeros(4, np.float32), "body": np.zeros(1000, np.float32)}
    def client_data(self, name, index, clients, seed):
        return index + 1
    def train(self, model, data, config):
        if self.hook == "train":
            model["head"] = model["head"].astype(np.float64)
        model["head"] += self.step * data
        model["body"] += 1
        return 1, {}
    def test_data(self):
        return None
    def evaluate(self, model, data):
        return {"loss": float(model["head"].mean())}

class Head(App):
    tensors = ["!body"]

class Failing(App):
    def __init__(self):
        super().__init__(hook="model")

class Widening(App):
    def __init__(self):
        super().__init__(hook="train")
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def test_the_example_runs_with_a_record_and_goes_on(result: Result, start: Start, tmp_path: Path) -> None:
    done = result("run", "--app", LINE, "--clients", "3", "--rounds", "3")
    assert done["model"] == LINE
    assert done["update_bytes"] == 68
    losses = [entry["loss"] for entry in done["rounds"]]
    assert losses == sorted(losses, reverse=True)
    folder = tmp_path / done["record"]
    record = Record(folder)
    assert record.plan.label == LINE
    assert record.manifest["app"]["file"] == str(EXAMPLES / "own_app.py")
    assert record.manifest["app"]["sha256"]
    samples = {part["client"]: part["samples"] for part in record.entries[0]["clients"]}
    assert samples == {"client-1": 10, "client-2": 20, "client-3": 30}, "each has its own data"
    again = result("run", "--resume", done["record"], "--rounds", "4")
    assert [entry["loss"] for entry in again["rounds"]][:3] == losses
    whole = result("run", "--app", LINE, "--clients", "3", "--rounds", "4", "--record", "other")
    one, other = ([entry["loss"] for entry in done["rounds"]] for done in (whole, again))
    # Allow rounding errors, because sums of f32 depend on the order of arrival.
    assert one == pytest.approx(other, rel=1e-4)
    code, out, err = start("report", done["record"], "--json").end()
    assert code == 0, err
    assert json.loads(out)["runs"][0]["model"] == LINE


def test_adapters_travel_alone(result: Result, tmp_path: Path) -> None:
    done = result("run", "--app", ADAPTERS, "--clients", "2", "--rounds", "4")
    assert done["update_bytes"] == 2 * 2 * 64 * 4
    losses = [entry["loss"] for entry in done["rounds"]]
    assert losses[-1] < 0.1 * losses[0]
    saved = load_file(tmp_path / done["record"] / "checkpoint.safetensors")
    assert list(saved) == [f"base_model.model.layer.lora_{letter}.default.weight" for letter in "AB"]


def test_a_plan_chooses_tensors_of_a_known_model(result: Result, tmp_path: Path) -> None:
    plan = (
        '[job]\nclients = 2\nrounds = 1\n[model]\nname = "lenet"\ntensors = "classifier.*"\n[data]\nname = "digits"\n'
    )
    (tmp_path / "head.toml").write_text(plan)
    done = result("run", "head.toml")
    assert done["update_bytes"] < 50_000
    assert done["rounds"][0]["complete"]


@pytest.mark.usefixtures("own")
def test_apps_in_one_process(result: Result) -> None:
    done = result("run", "--transport", "memory", "--app", "own:App", "--clients", "2", "--rounds", "2")
    assert [entry["loss"] for entry in done["rounds"]] == [1.5, 3.0]
    assert done["update_bytes"] == 64 + 4000


def test_an_app_is_compared_by_a_bench(result: Result, own: Path) -> None:
    (own / "compare.toml").write_text(
        'repetitions = 1\n[base]\napp = "own.py:App"\n[base.job]\nclients = 2\nrounds = 1\n'
        'evaluate = "server"\n[matrix]\n"app.options.step" = [1.0, 2.0]\n"model.tensors" = [["head"], ["*"]]\n'
    )
    printed = result("bench", "compare.toml")
    assert (printed["status"], printed["failed"], len(printed["cells"])) == ("complete", 0, 4)
    records = [Record(own / printed["folder"] / path) for cell in printed["cells"] for path in cell["records"]]
    assert [record.entries[-1]["loss"] for record in records] == [1.5, 1.5, 3.0, 3.0]
    assert [record.manifest["update_bytes"] for record in records] == [16, 4064, 16, 4064]


def address(server: Program) -> str:
    match = re.search(r"tcp://[0-9.]+:([0-9]+)", server.until("listening on"))
    assert match is not None
    return f"tcp://127.0.0.1:{match[1]}"


@pytest.mark.usefixtures("own")
def test_server_and_clients_take_apps(start: Start) -> None:
    server = start("server", "--app", "own:Head", "--clients", "2", "--rounds", "2", "--json")
    url = address(server)
    clients = [start("client", url, "--app", "own.py:Head", "--name", name, "--json") for name in ("anna", "berta")]
    code, out, err = server.end()
    assert code == 0, err
    assert json.loads(out)["update_bytes"] == 16
    # The layers of the body stay with the clients, so each client evaluates its own model after training.
    rounds = json.loads(out)["rounds"]
    assert [(entry["loss"], entry["client_loss"]) for entry in rounds] == [(None, 1.5), (None, 3.0)]
    assert "tensors in an update: 1 of 2" in err
    for client in clients:
        code, out, err = client.end()
        assert code == 0, err
        assert [entry["status"] for entry in json.loads(out)["rounds"]] == ["accepted", "accepted"]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("arguments", "code", "cause", "hint"),
    [
        ([], 2, "trains the user's own app", "--app"),
        (
            ["--app", "own:App"],
            1,
            "body (float32 [1000]) is here and missing at the server",
            "use the same model and the same tensors",
        ),
        (
            ["--app", "own:Head", "--tensors", "*"],
            1,
            "body (float32 [1000]) is here and missing at the server",
            "the same tensors",
        ),
    ],
)
def test_a_client_without_the_app_or_with_another_is_told(
    start: Start, arguments: list[str], code: int, cause: str, hint: str
) -> None:
    server = start("server", "--app", "own:Head", "--clients", "1", "--rounds", "1")
    found, out, err = start("client", address(server), "--name", "a", *arguments, "--json").end()
    assert found == code, err
    said = json.loads(out)["error"]
    assert cause in said["cause"]
    assert hint in said["hint"]
    server.process.send_signal(signal.SIGINT)
    server.end()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "--app", "nothing:App"], 2, "no module 'nothing'"),
        (["server", "--app", "own.py:Ap"], 2, "it has no 'Ap'"),
        (["run", "--app", "own:Failing"], 1, "model() of the app raised ValueError: no way"),
        (["server", "--app", "own:Failing"], 1, "model() of the app raised ValueError: no way"),
    ],
)
def test_an_app_that_cannot_be_is_an_error(
    start: Start, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    found, out, err = start(*arguments, "--json").end()
    assert found == code, err
    said = json.loads(out)["error"]
    assert words in said["cause"]
    assert said["hint"]
    assert ("Traceback" in err) == (code == 1), "the traceback is of the app's own code"
    assert not (tmp_path / "runs").exists()


def test_training_that_changes_the_model_is_a_client_that_fails(start: Start, own: Path) -> None:
    (own / "plan.toml").write_text('app = "own.py:Widening"\n[job]\nrounds = 1\nclients = 1\n')
    code, out, _ = start("run", "plan.toml", "--json").end()
    assert code == 1
    record = next((own / "runs").iterdir())
    assert "'head' is float64[4]; it was float32[4]" in (record / "log.txt").read_text()
    assert json.loads(out)["error"]["cause"]
