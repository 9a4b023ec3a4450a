"""The server's part of each algorithm, beside its paper in NumPy and beside Flower's strategy of the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi, QFedAvg
from numpy.typing import NDArray

from thalweg import _core, algorithms
from thalweg.algorithms import fednova, qfedavg
from thalweg.algorithms.client_step import Received
from thalweg.algorithms.scaffold import CONTROL
from thalweg.algorithms.server_step import ServerStep, Values
from thalweg.algorithms.torch_rule import TorchRule
from thalweg.errors import MetricsError, PlanError, RoundError
from thalweg.outcome.core import Participant
from thalweg.tensors.arena import Arena

Model = list[NDArray[Any]]
SHAPES = [("w", [3, 4]), ("b", [5])]
ROUNDS = 6
TAU = 1e-3


def arena_of(model: Model, dtype: str = "F64") -> _core.Arena:
    core = _core.Arena(_core.Layout([(name, dtype, shape) for name, shape in SHAPES]))
    put(core, model)
    return core


def put(core: _core.Arena, model: Model) -> None:
    for array, values in zip(Arena(core).values(), model, strict=True):
        array[...] = values


def values_of(core: _core.Arena) -> Model:
    return [array.copy() for array in Arena(core).values()]


def updates(seed: int, model: Model) -> Iterator[list[tuple[int, Model]]]:
    """Yield the samples and models of three clients for each round, as differences that a caller adds."""
    rng = np.random.default_rng(seed)
    for _ in range(ROUNDS):
        yield [(int(rng.integers(1, 50)), [rng.normal(0, 0.1, one.shape) for one in model]) for _ in range(3)]


def start(seed: int = 3) -> Model:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for _, shape in SHAPES]


def mean(parts: Sequence[tuple[float, Model]]) -> Model:
    total = sum(weight for weight, _ in parts)
    return [np.sum([weight * model[at] for weight, model in parts], axis=0) / total for at in range(len(SHAPES))]


def driven(step: ServerStep, core: _core.Arena, steps: Iterator[list[tuple[int, Model]]]) -> list[Model]:
    """Return the model after each round of clients that add these differences to it."""
    models = []
    for round_updates in steps:
        step.before()
        model = values_of(core)
        put(core, mean([(n, [x + d for x, d in zip(model, delta, strict=True)]) for n, delta in round_updates]))
        step.after([])
        models.append(values_of(core))
    return models


def step_of(name: str, core: _core.Arena, **given: float | bool) -> ServerStep:
    algorithm = algorithms.find(name)
    step = algorithm.server_step(core, [name for name, _ in SHAPES], algorithm.chosen(given))
    assert step is not None
    return step


def by_paper(name: str, model: Model) -> list[Model]:
    """Reddi et al. 2021, algorithm 2, and FedAvgM as Hsu et al. 2019 define it."""
    model, models = [one.copy() for one in model], []
    m, v = [np.zeros_like(one) for one in model], [np.full_like(one, TAU**2) for one in model]
    for round_updates in updates(7, model):
        for at, delta in enumerate(mean(round_updates)):
            if name in ("fedavgm", "nesterov"):
                m[at] = 0.9 * m[at] + delta
                model[at] = model[at] + 0.5 * (delta + 0.9 * m[at] if name == "nesterov" else m[at])
                continue
            beta1 = 0.0 if name == "fedadagrad" else 0.9
            m[at] = beta1 * m[at] + (1 - beta1) * delta
            if name == "fedadagrad":
                v[at] = v[at] + delta**2
            elif name == "fedyogi":
                v[at] = v[at] - 0.01 * delta**2 * np.sign(v[at] - delta**2)
            else:
                v[at] = 0.99 * v[at] + 0.01 * delta**2
            model[at] = model[at] + 0.5 * m[at] / (np.sqrt(v[at]) + TAU)
        models.append([one.copy() for one in model])
    return models


@pytest.mark.parametrize("name", ["fedavgm", "nesterov", "fedadam", "fedadagrad", "fedyogi"])
def test_steps_are_those_of_the_paper(name: str) -> None:
    core = arena_of(start())
    known, given = ("fedavgm", {"nesterov": True}) if name == "nesterov" else (name, {})
    models = driven(step_of(known, core, server_learning_rate=0.5, **given), core, updates(7, start()))
    for model, expected in zip(models, by_paper(name, start()), strict=True):
        for one, other in zip(model, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def flower(strategy: Any, each: Callable[[int], None] = lambda _: None) -> list[Model]:
    """Return the models of a strategy of Flower that gets the same updates."""
    model, models = start(), []
    for number, round_updates in enumerate(updates(7, model), 1):
        each(number)
        results: list[tuple[ClientProxy, FitRes]] = []
        for samples, delta in round_updates:
            sent = ndarrays_to_parameters([x + d for x, d in zip(model, delta, strict=True)])
            results.append((Proxy("x"), FitRes(Status(Code.OK, ""), sent, samples, {})))
        parameters, _ = strategy.aggregate_fit(number, results, [])
        model = parameters_to_ndarrays(parameters)
        models.append(model)
    return models


class Proxy(ClientProxy):
    """A client of Flower that is never asked."""

    get_properties = get_parameters = fit = evaluate = reconnect = None  # type: ignore[assignment]


Proxy.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("kind", [FedAvgM, FedAdam, FedAdagrad, FedYogi])
def test_steps_are_those_of_flowers_strategy(kind: Any) -> None:
    """Two differences from the paper are undone here.

    Flower starts the second moment v at 0 (paper: tau squared), and its FedAdam has Adam's bias correction.
    """
    core, name = arena_of(start()), kind.__name__.lower()
    models = driven(step_of(name, core, server_learning_rate=0.5), core, updates(7, start()))
    initial = ndarrays_to_parameters(start())
    if kind is FedAvgM:
        strategy = FedAvgM(initial_parameters=initial, server_learning_rate=0.5, server_momentum=0.9)
        theirs = flower(strategy)
    else:
        strategy = kind(initial_parameters=initial, eta=0.5, tau=TAU)
        strategy.v_t = [np.full_like(one, TAU**2) for one in start()]

        def uncorrected(number: int) -> None:
            if kind is FedAdam:
                strategy.eta = 0.5 * (1 - 0.9 ** (number + 1)) / np.sqrt(1 - 0.99 ** (number + 1))

        theirs = flower(strategy, uncorrected)
    for model, expected in zip(models, theirs, strict=True):
        for one, other in zip(model, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def participant(name: str, weight: float, metrics: Mapping[str, object]) -> Participant:
    return Participant(client=name, state="whole", samples=weight, metrics=metrics, coverage=1.0, reason=None)


def round_of(name: str, settings: Mapping[str, float], clients: Sequence[tuple[int, Model, dict[str, Any]]]) -> Model:
    """Run a round of ``name`` with clients that add their differences; return the next model."""
    model, algorithm = start(), algorithms.find(name)
    core = arena_of(model)
    step = step_of(name, core, **settings)
    step.before()
    parts, sent = [], []
    for place, (samples, delta, metrics) in enumerate(clients):
        own = arena_of(model)
        assert algorithm.client is not None
        loss = metrics.pop("loss", None)
        part = algorithm.client(
            algorithm.chosen(settings),
            Received(Arena(own), [name for name, _ in SHAPES]),
            partial(dict, loss=loss),
        )
        part.before()
        put(own, [x + d for x, d in zip(model, delta, strict=True)])
        weight, reported = part.after(samples, metrics)
        parts.append((weight, values_of(own)))
        sent.append(participant(f"c{place}", weight, reported))
    put(core, mean(parts))
    step.after(sent)
    return values_of(core)


def three(seed: int) -> list[tuple[int, Model]]:
    return next(updates(seed, start()))


def test_fednova_is_the_papers() -> None:
    """Equation 5: the next model is x + tau_eff times the sum of p_i times the normalised updates."""
    clients, steps, momentum = three(1), [1, 4, 9], 0.5
    # The l1 norm of a_i, summed term by term: [1 - m^steps, ..., 1 - m] / (1 - m).
    norms = [sum((1 - momentum**k) / (1 - momentum) for k in range(1, count + 1)) for count in steps]
    assert [fednova.norm(count, momentum) for count in steps] == pytest.approx(norms)
    assert fednova.norm(7, 0.0) == 7
    result = round_of("fednova", {}, [(n, d, {fednova.NORM: a}) for (n, d), a in zip(clients, norms, strict=True)])
    total = sum(n for n, _ in clients)
    effective = sum(n / total * a for (n, _), a in zip(clients, norms, strict=True))
    for at, one in enumerate(result):
        update = sum(n / total * d[at] / a for (n, d), a in zip(clients, norms, strict=True))
        np.testing.assert_allclose(one, start()[at] + effective * update, rtol=1e-12)


def test_fednova_with_equal_steps_is_fedavg() -> None:
    clients = three(2)
    result = round_of("fednova", {}, [(n, d, {fednova.NORM: 5}) for n, d in clients])
    for at, one in enumerate(result):
        np.testing.assert_allclose(one, start()[at] + mean(clients)[at], rtol=1e-12)


def test_qfedavg_is_the_papers() -> None:
    clients, losses, q, lipschitz = three(3), [0.5, 1.5, 3.0], 2.0, 10.0
    result = round_of(
        "qfedavg",
        {"q": q, "lipschitz": lipschitz},
        [(n, d, {"loss": f}) for (n, d), f in zip(clients, losses, strict=True)],
    )
    deltas = [[f**q * lipschitz * -one for one in d] for (_, d), f in zip(clients, losses, strict=True)]
    squares = [sum(float(np.square(lipschitz * one).sum()) for one in d) for _, d in clients]
    h = [q * f ** (q - 1) * s + lipschitz * f**q for f, s in zip(losses, squares, strict=True)]
    for at, one in enumerate(result):
        np.testing.assert_allclose(one, start()[at] - sum(d[at] for d in deltas) / sum(h), rtol=1e-6)


@pytest.mark.parametrize("q", [0.0, 0.2, 3.0])
def test_qfedavg_is_flowers_where_all_losses_are_one(q: float) -> None:
    """Flower's strategy evaluates the loss once, at the server, and uses it for all clients."""
    clients, loss, rate = three(4), 1.7, 0.05
    strategy = QFedAvg(
        q_param=q, qffl_learning_rate=rate, evaluate_fn=lambda *_: (loss, {}), fit_metrics_aggregation_fn=lambda _: {}
    )
    strategy.pre_weights = start()
    results: list[tuple[ClientProxy, FitRes]] = []
    for samples, delta in clients:
        sent = ndarrays_to_parameters([x + d for x, d in zip(start(), delta, strict=True)])
        results.append((Proxy("x"), FitRes(Status(Code.OK, ""), sent, samples, {})))
    parameters, _ = strategy.aggregate_fit(1, results, [])
    assert parameters is not None
    own = round_of("qfedavg", {"q": q, "lipschitz": 1 / rate}, [(n, d, {"loss": loss}) for n, d in clients])
    for one, other in zip(own, parameters_to_ndarrays(parameters), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("value", [None, "many", True, 0, -1.0, float("inf")])
def test_a_client_that_reports_no_norm_ends_the_round_with_its_name(value: object) -> None:
    core = arena_of(start())
    step = step_of("fednova", core)
    step.before()
    with pytest.raises(RoundError, match="c1 reports fednova_norm"):
        step.after([participant("c0", 3, {fednova.NORM: 2.0}), participant("c1", 3, {fednova.NORM: value})])


@pytest.mark.parametrize(("name", "metric"), [("fednova", fednova.NORM), ("qfedavg", "loss")])
def test_an_app_that_does_not_report_what_is_needed_is_told(name: str, metric: str) -> None:
    settings = {} if name == "fednova" else {"lipschitz": 1.0}
    with pytest.raises(MetricsError, match=f"{metric} = None"):
        round_of(name, settings, [(1, three(5)[0][1], {})])


OPTIMIZERS: list[tuple[str, Callable[[Any], torch.optim.Optimizer]]] = [
    ("Adam", lambda p: torch.optim.Adam(p, lr=0.1)),
    ("AdamW", lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True)),
    ("Adagrad", lambda p: torch.optim.Adagrad(p, lr=0.1)),
    ("NAdam", lambda p: torch.optim.NAdam(p, lr=0.1)),
    ("SGD", lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True)),
]


