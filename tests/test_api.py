"""The API for a user's own model, and the README's example."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import thalweg
from thalweg import _core
from thalweg.errors import PlanError
from thalweg.outcome import ClientRound
from thalweg.record import Record
from thalweg.report.numbers import numbers
from thalweg.report.source import read_run

EXAMPLE = Path(__file__).parent.parent / "examples" / "own_model.py"


class Constant:
    """Trains a model to a constant; its training raises in some rounds."""

    def __init__(self, value: float, samples: int = 1) -> None:
        self.value, self.samples = value, samples
        self.seen: list[Mapping[str, Any]] = []

    def model(self) -> torch.nn.Module:
        model = torch.nn.Linear(4, 2)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        return model

    def train(self, model: torch.nn.Module, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        self.seen.append(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(self.value)
        return self.samples, {"value": self.value}

    def evaluate(self, model: torch.nn.Module, data: Any) -> dict[str, float]:
        return {"weight": float(next(model.parameters()).detach().mean())}


def take_part(server: thalweg.Server, apps: Mapping[str, Any]) -> dict[str, list[ClientRound]]:
    """Start a client for each app, in threads. Each adds its result to the returned dict when it ends."""
    results: dict[str, list[ClientRound]] = {}

    def run(name: str, app: Any) -> None:
        results[name] = thalweg.Client(app, server.address, name=name).run()

    for item in apps.items():
        threading.Thread(target=run, args=item, daemon=True).start()
    return results


def test_a_servers_arguments_default_to_the_plans_keys() -> None:
    plan = thalweg.Plan.of({})
    sections = {**vars(plan.job), **vars(plan.aggregation), **vars(plan.security), "listen": plan.transport.url}
    same = {"choose", "seed", "listen", "enough", "goal", "deadline", "grace", "stale", "partial", "deterministic"}
    same |= {"pki"}
    arguments = inspect.signature(thalweg.Server.__init__).parameters
    assert {name: arguments[name].default for name in same} == {name: sections[name] for name in same}


def test_draws_follow_from_the_seed() -> None:
    def drawn(seed: int) -> list[str]:
        apps = {name: Constant(1.0) for name in "abcd"}
        with thalweg.Server(apps["a"], clients=4, choose=1, seed=seed) as server:
            take_part(server, apps)
            assert server.wait(4) == 4
            names = [name for done in thalweg.fedavg(server, 6, data=()) for name in done.participants]
        assert {config["seed"] for app in apps.values() for config in app.seen} == {seed}
        return names

    first = drawn(1)
    assert len(first) == 6
    assert (drawn(1) == first, drawn(2) == first) == (True, False)


def test_a_server_that_counts_late_updates_takes_no_step_but_the_mean() -> None:
    with thalweg.Server(Constant(1.0), clients=1, stale=1) as server:
        server.learn_by("fedavg")
        with pytest.raises(PlanError, match="late update was trained from an older one"):
            server.learn_by("fedadam")
        with pytest.raises(PlanError, match="late update was trained from an older one"):
            server.learn_by(optimizer=lambda tensors: torch.optim.SGD(tensors, lr=1.0))


def test_the_mean_is_weighted_by_samples() -> None:
    apps = {"a": Constant(1.0, 30), "b": Constant(5.0, 10)}
    with thalweg.Server(apps["a"], clients=2) as server:
        take_part(server, apps)
        rounds = list(thalweg.fedavg(server, 3, data=(), config={"extra": "word"}))
    assert [done.metrics["weight"] for done in rounds] == [2.0, 2.0, 2.0]
    assert all(done.complete and sorted(done.participants) == ["a", "b"] for done in rounds)
    assert [config["round"] for config in apps["b"].seen] == [1, 2, 3]
    assert apps["b"].seen[0]["extra"] == "word"


def test_a_config_cannot_replace_what_thalweg_says_itself() -> None:
    """The test takes the keys that clients really receive, so its list of keys cannot become stale."""
    apps = {"a": Constant(1.0)}
    with thalweg.Server(apps["a"], clients=1) as server:
        take_part(server, apps)
        list(thalweg.fedavg(server, 1, data=()))
        assert sorted(apps["a"].seen[0]) == ["clients", "names", "round", "seed"]
        for key in apps["a"].seen[0]:
            for call in (lambda config: thalweg.fedavg(server, 1, config=config), server.round, server.advance):
                with pytest.raises(PlanError, match=f"config has the key '{key}', which thalweg sets itself") as error:
                    call({"lr": 0.1, key: 1})
                assert all(own in error.value.hint for own in apps["a"].seen[0])
        assert server.number == 1, "no round was begun"


def test_a_configs_scalars_of_other_libraries_become_numbers() -> None:
    apps = {"a": Constant(1.0)}
    config = {"lr": np.float32(0.5), "steps": np.int64(3), "on": np.bool_(True), "deep": [{"t": torch.tensor(2.5)}]}
    with thalweg.Server(apps["a"], clients=1) as server:
        take_part(server, apps)
        list(thalweg.fedavg(server, 1, data=(), config=config))
    seen = apps["a"].seen[0]
    assert {key: seen[key] for key in config} == {"lr": 0.5, "steps": 3, "on": True, "deep": [{"t": 2.5}]}
    assert [type(seen[key]) for key in ("lr", "steps", "on")] == [float, int, bool]


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"w": np.ones(3)}, r"config\['w'\] is no JSON: it has a ndarray of shape \[3\]"),
        ({"a": 1, "b": [{"c": object()}]}, r"config\['b'\] is no JSON: it has a object"),
        ({"z": 1j}, r"config\['z'\] is no JSON: it has a complex"),
        ({"k": {(1, 2): 3}}, r"config\['k'\] is no JSON: keys must be str"),
        ({"o": _circle()}, r"config\['o'\] is no JSON"),
        ([("lr", 1)], r"config is a list"),
    ],
)
def test_a_config_that_is_no_json_is_refused_at_the_call(config: Any, words: str) -> None:
    with thalweg.Server(Constant(1.0), clients=1) as server, pytest.raises(PlanError, match=words) as error:
        thalweg.fedavg(server, 1, config=config)
    assert error.value.hint


def test_completion_shows_the_api() -> None:
    code = "import sys, thalweg; print({name for name in dir(thalweg) if name[:2] != '__'} ^ set(thalweg.__all__), "
    code += "'thalweg.api' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[0] == "set() False"


class Stateful(Constant):
    """An app whose model has a layer with a state that is no tensor."""

    def model(self) -> torch.nn.Module:
        class Layer(torch.nn.Linear):
            def get_extra_state(self) -> int:
                return 7

        return Layer(4, 2)


def test_each_party_says_once_what_of_its_models_state_does_not_travel(caplog: pytest.LogCaptureFixture) -> None:
    apps = {"a": Stateful(1.0)}
    with thalweg.Server(apps["a"], clients=1) as server:
        take_part(server, apps)
        list(thalweg.fedavg(server, 2, data=()))
    said = [message for message in caplog.messages if "do not travel" in message]
    assert len(said) == 2
    assert all("'_extra_state'" in message for message in said)
    caplog.clear()
    with thalweg.Node(Stateful(1.0), name="n", data=()) as node:
        for _ in range(2):
            list(thalweg.dpsgd(node, 1))
    assert ["'_extra_state'" in message for message in caplog.messages if "do not travel" in message] == [True]


class Moving(Constant):
    """An app that trains new tensors instead of the model's."""

    def train(self, model: torch.nn.Module, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        for parameter in model.parameters():
            parameter.data = torch.full_like(parameter, self.value)
        return self.samples, {}

    def evaluate(self, model: torch.nn.Module, data: Any) -> dict[str, float]:
        metrics = super().evaluate(model, data)
        for parameter in model.parameters():
            parameter.data = torch.zeros_like(parameter)
        return metrics


def test_training_that_leaves_the_arena_reaches_the_mean(caplog: pytest.LogCaptureFixture) -> None:
    apps = {"a": Moving(1.0, 30), "b": Moving(5.0, 10)}
    with thalweg.Server(apps["a"], clients=2) as server:
        take_part(server, apps)
        rounds = list(thalweg.fedavg(server, 3, data=()))
        assert float(next(server.model.parameters()).detach().mean()) == 2.0, "evaluation does not change the model"
    assert [done.metrics["weight"] for done in rounds] == [2.0, 2.0, 2.0]
    said = [message for message in caplog.messages if "out of the arena" in message]
    assert sorted(message[:2] for message in said) == ["a:", "b:"], "each says so once"


def test_what_a_server_does_to_its_model_between_rounds_reaches_clients() -> None:
    seen: list[float] = []

    class Listening(Constant):
        def train(self, model: torch.nn.Module, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
            seen.append(float(next(model.parameters()).detach().mean()))
            return super().train(model, data, config)

    with thalweg.Server(Constant(0.0), clients=1) as server:
        take_part(server, {"a": Listening(1.0)})
        server.wait()
        for value in (3.0, 7.0):
            server.model.load_state_dict(
                {name: torch.full_like(t, value) for name, t in server.model.state_dict().items()}, assign=True
            )
            server.round()
            assert float(next(server.model.parameters()).detach().mean()) == 1.0
    assert seen == [3.0, 7.0]


def test_training_that_changes_the_model_fails_with_the_tensor() -> None:
    class Halving(Constant):
        def train(self, model: torch.nn.Module, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
            model.half()
            return super().train(model, data, config)

    with thalweg.Server(Constant(1.0), clients=1) as server:
        client = thalweg.Client(Halving(1.0), server.address, name="a")
        rounds = threading.Thread(target=lambda: _fails(server), daemon=True)
        rounds.start()
        with pytest.raises(thalweg.ThalwegError, match=r"'weight' is float16\[2, 4\]; it was float32\[2, 4\]"):
            client.run()


def _fails(server: thalweg.Server) -> None:
    with suppress(_core.CoreError):
        list(thalweg.fedavg(server, 1))


class Arrays:
    """An app whose model is a dict of NumPy arrays: training replaces one half, and changes the other half in place."""

    def __init__(self, value: float) -> None:
        self.value = value

    def model(self) -> dict[str, Any]:
        return {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float64)}

    def train(self, model: dict[str, Any], data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        model["w"] = model["w"] * 0 + np.float32(self.value)
        model["b"] += 1
        return 1, {}

    def evaluate(self, model: dict[str, Any], data: Any) -> dict[str, float]:
        return {"w": float(model["w"].mean()), "b": float(model["b"])}


def test_a_model_may_be_a_dict_of_arrays() -> None:
    apps = {"a": Arrays(1.0), "b": Arrays(2.0)}
    with thalweg.Server(apps["a"], clients=2) as server:
        take_part(server, apps)
        rounds = list(thalweg.fedavg(server, 2, data=()))
    assert [done.metrics for done in rounds] == [{"w": 1.5, "b": 1.0}, {"w": 1.5, "b": 2.0}]


def test_an_update_with_nan_is_refused_by_name_and_the_client_goes_on() -> None:
    apps = {"good": Constant(1.0), "bad": Constant(float("nan"))}
    with thalweg.Server(apps["good"], clients=2, enough=1) as server:
        results = take_part(server, apps)
        first, second = thalweg.fedavg(server, 2, data=())
    assert first.metrics["weight"] == second.metrics["weight"] == 1.0
    bad = next(part for part in first.outcome["participants"] if part["client"] == "bad")
    assert bad["state"] == "rejected"
    assert "NaN" in (bad["reason"] or "")
    assert "weight" in (bad["reason"] or "")
    assert not first.complete
    assert first.participants == ["good"]
    assert all(entry["status"] == "rejected" for entry in results.get("bad", []))


def test_too_few_updates_end_the_job_with_the_reasons() -> None:
    apps = {"bad": Constant(float("inf"))}
    with thalweg.Server(apps["bad"], clients=1) as server:
        take_part(server, apps)
        with pytest.raises(_core.CoreError, match=r"0 of 1.*bad.*inf") as error:
            list(thalweg.fedavg(server, 1))
    assert error.value.kind == "round"


class Wider(Constant):
    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(5, 2)


def test_both_ends_name_the_first_tensor_of_another_model(caplog: pytest.LogCaptureFixture) -> None:
    hint = "use the same model and the same tensors at both ends"
    said = "its model differs: weight is float32 [2, 4] here and float32 [2, 5] at the client; " + hint
    with thalweg.Server(Constant(1.0), clients=1) as server:
        with pytest.raises(_core.CoreError) as caught:
            thalweg.Client(Wider(1.0), server.address, name="odd").run()
        assert "weight is float32 [2, 5] here and float32 [2, 4] at the server; " + hint in str(caught.value)
        assert caught.value.kind == "refused"
        with caplog.at_level(logging.INFO, "thalweg"):
            assert server.wait(timeout=0.5) == 0
        assert server.absent() == {"odd": said}
        logged = [(record.levelname, record.getMessage()) for record in caplog.records]
        assert logged[0] == ("INFO", "odd was not let in: " + said)
        assert logged[-1] == ("WARNING", "waiting for 1 of 1 clients; odd: " + said)
        take_part(server, {"odd": Constant(1.0)})
        assert server.wait() == 1
        assert server.absent() == {}, "it has come with the right model"


def test_a_name_that_is_taken_is_refused() -> None:
    with thalweg.Server(Constant(1.0), clients=2) as server:
        first = thalweg.Client(Constant(1.0), server.address, name="same")
        first._core.join()
        with pytest.raises(_core.CoreError, match='named "same" is connected'):
            thalweg.Client(Constant(1.0), server.address, name="same", timeout=0.0).run()
        first.close()


def test_nobody_listens() -> None:
    with pytest.raises(_core.CoreError, match=r"refused.*start the server first"):
        thalweg.Client(Constant(1.0), "tcp://127.0.0.1:1", name="alone", timeout=0.0).run()


def test_a_closed_server_says_so() -> None:
    server = thalweg.Server(Constant(1.0), clients=1)
    server.close()
    server.close()
    with pytest.raises(_core.CoreError, match="closed"):
        server.round()


@pytest.mark.parametrize("partial", ["keep", "discard"])
def test_deterministic_bits_do_not_depend_on_who_comes_first(partial: str) -> None:
    apps = {f"c{i}": Constant(0.1 * 3**i, 7 * i + 1) for i in range(4)}
    bits = set()
    for order in (list(apps), list(reversed(apps))):
        with thalweg.Server(apps["c0"], clients=4, partial=partial, deterministic=True) as server:
            take_part(server, {name: apps[name] for name in order})
            list(thalweg.fedavg(server, 1))
            bits.add(np.asarray(server.arena.core).tobytes())
    assert len(bits) == 1


class Whole(Constant):
    """An app with every hook."""

    def test_data(self) -> str:
        return "test"

    def client_data(self, name: str, index: int, clients: int, seed: int) -> tuple[str, int, int, int]:
        return name, index, clients, seed

    def train(self, model: torch.nn.Module, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        assert data == (f"c{data[1]}", data[1], 2, 0)
        return super().train(model, data, config)

    def evaluate(self, model: torch.nn.Module, data: Any) -> dict[str, float]:
        assert data == "test"
        return {"loss": float(next(model.parameters()).detach().mean())}


def test_a_record_of_ones_own_job_is_one_as_of_any_other(tmp_path: Path) -> None:
    apps = {"c0": Whole(1.0), "c1": Whole(3.0)}
    with thalweg.Server(apps["c0"], clients=2, record=tmp_path / "runs") as server:
        take_part(server, apps)
        rounds = list(thalweg.fedavg(server, 2))
        folder = server.record
    assert [done.metrics["loss"] for done in rounds] == [2.0, 2.0]
    assert folder is not None
    record = Record(folder)
    assert record.plan.label.endswith("test_api:Whole")
    assert record.plan.job.rounds == 2
    assert record.checkpoint_round == 2
    manifest = record.manifest
    assert (manifest["status"], manifest["update_bytes"], manifest["tensors"]) == ("complete", 72, 2)
    assert manifest["app"]["file"] == __file__
    assert [entry["loss"] for entry in record.entries] == [2.0, 2.0]
    for table in ("rounds", "transfers", "participants", "parties"):
        assert (folder / f"{table}.parquet").is_file()
    assert numbers(read_run(folder)).rounds == 2
    server.close()  # a second call has no effect


def test_a_record_is_gone_on_with(tmp_path: Path) -> None:
    apps = {"c0": Whole(1.0), "c1": Whole(3.0)}
    with thalweg.Server(apps["c0"], clients=2, record=tmp_path) as server:
        take_part(server, apps)
        list(thalweg.fedavg(server, 2))
        folder = server.record
    assert folder is not None
    with thalweg.Server(Whole(0.0), clients=2, resume=folder) as server:
        assert server.number == 2
        assert torch.equal(server.model.weight, torch.full((2, 4), 2.0)), "the checkpoint's model"
        take_part(server, {"c0": Whole(5.0), "c1": Whole(5.0)})
        assert [done.number for done in thalweg.fedavg(server, 5 - server.number)] == [3, 4, 5]
    record = Record(folder)
    assert [entry["round"] for entry in record.entries] == [1, 2, 3, 4, 5]
    assert record.plan.job.rounds == 5
    with pytest.raises(thalweg.ThalwegError, match="the plan differs"):
        thalweg.Server(Whole(0.0), clients=3, resume=folder)
    with pytest.raises(thalweg.ThalwegError, match="Give record or resume"):
        thalweg.Server(Whole(0.0), clients=2, record=tmp_path, resume=folder)


def test_a_job_that_fails_says_so_in_its_record(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), thalweg.Server(Constant(1.0), clients=1, record=tmp_path) as server:
        _ = 1 / 0
    assert server.record is not None
    assert Record(server.record).manifest["status"] == "failed"
    assert "ZeroDivisionError" in (server.record / "log.txt").read_text()


def test_rounds_without_an_evaluation_are_kept_too(tmp_path: Path) -> None:
    with thalweg.Server(Constant(1.0), clients=1, record=tmp_path) as server:
        take_part(server, {"a": Constant(1.0)})
        server.wait()
        server.round()
        server.round({"extra": 1})
    assert server.record is not None
    assert [entry["loss"] for entry in Record(server.record).entries] == [None, None]
    assert Record(server.record).plan.job.rounds == 2


class Headed(Constant):
    """An app whose bias does not travel. It is the share of right answers."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(2, 1)

    def test_data(self) -> str:
        return "test"

    def evaluate(self, model: torch.nn.Module, data: Any) -> dict[str, float]:
        assert data == "test"
        return {"accuracy": float(model.get_parameter("bias").detach()[0])}


@pytest.mark.parametrize(
    ("tensors", "evaluate", "says"),
    [
        (None, None, {"accuracy": 0.375}),
        ("weight", None, {"client_accuracy": 0.375}),
        ("weight", "server", {"accuracy": 0.0}),
        ("weight", "both", {"accuracy": 0.0, "client_accuracy": 0.375}),
        (None, "clients", {"client_accuracy": 0.375}),
    ],
)
def test_clients_evaluate_where_their_models_are_others_than_the_servers(
    tmp_path: Path, tensors: str | None, evaluate: Any, says: dict[str, float]
) -> None:
    apps = {"a": Headed(0.25), "b": Headed(0.5)}
    with thalweg.Server(
        apps["a"], clients=2, tensors=tensors, evaluate=evaluate, record=tmp_path, deterministic=True
    ) as server:
        with torch.no_grad():
            server.model.bias.fill_(0.0)
        for name, app in apps.items():
            client = thalweg.Client(app, server.address, name=name, tensors=tensors)
            threading.Thread(target=client.run, daemon=True).start()
        [done] = thalweg.fedavg(server, 1)
    assert done.metrics == says
    assert server.record is not None
    [entry] = Record(server.record).entries
    assert {key: entry[key] for key in ("accuracy", "client_accuracy") if entry[key] is not None} == says
    own = {part["client"]: part["evaluation"].get("accuracy") for part in entry["clients"]}
    assert own == ({"a": 0.25, "b": 0.5} if "client_accuracy" in says else {"a": None, "b": None})


def test_clients_cannot_evaluate_what_has_no_evaluation() -> None:
    with pytest.raises(PlanError, match="the app has nothing to evaluate"):
        thalweg.Server(Constant(1.0), clients=1, evaluate="clients")


def test_personal_layers_and_frozen_weights_stay_at_home(tmp_path: Path) -> None:
    """A checkpoint has only the tensors that travel. Of the other tensors each client keeps its own values."""

    class Personal(Constant):
        tensors = ("weight",)

    apps = {"a": Personal(1.0), "b": Personal(5.0)}
    with thalweg.Server(apps["a"], clients=2, record=tmp_path) as server:
        clients = [thalweg.Client(app, server.address, name=name) for name, app in apps.items()]
        threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        list(thalweg.fedavg(server, 2))
        assert torch.equal(server.model.bias, torch.zeros(2)), "the server's own"
        assert torch.equal(server.model.weight, torch.full((2, 4), 3.0))
    for thread in threads:
        thread.join(60)
    assert [float(client.model.bias.detach().mean()) for client in clients] == [1.0, 5.0]
    assert server.record is not None
    saved = load_file(server.record / "checkpoint.safetensors")
    assert list(saved) == ["weight"]
    assert Record(server.record).plan.model.tensors == ["weight"]
    with thalweg.Server(Personal(0.0), clients=2, resume=server.record) as again:
        assert torch.equal(again.model.weight, torch.full((2, 4), 3.0))
    with pytest.raises(thalweg.ThalwegError, match=r"model\.tensors"):
        thalweg.Server(Constant(0.0), clients=2, resume=server.record)


def test_an_argument_goes_before_the_apps_own_choice() -> None:
    class Personal(Constant):
        tensors = "weight"

    with thalweg.Server(Personal(1.0), clients=1, tensors=["weight", "bias"]) as server:
        assert list(server.arena) == ["weight", "bias"]
        with pytest.raises(_core.CoreError, match="the same model and the same tensors at both ends"):
            thalweg.Client(Personal(1.0), server.address, name="odd").run()


def test_the_example_is_short_and_learns() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 10, done.stdout + done.stderr
    assert sorted(lines[0].split(" from ")[1].split(", ")) == ["c0", "c1", "c2"]
    assert float(lines[-1].split("loss ")[1].split()[0]) < 0.01
