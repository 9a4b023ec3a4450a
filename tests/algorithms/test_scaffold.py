"""SCAFFOLD: rounds of known models over real parts of the job are those of the paper's algorithm in plain PyTorch.

Flower has no strategy of this name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

import thalweg
from thalweg import _core, algorithms
from thalweg.algorithms import local_sgd
from thalweg.algorithms.scaffold import CONTROL, SPAN, Control, Step
from thalweg.algorithms.server_step import ServerStep
from thalweg.apps.received_config import ReceivedConfig
from thalweg.data.transform import batch
from thalweg.errors import PlanError, RoundError
from thalweg.job.common.parties import AppClient, known_app, round_config, server_party
from thalweg.outcome.core import Participant
from thalweg.plan import Plan
from thalweg.tensors.arena import Arena
from thalweg.tensors.binding import attach

CLIENTS, ROUNDS, RATE = 3, 3, 0.05
TABLE: dict[str, Any] = {
    "algorithm": {"name": "scaffold", "server_learning_rate": 0.5},
    "job": {"clients": CLIENTS, "rounds": ROUNDS},
    "model": {"name": "lenet"},
    # One batch in a round is all of a client's data, so that the order of samples does not matter.
    "data": {"name": "digits", "samples": 90, "partition": "kshard:2", "test_samples": 10},
    "training": {"batch": 100, "local_epochs": 2, "momentum": 0.0, "learning_rate": RATE, "threads": 1},
}


def counted(name: str) -> Participant:
    return Participant(client=name, state="whole", samples=1.0, metrics={}, coverage=1.0, reason=None)


def by_paper(taking_part: list[list[int]], correcting: float = 1.0) -> dict[str, Tensor]:
    """Algorithm 1 with option II; ``taking_part`` has the clients of each round. With ``correcting`` 0 it is FedAvg."""
    plan = Plan.of(TABLE)
    apps = [known_app(plan, place) for place in range(CLIENTS)]
    model = apps[0].model()
    names = [name for name, _ in model.named_parameters()]
    x = {name: p.detach().clone() for name, p in model.named_parameters()}
    c = {name: torch.zeros_like(x[name]) for name in names}
    own = [{name: torch.zeros_like(x[name]) for name in names} for _ in apps]
    for members in taking_part:
        deltas_y, deltas_c = [], []
        for place in members:
            model.load_state_dict({**model.state_dict(), **x})
            data, steps = apps[place].train_data(), 2
            for _ in range(steps):
                inputs, labels = batch(data, slice(0, len(data)), None)
                model.zero_grad()
                torch.autograd.backward(cross_entropy(model(inputs), labels))
                with torch.no_grad():
                    for name, p in model.named_parameters():
                        assert p.grad is not None
                        p.sub_(RATE * (p.grad + correcting * (c[name] - own[place][name])))
            y = {name: p.detach().clone() for name, p in model.named_parameters()}
            new = {name: own[place][name] - c[name] + (x[name] - y[name]) / (steps * RATE) for name in names}
            deltas_y.append({name: y[name] - x[name] for name in names})
            deltas_c.append({name: new[name] - own[place][name] for name in names})
            own[place] = new
        for name in names:
            x[name] = x[name] + 0.5 * torch.stack([d[name] for d in deltas_y]).mean(0)
            share = len(members) / CLIENTS
            c[name] = c[name] + share * torch.stack([d[name] for d in deltas_c]).mean(0)
    return x


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("taking_part", [[[0, 1, 2]] * ROUNDS, [[0, 1], [1, 2], [0, 2]]])
def test_rounds_are_those_of_the_paper(
    taking_part: list[list[int]], monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    """With ``restarts`` a new server takes over before each round, with the state of a checkpoint."""
    # Images as they are, in their order: sums in float32 depend on it.
    monkeypatch.setattr(local_sgd, "batch", lambda data, chosen, _: batch(data, np.sort(chosen), None))
    plan = Plan.of(TABLE)
    party = server_party(plan)
    algorithm = algorithms.find("scaffold")
    step = algorithm.server_step(party.arena, party.trained, plan.algorithm_settings, clients=CLIENTS)
    assert isinstance(step, Step)
    arena, clients = Arena(party.arena), []
    for place in range(CLIENTS):
        app = known_app(plan, place)
        own = _core.Arena(party.arena.layout)
        clients.append((own, AppClient(app, attach(app.model(), own, beside=CONTROL), app.train_data())))
    for number, members in enumerate(taking_part, 1):
        if restarts:
            state = step.state()
            step = algorithm.server_step(party.arena, party.trained, plan.algorithm_settings, clients=CLIENTS)
            assert isinstance(step, Step)
            step.load(state)
        step.before()
        config = ReceivedConfig(round_config(plan, number, plan.members).table())
        sums: dict[str, Any] = {}
        said = []
        for place in members:
            own, client = clients[place]
            np.asarray(own)[:] = np.asarray(party.arena)
            weight, metrics = client.train(config)
            assert (weight, metrics[SPAN]) == (1.0, pytest.approx(2 * RATE))
            for name, values in Arena(own).items():
                sums[name] = sums.get(name, 0) + values.astype(np.float64) / len(members)
            said.append(
                Participant(client=str(place), state="whole", samples=1.0, metrics={}, coverage=1.0, reason=None)
            )
        for name, values in sums.items():
            arena[name][...] = values
        step.after(said)
    plain, farthest = by_paper(taking_part, 0.0), 0.0
    for name, expected in by_paper(taking_part).items():
        np.testing.assert_allclose(arena[name], expected.numpy(), rtol=1e-4, atol=2e-6, err_msg=name)
        farthest = max(farthest, float((plain[name] - expected).abs().max()))
    assert farthest > 1e-4, "the corrections are far larger than the tolerance"


def test_a_checkpoint_of_another_model_or_algorithm_is_refused() -> None:
    def step_of(shape: list[int]) -> Step:
        arena = _core.Arena(_core.Layout([("w", "F32", shape), (f"{CONTROL}w", "F32", shape)]))
        step = algorithms.find("scaffold").server_step(arena, ["w"], {"server_learning_rate": 1.0}, clients=2)
        assert isinstance(step, Step)
        return step

    with pytest.raises(RoundError, match="cannot take"):
        step_of([3]).load(step_of([2]).state())
    other = _core.Arena(_core.Layout([("w", "F32", [3])]))
    settings = {"server_learning_rate": 1.0, "server_momentum": 0.9, "nesterov": False}
    momentum = algorithms.find("fedavgm").server_step(other, ["w"], settings)
    assert momentum is not None
    with pytest.raises(RoundError, match="cannot take"):
        step_of([3]).load(momentum.state())
    with pytest.raises(RoundError, match="cannot take"):
        momentum.load(step_of([3]).state())


def test_a_server_whose_clients_are_all_new_forgets_their_control_variates() -> None:
    """A difference between the server's variate and the mean of the clients' would stay for ever."""
    arena = _core.Arena(_core.Layout([("w", "F32", [3]), (f"{CONTROL}w", "F32", [3])]))
    algorithm, tensors = algorithms.find("scaffold"), Arena(arena)
    step = algorithm.server_step(arena, ["w"], {"server_learning_rate": 1.0}, clients=1)
    assert isinstance(step, Step)
    for number in (1, 2):  # the client is new in each round
        client = Control(tensors, ["w"])
        step.forget_clients()
        step.before()
        np.testing.assert_array_equal(tensors[f"{CONTROL}w"], 0)
        client.corrections()
        tensors["w"][...] -= 2.0 * number
        client.finish({SPAN: 1.0})
        step.after([Participant(client="a", state="whole", samples=1, metrics={}, coverage=1.0, reason=None)])
        state = step.state()
        step = algorithm.server_step(arena, ["w"], {"server_learning_rate": 1.0}, clients=1)
        assert isinstance(step, Step)
        step.load(state)
        # The server's variate is the client's: the gradient of this round alone.
        step.before()
        np.testing.assert_array_equal(tensors[f"{CONTROL}w"], 2.0 * number)


def test_a_tensor_without_a_shape_has_a_correction_of_no_shape() -> None:
    arena = Arena(_core.Arena(_core.Layout([("w", "F32", []), (f"{CONTROL}w", "F32", [])])))
    correction = Control(arena, ["w"]).corrections()["w"]
    assert isinstance(correction, np.ndarray)
    assert correction.shape == ()


def test_control_variates_begin_as_0_and_sum_to_the_servers() -> None:
    core = _core.Arena(_core.Layout([("w", "F64", [2]), (f"{CONTROL}w", "F64", [2])]))
    arena = Arena(core)
    control = Control(arena, ["w"])
    assert not control.corrections()["w"].any()
    arena["w"][...] = [-1.0, 2.0]
    control.finish({SPAN: 0.5})
    np.testing.assert_array_equal(arena[f"{CONTROL}w"], [2.0, -4.0])
    arena["w"][...] = 0.0
    np.testing.assert_array_equal(control.corrections()["w"], 0.0)
    made = algorithms.find("scaffold").server_step(core, ["w"], {"server_learning_rate": 1.0}, clients=4)
    assert isinstance(made, ServerStep)
    made.before()
    assert not arena[f"{CONTROL}w"].any(), "the server's begins as 0, whatever a checkpoint has"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"training": {"momentum": 0.9}}, "computes its corrections from plain SGD, and training.momentum is 0.9"),
        ({"app": "here:App"}, "each of them has to be corrected"),
        ({"model": {"name": "payload:4KB"}}, "is not trained"),
        ({"job": {"graph": "ring"}, "training": {"momentum": 0.0}}, "there is no server that could keep a model"),
    ],
)
def test_what_cannot_be_is_refused(table: dict[str, Any], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Plan.of({"algorithm": {"name": "scaffold"}, **table})


@pytest.mark.e2e
def test_a_job_with_processes_learns_and_sends_twice_the_bytes(tmp_path: Any) -> None:
    plan = Plan.of({**TABLE, "record": {"folder": str(tmp_path)}})
    result = thalweg.run(plan)
    checkpoint = load_file(result.record / "checkpoint.safetensors")
    controls = {name: values for name, values in checkpoint.items() if name.startswith(CONTROL)}
    assert controls
    assert any(values.any() for values in controls.values())
    plain = thalweg.run(plan.merge({"algorithm.name": "fedavgm"}))
    sent = [entry["bytes_up"] for entry in (result.rounds[0], plain.rounds[0])]
    assert sent[0] == pytest.approx(2 * sent[1], rel=0.1)
