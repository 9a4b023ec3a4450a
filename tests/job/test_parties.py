"""What the server and the clients do with the model in their arenas."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from thalweg import _core, apps
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import PlanError
from thalweg.job.common.parties import (
    AppClient,
    PartyBuilder,
    Payload,
    bytes_of,
    modules_of,
    round_config,
    server_party,
)
from thalweg.models import PayloadSpec
from thalweg.plan import Plan
from thalweg.tensors.binding import attach

DIGITS: dict[str, Any] = {"job": {"clients": 2, "seed": 3}, "model": {"name": "lenet"}, "data": {"name": "digits"}}


def test_a_payload_follows_from_its_seed() -> None:
    payload = PayloadSpec({"payload": 4096}, "F32")
    one, two, again = (np.asarray(Payload.of(payload, seed).arena).view(np.float32) for seed in (1, 2, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != two).any()
    assert one.size == 1024


def test_a_payload_of_several_tensors_has_no_gaps() -> None:
    arena = server_party(Plan.of({"model": {"name": "payload:10x320B"}})).arena
    assert [tensor[0] for tensor in arena.layout.tensors] == [f"payload.{place}" for place in range(10)]
    assert len(arena) == 3200


def test_a_payload_plan_has_a_payload_on_both_sides() -> None:
    plan = Plan.of({"model": {"name": "payload:4KB"}})
    party = server_party(plan)
    assert (party.parameters, len(party.arena), party.evaluate()) == (1000, 4000, {})
    config = round_config(plan, 7, ["a"]).table()
    assert config == {"round": 7, "model": "payload:4KB"}
    client = PartyBuilder("a", data_root=None, threads=None)(ReceivedConfig(config), party.arena)
    assert client.train(ReceivedConfig(config)) == (1, {})


def test_a_payload_may_take_its_time() -> None:
    plan = Plan.of({"model": {"name": "payload:4KB"}, "training": {"compute": "20ms"}})
    config = round_config(plan, 1, ["a"]).table()
    assert config["training"] == {"compute": 0.02, "compute_load": "none"}
    party = server_party(plan)
    client = PartyBuilder("a", data_root=None, threads=None)(ReceivedConfig(config), party.arena)
    before, started = bytes(bytes_of(party.arena)), time.monotonic()
    assert client.train(ReceivedConfig(config)) == (1, {})
    assert time.monotonic() - started >= 0.02
    assert bytes(bytes_of(party.arena)) == before
    used = time.thread_time()
    client.train(ReceivedConfig({**config, "training": {"compute": 0.02, "compute_load": "cpu"}}))
    assert time.thread_time() - used >= 0.02


@pytest.mark.parametrize("said", [{"compute": -1}, {"compute": True}, {"compute": 1, "compute_load": "gpu"}, {"a": 1}])
def test_a_computation_that_means_nothing_is_refused(said: dict[str, Any]) -> None:
    party = Payload.of(PayloadSpec({"payload": 64}, "F32"), 0)
    with pytest.raises(PlanError, match="the server says compute"):
        party.train(ReceivedConfig({"training": said}))


def test_what_the_server_says_is_enough_to_train() -> None:
    plan = Plan.of(DIGITS)
    config = ReceivedConfig(round_config(plan, 1, ["a", "b"]).table())
    server = server_party(plan)
    arena = _core.Arena(server.arena.layout)
    bytes_of(arena)[:] = bytes_of(server.arena)
    before = bytes(bytes_of(arena))
    samples, metrics = PartyBuilder("b", data_root=None, threads=1)(config, arena).train(config)
    assert samples > 0
    assert cast("float", metrics["loss"]) > 0
    assert bytes(bytes_of(arena)) != before, "training happens in the arena"
    assert bytes(bytes_of(server.arena)) == before
    assert set(server.evaluate()) >= {"accuracy", "loss"}


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [({"name": "qfedavg"}, "algorithm.lipschitz has no value"), ({"name": "qfedavg", "lipschitz": 1.0}, None)],
)
def test_settings_that_the_server_leaves_out_are_the_defaults(algorithm: dict[str, Any], words: str | None) -> None:
    arena = _core.Arena(_core.Layout([("w", "F64", [2])]))

    class App:
        def evaluate(self, model: Any, data: Any) -> dict[str, float]:
            return {"loss": 4.0}

        def train(self, model: Any, data: Any, config: Any) -> tuple[int, dict[str, float]]:
            model["w"] += 1.0
            return 7, {}

    client = AppClient(App(), attach({"w": np.zeros(2)}, arena), ())
    config = ReceivedConfig({"algorithm": algorithm})
    if words is not None:
        with pytest.raises(PlanError, match=words):
            client.train(config)
        return
    weight, _ = client.finish(*client.train(config))
    assert weight == pytest.approx(4.0**0.2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": "many"}, "clients in"),
        ({"seed": None}, "seed in"),
        ({"names": "a"}, "which clients there are"),
        ({"training": {"batch": -1}}, "batch in"),
        ({"training": {"bacth": 1}}, "unknown key 'bacth'"),
    ],
)
def test_what_the_server_says_is_checked(change: dict[str, Any], words: str) -> None:
    config = {**round_config(Plan.of(DIGITS), 1, ["a", "b"]).table(), **change}
    with pytest.raises(PlanError, match=words):
        PartyBuilder("a", data_root=None, threads=None).prepare(ReceivedConfig(config))


def test_a_server_does_not_choose_the_folders_of_clients() -> None:
    plan = Plan.of({"data": {"name": "cifar10", "root": "/etc"}})
    assert "root" not in (round_config(plan, 1, []).data or {})


def test_a_payload_of_float64_has_values_of_eight_bytes() -> None:
    party = Payload.of(PayloadSpec({"payload": 4096}, "F64"), 1)
    values = np.asarray(party.arena).view(np.float64)
    assert party.parameters == len(values) == 512
    assert party.arena.layout.tensors[0][1] == "F64"
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() < 1


@pytest.mark.parametrize(
    ("body", "modules"),
    [
        ("import numpy", []),
        ("import torch", ["torch"]),
        ("import torch\nmake = torch.optim.SGD", ["torch", "torch._dynamo"]),
    ],
)
def test_clients_of_an_app_share_what_its_first_optimizer_imports(
    body: str, modules: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shared_imports.py"
    file.write_text(f"{body}\nclass App:\n    model = train = print\n")
    monkeypatch.delitem(sys.modules, "shared_imports", raising=False)
    if not modules:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    plan = Plan.of({"app": f"{file}:App"})
    apps.load(f"{file}:App", None)
    assert modules_of(plan) == modules
    monkeypatch.delitem(sys.modules, "shared_imports")