def torch_step(core: _core.Arena, make: Callable[[Any], torch.optim.Optimizer]) -> ServerStep:
    return ServerStep(core, [name for name, _ in SHAPES], lambda values: TorchRule(values, make))


@pytest.mark.parametrize(("name", "make"), OPTIMIZERS)
def test_any_optimizer_of_torch_takes_the_step(name: str, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    core, reference = arena_of(start()), [torch.nn.Parameter(torch.tensor(one)) for one in start()]
    models, optimizer = driven(torch_step(core, make), core, updates(7, start())), make(reference)
    for model, round_updates in zip(models, updates(7, start()), strict=True):
        for parameter, delta in zip(reference, mean(round_updates), strict=True):
            parameter.grad = torch.tensor(-delta)
        optimizer.step()
        for one, other in zip(model, reference, strict=True):
            np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


def makers() -> list[tuple[str, Callable[[_core.Arena], ServerStep]]]:
    named: list[tuple[str, Callable[[_core.Arena], ServerStep]]] = [
        (name, partial(step_of, name)) for name in ("fedavgm", "fedadam", "fedadagrad", "fedyogi")
    ]
    return [*named, *((name, partial(torch_step, make=make)) for name, make in OPTIMIZERS)]


def rules() -> list[tuple[str, Callable[[_core.Arena], ServerStep]]]:
    """Return each algorithm that changes the mean at the server of known and own apps, and each optimizer."""

    def named(name: str, core: _core.Arena) -> ServerStep:
        algorithm = algorithms.find(name)
        step = algorithm.server_step(core, ["w"], algorithm.chosen({"lipschitz": 1.0}))
        assert step is not None
        return step

    known = [name for name, one in algorithms.ALGORITHMS.items() if one.rule is not None]
    of_torch = [
        (name, lambda core, m=make: ServerStep(core, ["w"], lambda v: TorchRule(v, m))) for name, make in OPTIMIZERS
    ]
    return [*((name, partial(named, name)) for name in known), *of_torch]


@pytest.mark.parametrize(("name", "make"), rules())
def test_a_tensor_of_one_number_without_a_shape_is_trained(
    name: str, make: Callable[[_core.Arena], ServerStep]
) -> None:
    def moved(shape: list[int]) -> Values:
        core = _core.Arena(_core.Layout([("w", "F32", shape), (f"{CONTROL}w", "F32", shape)]))
        tensors, step = Arena(core), make(core)
        reported = {fednova.NORM: 2.0, qfedavg.STEP: 3.0}
        for _ in range(2):
            step.before()
            tensors["w"][...] += 0.5
            step.after([participant("c0", 3, reported)])
        return tensors["w"].reshape(())

    assert moved([]) != 0, name
    np.testing.assert_allclose(moved([]), moved([1]), rtol=1e-6)


@pytest.mark.parametrize(("loss", "q"), [(1e300, 2.0), (0.0, 40.0)])
def test_a_weight_that_is_no_positive_number_is_refused(loss: float, q: float) -> None:
    with pytest.raises(MetricsError, match="the update's weight is"):
        round_of("qfedavg", {"q": q, "lipschitz": 1.0}, [(1, three(5)[0][1], {"loss": loss})])


@pytest.mark.parametrize(("name", "make"), makers())
def test_a_step_goes_on_with_its_state(name: str, make: Callable[[_core.Arena], ServerStep]) -> None:
    core = arena_of(start(), "F32")
    rounds = list(updates(7, start()))
    driven(make(core), core, iter(rounds))
    expected = values_of(core)

    core = arena_of(start(), "F32")
    first = make(core)
    driven(first, core, iter(rounds[:3]))
    state = first.state()
    assert state is not None
    assert all(key.count("/") == 2 for key in state), name
    second = make(core)
    second.load(state)
    driven(second, core, iter(rounds[3:]))
    for one, other in zip(values_of(core), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_state_of_another_rule_or_model_is_refused() -> None:
    core = arena_of(start())
    yogi = step_of("fedyogi", core)
    driven(yogi, core, updates(7, start()))
    with pytest.raises(RoundError, match="state of Yogi, which SGD for this model cannot take"):
        step_of("fedavgm", core).load(yogi.state())
    for name in ("fedyogi", "fedadam"):
        made = step_of(name, core)
        driven(made, core, updates(7, start()))
        other = _core.Arena(_core.Layout([("w", "F64", [3, 4]), ("b", "F64", [6])]))
        with pytest.raises(RoundError, match="for this model cannot take"):
            step_of(name, other).load(made.state())


def test_without_momentum_there_is_no_state() -> None:
    core = arena_of(start())
    step = step_of("fedavgm", core, server_momentum=0.0)
    models = driven(step, core, updates(7, start()))
    assert step.state() is None
    expected = start()
    for model, round_updates in zip(models, updates(7, start()), strict=True):
        expected = [x + d for x, d in zip(expected, mean(round_updates), strict=True)]
        for one, other in zip(model, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_narrow_values_are_changed_as_float32(dtype: str) -> None:
    core = arena_of(start(), dtype)
    before = values_of(core)
    step = step_of("fedadam", core)
    step.before()
    put(core, [one + 0.25 for one in start()])
    step.after([])
    assert step.state() is not None
    for one, other in zip(values_of(core), before, strict=True):
        assert one.dtype == other.dtype
        assert (one.astype(np.float32) > other.astype(np.float32)).all()


def test_a_step_that_is_not_finite_is_no_model() -> None:
    core = arena_of(start(), "F16")
    step = step_of("fedavgm", core, server_learning_rate=1e9)
    step.before()
    target = [one + 1 for one in start()]
    put(core, target)
    taken = values_of(core)
    with pytest.raises(RoundError, match="SGD gives 'w' values that are not finite"):
        step.after([])
    for one, other in zip(values_of(core), taken, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_no_optimizer_is_refused() -> None:
    core = arena_of(start())
    with pytest.raises(PlanError, match="the optimizer is a list"):
        torch_step(core, lambda parameters: parameters)
    with pytest.raises(PlanError, match="LBFGS computes the loss several times"):
        torch_step(core, torch.optim.LBFGS)
