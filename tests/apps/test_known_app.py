"""The app of ``thalweg run``: in place, repeatable, FedComm's schedule, and it learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from thalweg import models
from thalweg.algorithms import local_sgd
from thalweg.algorithms.local_sgd import LocalSGD, MomentumSGD
from thalweg.apps.known_app import KnownApp
from thalweg.data import Dataset, Text
from thalweg.data.dataset import Images
from thalweg.errors import DataError, ModelError, PlanError


def app(**changes: Any) -> KnownApp:
    settings: dict[str, Any] = {
        "model": "vgg5",
        "data": "digits",
        "partition": "iid",
        "clients": 8,
        "client": 0,
        "seed": 0,
        "data_root": None,
        "threads": 1,
    }
    return KnownApp(**{**settings, **changes})


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def images(data: Dataset | Text) -> Images:
    assert isinstance(data, Dataset)
    return data.images


def bind(model: nn.Module) -> tuple[bytearray, dict[str, tuple[int, int]]]:
    """Move every tensor of the model into one outer buffer; return it and each tensor's offset and size."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    places, size = {}, 0
    for name, tensor in tensors.items():
        places[name] = (size, tensor.nbytes)
        size += -(-tensor.nbytes // 64) * 64
    buffer = bytearray(size)
    for name, tensor in tensors.items():
        flat = torch.frombuffer(buffer, dtype=tensor.dtype, count=tensor.numel(), offset=places[name][0])
        view = flat.view(tensor.shape)
        view.copy_(tensor.detach())
        tensor.data = view
    return buffer, places


def test_training_and_evaluation_work_in_place_on_views_of_an_outer_buffer() -> None:
    one = app()
    model = one.model()
    buffer, places = bind(model)
    addresses = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    before = bytes(buffer)
    one.train(model, one.train_data(), {"round": 1})
    after = bytes(buffer)
    one.evaluate(model, one.test_data())
    assert bytes(buffer) == after
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == addresses
    for name, tensor in model.state_dict().items():
        start, size = places[name]
        assert after[start : start + size] == tensor.numpy().tobytes()
        assert after[start : start + size] != before[start : start + size], f"{name} was not trained in the buffer"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_binding_changes_no_value_of_the_result() -> None:
    one = app()
    plain, bound = one.model(), one.model()
    bind(bound)
    for model in (plain, bound):
        one.train(model, one.train_data(), {"round": 3})
    assert same(state(plain), state(bound))


def trained(round_number: int = 1, **changes: Any) -> dict[str, Tensor]:
    one = app(**changes)
    model = models.build("vgg5", seed=0)
    data = app().train_data()  # the same data for all, so that only the arguments differ
    one.train(model, data, {"round": round_number})
    return state(model)


def test_a_result_follows_from_seed_client_and_round() -> None:
    first = trained()
    torch.manual_seed(99)
    np.random.default_rng().random()
    assert same(first, trained())
    for other in (trained(2), trained(seed=1), trained(client=1), trained(client=None)):
        assert not same(first, other)


def test_training_leaves_the_callers_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    trained()
    assert torch.equal(before, torch.random.get_rng_state())


def test_all_parties_start_from_the_same_model_and_test_set() -> None:
    server, client = app(client=None), app(client=3)
    assert same(state(server.model()), state(client.model()))
    assert np.array_equal(images(server.test_data()), images(client.test_data()))
    assert not same(state(server.model()), state(app(seed=1).model()))


def test_clients_share_the_training_set_without_overlap() -> None:
    whole = app(client=None).train_data()
    parts = [app(client=client, clients=3, partition="kshard:2").train_data() for client in range(3)]
    rows = np.concatenate([images(part) for part in parts]).reshape(len(whole), -1)
    everything = images(whole).reshape(len(whole), -1)
    assert np.array_equal(np.sort(rows.view("V3072"), axis=0), np.sort(everything.view("V3072"), axis=0))
    assert sum(map(len, parts)) == len(whole)


def test_the_learning_rate_falls_to_a_tenth_from_round_51() -> None:
    one = app()
    assert [one.learning_rate(number) for number in (1, 50)] == [0.01, 0.01]
    assert [one.learning_rate(number) for number in (51, 100)] == pytest.approx([0.001, 0.001])


def test_a_round_uses_the_learning_rate_of_its_number() -> None:
    one = app(momentum=0.0, decay_round=1, decay=0.001, batch=1000)
    data = one.train_data()
    moved = []
    for number in (1, 2):
        model = models.build("lenet", seed=0)
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        one.train(model, data, {"round": number})
        moved.append((nn.utils.parameters_to_vector(model.parameters()) - before).norm().item())
    assert moved[1] / moved[0] == pytest.approx(0.001, rel=0.2)  # the crops differ, but the gradients are almost equal


def test_momentum_sgd_steps_as_torch_does() -> None:
    ours, theirs = models.build("lenet", seed=1), models.build("lenet", seed=1)
    own = MomentumSGD(ours.parameters(), 0.05, 0.9)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        images = torch.rand(8, 3, 32, 32, generator=generator)
        for model, optimiser in ((ours, own), (theirs, reference)):
            model.zero_grad()
            torch.autograd.backward(model(images).square().mean())
            optimiser.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_momentum_does_not_outlive_a_round() -> None:
    weight = nn.Parameter(torch.zeros(1))
    for _ in range(2):
        optimiser = MomentumSGD([weight], 1.0, 0.9)
        weight.grad = torch.ones(1)
        optimiser.step()
    assert weight.item() == -2.0


class Constant(nn.Module):
    """Gives every image the same logits: the logarithms of the probabilities 1/2 for class 0, and 1/4 for 1 and 2."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.5, 0.25, 0.25]).log())
        self.dropout = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.dropout(self.logits)
        return logits.expand(len(images), 3)


def blank(labels: list[int]) -> Dataset:
    images = np.zeros((len(labels), 3, 32, 32), np.uint8)
    return Dataset(
        "blank", images, np.array(labels, dtype=np.int64), 3, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), augment=True, flip=True
    )


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_counts_exactly_over_several_batches(training: bool) -> None:
    data = blank([0] * 150 + [1] * 50 + [2] * 50)
    model = Constant().train(training)
    assert app().evaluate(model, data) == pytest.approx(
        {"accuracy": 0.6, "loss": 0.6 * math.log(2) + 0.4 * math.log(4)}, rel=1e-6
    )
    assert model.training is training


def test_training_reports_means_over_samples_not_batches() -> None:
    data = blank([0, 0, 0, 0, 1])
    model = Constant()
    model.dropout.p = 0.0
    settings = LocalSGD(batch=4, learning_rate=1e-12, momentum=0.0, epochs=2, seed=0)
    samples, metrics = local_sgd.train(model, data, settings)
    assert samples == 5
    assert metrics == pytest.approx({"loss": 0.8 * math.log(2) + 0.2 * math.log(4), "train_accuracy": 0.8}, rel=1e-5)


def test_every_sample_is_used_once_an_epoch_and_small_rests_join_the_batch_before() -> None:
    def cut(samples: int, batch: int, minimum: int) -> list[list[int]]:
        settings = LocalSGD(batch=batch, learning_rate=1, momentum=0, epochs=1, seed=0, minimum_batch=minimum)
        return [part.tolist() for part in local_sgd._batches(samples, settings, torch.Generator().manual_seed(1))]

    assert [len(part) for part in cut(5, 2, 1)] == [2, 2, 1]
    assert [len(part) for part in cut(5, 2, 2)] == [2, 3]
    assert [len(part) for part in cut(4, 1, 2)] == [2, 2]
    assert [len(part) for part in cut(3, 100, 2)] == [3]
    assert sorted(index for part in cut(23, 4, 2) for index in part) == list(range(23))


def test_steps_are_batches_over_as_many_passes_as_they_take() -> None:
    def cut(steps: int | None, epochs: int) -> list[list[int]]:
        settings = LocalSGD(batch=2, learning_rate=1, momentum=0, epochs=epochs, seed=0, steps=steps)
        generator = torch.Generator().manual_seed(1)
        return [part.tolist() for part in local_sgd._all_batches(5, settings, generator)]

    assert [len(part) for part in cut(7, 1)] == [2, 2, 1, 2, 2, 1, 2]
    assert cut(6, 1) == cut(None, 2)
    assert cut(2, 1) == cut(None, 1)[:2]


def test_local_steps_train_on_so_many_batches() -> None:
    metrics = [
        one.train(one.model(), blank([0, 0, 1, 1, 2]), {"round": 1})[1]
        for one in (app(model="lenet", batch=2, local_steps=6), app(model="lenet", batch=2, local_epochs=2))
    ]
    assert metrics[0] == metrics[1]


def test_a_resnet_trains_although_one_sample_would_be_left_over() -> None:
    one = app(model="resnet18", batch=2)
    data = one.train_data().subset(np.arange(3))
    samples, metrics = one.train(one.model(), data, {"round": 1})
    assert samples == 3
    assert math.isfinite(metrics["loss"])
    with pytest.raises(DataError, match=r"1 samples are too few: .* 2 or more\. Take fewer clients"):
        one.train(one.model(), data.subset(np.arange(1)), {"round": 1})


def test_nothing_to_train_or_evaluate_on_is_an_error() -> None:
    empty = blank([])
    with pytest.raises(DataError, match="0 samples are too few"):
        app().train(Constant(), empty, {"round": 1})
    with pytest.raises(DataError, match="blank has no samples"):
        app().evaluate(Constant(), empty)


def test_four_clients_that_average_learn_mnist() -> None:
    """FedAvg by hand, over 5 rounds with a fifth of the data, is far more accurate than the 10 % of guessing."""
    clients = [app(model="lenet", data="mnist", clients=20, client=client, batch=10) for client in range(4)]
    server = app(model="lenet", data="mnist", client=None)
    model, shared = server.model(), state(server.model())
    test = server.test_data().subset(np.arange(300))
    first = server.evaluate(model, test)
    for number in range(1, 6):
        updates = []
        for client in clients:
            model.load_state_dict(shared)
            client.train(model, client.train_data(), {"round": number})
            updates.append(state(model))
        shared = {name: torch.stack([update[name] for update in updates]).mean(0) for name in shared}
    model.load_state_dict(shared)
    last = server.evaluate(model, test)
    assert last["accuracy"] > 0.6
    assert last["loss"] < 0.6 * first["loss"]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"model": "vgg6"}, ModelError, "Did you mean"),
    ({"model": "payload:8MiB"}, ModelError, "cannot be trained"),
    ({"data": "imagenet"}, DataError, "unknown data set 'imagenet'"),
    ({"partition": "sorted"}, PlanError, "unknown partition 'sorted'"),
    ({"clients": 0, "client": None}, PlanError, r"clients is 0\. Give 1 or more"),
    ({"client": 8}, PlanError, r"client 8 is not one of 8\. Clients count from 0 to 7"),
    ({"client": -1}, PlanError, "client -1 is not one of 8"),
    ({"seed": -1}, PlanError, "seed is -1"),
    ({"seed": 1 << 63}, PlanError, r"Give 0 to 9223372036854775807"),
    ({"batch": 0}, PlanError, "batch is 0"),
    ({"local_epochs": 0}, PlanError, "local_epochs is 0"),
    ({"local_steps": 0}, PlanError, "local_steps is 0"),
    ({"threads": 0}, PlanError, "threads is 0"),
    ({"learning_rate": 0.0}, PlanError, r"learning_rate is 0\.0\. Give a positive number"),
    ({"learning_rate": float("nan")}, PlanError, "learning_rate is nan"),
    ({"decay": float("inf")}, PlanError, "decay is inf"),
    ({"momentum": 1.0}, PlanError, r"momentum is 1\.0\. Give at least 0 and less than 1"),
]


@pytest.mark.parametrize(("changes", "kind", "message"), REFUSED, ids=[str(case[0]) for case in REFUSED])
def test_settings_that_cannot_work_are_refused_at_once(
    changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        app(**changes)


@pytest.mark.parametrize("config", [{}, {"round": 0}, {"round": "1"}, {"round": True}])
def test_a_round_without_a_number_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(PlanError, match=r"Give config\['round'\] as a whole number from 1"):
        app().train(Constant(), blank([0]), config)


def test_threads_are_set_when_work_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    work: list[Callable[[KnownApp], object]] = [
        KnownApp.model,
        lambda one: one.evaluate(Constant(), blank([0])),
        lambda one: one.train(Constant(), blank([0]), {"round": 1}),
    ]
    for call in work:
        call(app(threads=3))
        call(app(threads=None))
    assert asked == [3, 3, 3]


def test_part_of_the_training_set_is_drawn_by_the_seed_and_cut_among_the_clients() -> None:
    parts = [app(samples=200, clients=4, client=client).train_data() for client in range(4)]
    assert [len(part) for part in parts] == [50] * 4
    again = app(samples=200, clients=4, client=1).train_data()
    assert torch.equal(torch.from_numpy(images(again).copy()), torch.from_numpy(images(parts[1]).copy()))
    other = app(samples=200, clients=4, client=1, seed=1).train_data()
    assert not torch.equal(torch.from_numpy(images(other).copy()), torch.from_numpy(images(parts[1]).copy()))
    assert len(app(samples=200).test_data()) == len(app().test_data())
    with pytest.raises(DataError, match=r"data\.samples at most 1438"):
        app(samples=1439).train_data()


def test_part_of_the_test_set_is_the_same_for_every_party() -> None:
    whole, server, client = (
        app().test_data(),
        app(test_samples=50).test_data(),
        app(test_samples=50, client=1).test_data(),
    )
    assert len(server) == len(client) == 50 < len(whole)
    assert (images(server) == images(client)).all()
    assert len(app(test_samples=50).train_data()) == len(app().train_data())
    with pytest.raises(DataError, match=r"data\.test_samples at most 359"):
        app(test_samples=360).test_data()
