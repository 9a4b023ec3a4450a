"""``thalweg.rounds``: algorithms and optimizers over real links, and their state after a restart of the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import thalweg
from thalweg.errors import PlanError, RoundError
from thalweg.record import Record


class Drift:
    """Adds a number to each value, and reports ``steps`` as FedNova asks for it."""

    def __init__(self, step: float = 1.0, samples: int = 1, steps: int | None = None) -> None:
        self.step, self.samples, self.steps = step, samples, steps

    def model(self) -> Any:
        return {"w": np.zeros(6), "count": np.zeros(2, np.int64)}

    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        model["w"] += self.step
        model["count"] += 2
        return self.samples, {} if self.steps is None else {"fednova_norm": self.steps}

    def evaluate(self, model: Any, data: Any) -> dict[str, float]:
        return {"loss": float(np.square(model["w"] - 1.0).mean())}


class Layers(Drift):
    """A module whose BatchNorm has buffers, which no optimizer changes."""

    def model(self) -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))

    def train(self, model: Any, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.add_(1)
        return 1, {}


class Evaluated(Drift):
    """Evaluates on the client's test data: the loss says which model that was."""

    def train_data(self) -> Any:
        return ()

    def test_data(self) -> Any:
        return ()


@contextmanager
def served(
    apps: Sequence[Any], *, record: Path | None = None, resume: Path | None = None, evaluate: Any = None
) -> Iterator[thalweg.Server]:
    """Yield a server with a client for each app."""
    with thalweg.Server(apps[0], clients=len(apps), record=record, resume=resume, evaluate=evaluate) as server:
        threads = []
        for place, app in enumerate(apps):
            client = thalweg.Client(app, server.address, name=f"c{place}", data=())
            threads.append(threading.Thread(target=client.run, daemon=True))
            threads[-1].start()
        yield server
    for thread in threads:
        thread.join()


def run(
    apps: Sequence[Any], rounds: int, *, record: Path | None = None, resume: Path | None = None, **how: Any
) -> dict[str, Any]:
    """Run rounds with a client for each app; return the model's tensors as NumPy arrays, and the record's folder."""
    with served(apps, record=record, resume=resume) as server:
        for _ in thalweg.rounds(server, rounds, **how):
            pass
        values = {name: array.copy() for name, array in server.arena.items()}
        values["record"] = server.record
    return values


def test_an_app_of_arrays_has_momentum() -> None:
    values = run([Drift(1.0, 1), Drift(3.0, 3)], 3, algorithm={"name": "fedavgm", "server_momentum": 0.5})
    step, velocity, expected = 2.5, 0.0, 0.0
    for _ in range(3):
        velocity = 0.5 * velocity + step
        expected += velocity
    np.testing.assert_allclose(values["w"], expected)
    np.testing.assert_array_equal(values["count"], 6, "integers become their mean")


def test_any_optimizer_changes_what_is_trained_alone() -> None:
    values = run([Layers()], 2, optimizer=lambda tensors: torch.optim.SGD(tensors, lr=0.5))
    first = {name: tensor.numpy() for name, tensor in Layers().model().state_dict().items()}
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        np.testing.assert_allclose(values[name], first[name] + 1, rtol=1e-6)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        np.testing.assert_allclose(values[name], first[name] + 2, err_msg=name)


def test_fednova_goes_as_far_as_the_mean_number_of_steps() -> None:
    values = run([Drift(1.0, 1, steps=1), Drift(8.0, 3, steps=4)], 1, algorithm="fednova")
    np.testing.assert_allclose(values["w"], (0.25 * 1 + 0.75 * 4) * (0.25 * 1 + 0.75 * 2))


def test_clients_evaluate_the_trained_model_and_not_the_update() -> None:
    with served([Evaluated(8.0, steps=4)], evaluate="clients") as server:
        (done,) = thalweg.rounds(server, 1, algorithm="fednova")
    assert done.metrics["client_loss"] == (8.0 - 1.0) ** 2, "the update of 8 / 4 has the loss 1"


def test_qfedavg_gives_a_lossier_client_more_weight() -> None:
    class Far(Drift):
        def evaluate(self, model: Any, data: Any) -> dict[str, float]:
            return {"loss": 4.0}

    values = run([Drift(0.1), Far(-0.1)], 1, algorithm={"name": "qfedavg", "q": 1.0, "lipschitz": 1.0})
    # F = 1 and 4; h = q |update|^2 + L F.
    np.testing.assert_allclose(values["w"], (1 * 0.1 + 4 * -0.1) / (2 * 6 * 0.01 + 1 + 4), rtol=1e-6)


HOW: list[dict[str, Any]] = [
    {"algorithm": "fedyogi"},
    {"algorithm": "fedadam"},
    {"optimizer": lambda tensors: torch.optim.AdamW(tensors, lr=0.1)},
]


@pytest.mark.parametrize("how", HOW, ids=["fedyogi", "fedadam", "AdamW"])
def test_a_resumed_record_goes_on_with_the_optimizers_state(tmp_path: Path, how: dict[str, Any]) -> None:
    whole = run([Drift()], 4, **how)
    half = run([Drift()], 2, record=tmp_path, **how)
    checkpoint = load_file(half["record"] / "checkpoint.safetensors")
    assert any(name.startswith("thalweg_server/") for name in checkpoint)
    assert Record(half["record"]).manifest["algorithm"]["optimizer"]
    rest = run([Drift()], 2, resume=half["record"], **how)
    np.testing.assert_array_equal(rest["w"], whole["w"])


def test_a_resumed_record_wants_its_optimizer_again(tmp_path: Path) -> None:
    record = run([Drift()], 1, record=tmp_path, algorithm="fedyogi")["record"]
    with thalweg.Server(Drift(), clients=1, resume=record) as server:
        with pytest.raises(PlanError, match="the record has the state of an optimizer, and no optimizer is given"):
            thalweg.rounds(server, 1)
        with pytest.raises(RoundError, match="the state of Yogi, which Adam for this model cannot take"):
            thalweg.rounds(server, 1, algorithm="fedadam")


MOMENTUM: dict[str, Any] = {"name": "fedavgm", "server_momentum": 0.5}


def by_sgd(tensors: Any) -> Any:
    return torch.optim.SGD(tensors, lr=1.0, momentum=0.5)


@pytest.mark.parametrize("how", [{"algorithm": MOMENTUM}, {"optimizer": by_sgd}], ids=["fedavgm", "SGD"])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_second_call_goes_on_with_the_state(tmp_path: Path, how: dict[str, Any], *, resumed: bool) -> None:
    whole = run([Drift()], 4, **how)
    record = run([Drift()], 1, record=tmp_path, **how)["record"] if resumed else None
    with served([Drift()], resume=record) as server:
        for rounds in (1, 2) if resumed else (2, 2):
            assert len(list(thalweg.rounds(server, rounds, **how))) == rounds
        np.testing.assert_array_equal(server.arena["w"], whole["w"])


def test_other_settings_begin_anew() -> None:
    with served([Drift()]) as server:
        list(thalweg.rounds(server, 2, algorithm=MOMENTUM))
        before = server.arena["w"].copy()
        list(thalweg.rounds(server, 1, algorithm={**MOMENTUM, "server_learning_rate": 0.5}))
        np.testing.assert_allclose(server.arena["w"] - before, 0.5)


@pytest.mark.parametrize("mean", [lambda server: list(thalweg.fedavg(server, 1)), lambda server: server.round()])
def test_fedavg_and_a_single_round_take_the_mean_after_an_algorithm(mean: Any) -> None:
    with served([Drift()]) as server:
        list(thalweg.rounds(server, 2, algorithm=MOMENTUM))
        before = server.arena["w"].copy()
        mean(server)
        np.testing.assert_allclose(server.arena["w"] - before, 1.0)


@pytest.mark.parametrize(
    "go_on", [lambda server: thalweg.fedavg(server, 1), lambda server: server.round(), lambda server: server.advance()]
)
def test_no_call_drops_the_state_of_a_resumed_record(tmp_path: Path, go_on: Any) -> None:
    record = run([Drift()], 1, record=tmp_path, algorithm="fedyogi")["record"]
    with thalweg.Server(Drift(), clients=1, resume=record) as server:
        for _ in range(2):
            with pytest.raises(PlanError, match="the record has the state of an optimizer, and no optimizer is given"):
                go_on(server)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"algorithm": {"name": "fednova", "nesterov": True}}, "algorithm.server_momentum is 0"),
        (
            {"algorithm": {"name": "fedavgm", "server_momentum": 0.0, "nesterov": True}},
            "algorithm.server_momentum is 0",
        ),
        ({"algorithm": "fedavgg"}, "unknown algorithm 'fedavgg'"),
        ({"algorithm": "dpsgd"}, "dpsgd needs a graph"),
        ({"algorithm": "fedprox"}, "add mu times the distance to its gradients in train"),
        ({"algorithm": {"name": "fedadam", "q": 1.0}}, "algorithm.q has no effect"),
        ({"algorithm": "qfedavg"}, "does not know the learning rate of an app"),
        ({"algorithm": "fedadam", "optimizer": torch.optim.Adam}, "both say how the server changes the model"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS computes the loss several times"),
    ],
)
def test_what_cannot_be_is_refused_at_once(how: dict[str, Any], why: str) -> None:
    with thalweg.Server(Drift(), clients=1) as server, pytest.raises(PlanError, match=why):
        thalweg.rounds(server, 1, **how)


APP = """
import numpy as np

class App:
    def model(self):
        return {"w": np.zeros(1000), "count": np.zeros(1, np.int64)}
    def train(self, model, data, config):
        model["w"] += 1.0
        model["count"] += 1
        return 1, {}
    def train_data(self):
        return ()
"""
TREE = {"aggregation": {"shape": "tree"}, "nodes": {"count": 2, "capacity": 2}}
JOBS: dict[str, dict[str, Any]] = {
    "star": {},
    "dedicated": {**TREE, "tree": {"top": "dedicated"}},
    "first-finished": {**TREE, "tree": {"top": "first-finished"}},
    "sharded": {**TREE, "tree": {"top": "sharded"}},
}


@pytest.mark.e2e
@pytest.mark.parametrize("job", JOBS)
def test_each_shape_with_a_server_takes_the_steps_and_resumes(tmp_path: Path, job: str) -> None:
    app = tmp_path / f"drift_{job.partition('-')[0]}.py"
    app.write_text(APP)
    table = {
        "app": f"{app}:App",
        "job": {"clients": 3, "rounds": 2},
        "algorithm": {"name": "fedavgm", "server_momentum": 0.5, "nesterov": True},
        "record": {"folder": str(tmp_path / "runs")},
        **JOBS[job],
    }
    plan = thalweg.Plan.of(table)
    record = thalweg.run(plan).record
    thalweg.run(plan.merge({"job.rounds": 4}), resume=record)
    velocity, expected = 0.0, 0.0
    for _ in range(4):
        velocity = 0.5 * velocity + 1.0
        expected += 1.0 + 0.5 * velocity
    checkpoint = load_file(record / "checkpoint.safetensors")
    np.testing.assert_allclose(checkpoint["w"], expected, rtol=1e-12)
    assert checkpoint["count"] == [4]
    np.testing.assert_allclose(checkpoint["thalweg_server/SGD/0/momentum_buffer"], -velocity)
