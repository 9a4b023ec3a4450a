"""Means that are folded on arrival equal Flower's; values that a strategy reads itself are not folded."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    Strategy,
)

from tests.flower.network import LIMIT, Answer, network
from thalweg.apps import seed_all
from thalweg.flower import fold
from thalweg.flower.arrays import Folded, View
from thalweg.flower.fold import Replies, Slots
from thalweg.flower.messages import Arrival, Sent

ROUNDS = 3
NODES = 4
#: Flower's strategies before 1.29 or so raise TypeError for an array without dimensions.
SCALARS = "np.asarray(" in inspect.getsource(FedAvgM.aggregate_train)


class Custom(FedAvg):
    """A strategy that reads the replies' arrays before it takes their mean."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        assert all(np.isfinite(reply.content["arrays"]["w"].numpy()).all() for reply in replies)
        return super().aggregate_train(server_round, replies)


class Scheduled(FedAvg):
    """A strategy with its own ``configure_train``, a method that gets no replies."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        config["rate"] = 0.1 / server_round
        return super().configure_train(server_round, arrays, config, grid)


class OwnLoop(FedAvg):
    """A strategy with its own loop of rounds, whose use of replies is unknown to the adapter."""

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **given: Any) -> Any:
        arrays = initial_arrays
        for number in range(1, num_rounds + 1):
            messages = list(self.configure_train(number, arrays, ConfigRecord(), grid))
            replies = list(grid.send_and_receive(messages))
            arrays, _ = self.aggregate_train(number, replies)
        return type("Result", (), {"arrays": arrays, "train_metrics_clientapp": {}})()


def first(records: list[RecordDict], key: str) -> MetricRecord:
    return next(iter(records[0].metric_records.values()))


class Rounds:
    """A grid that stores for each training whether its replies were to be folded."""

    def __init__(self) -> None:
        self.folds: list[bool] = []

    def sent(self, sent: Sent) -> None:
        if sent.message.metadata.message_type == "train":
            self.folds.append(sent.folds)

    def replied(self, arrival: Arrival) -> None:
        pass

    def waited(self, sent: Sent, at: float) -> None:
        pass


def start_arrays() -> ArrayRecord:
    values: dict[str, npt.NDArray[Any]] = {
        "w": np.ones((30, 5), np.float32),
        "steps": np.array(3 if SCALARS else [3], np.int64),
        "half": np.ones(4, np.float16),
        "bias": np.zeros(5, np.float64),
        "across": np.asfortranarray(np.ones((3, 4), np.float32)),
    }
    return ArrayRecord({name: Array(value) for name, value in values.items()})


def train(message: Message, context: Context) -> Message:
    """Change each array by an amount that depends on node and round only. Integers stay integers."""
    kind, number = message.metadata.message_type, message.content["config"]["server-round"]
    if kind != "train":
        return Message(RecordDict({"m": MetricRecord({"num-examples": 2, "loss": 0.5})}), reply_to=message)
    partition = context.node_config["partition-id"]
    draw = np.random.default_rng((partition, number))
    arrays = ArrayRecord()
    for name, array in message.content["arrays"].items():
        value = array.numpy()
        dtype = np.int64 if name == "steps" else value.dtype
        changed = np.asarray(value + draw.standard_normal(value.shape) + 1)
        arrays[name] = Array(np.asarray(changed, dtype, order="F" if name == "across" else "C"))
    metrics = MetricRecord({"num-examples": int(draw.integers(1, 100)), "loss": float(draw.random())})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def trained(
    make: Callable[[], Strategy], answers: tuple[Answer, ...] = (train,) * NODES, rounds: int = ROUNDS, **options: Any
) -> tuple[dict[str, npt.NDArray[Any]], dict[int, Any], list[bool]]:
    """Run a strategy over a network; return the model, the metrics of trainings, and which trainings were folded."""
    watcher = Rounds()
    seed_all(1)  # because strategies draw nodes, and some draw noise
    with network(answers) as running, fold.installed():
        grid = running.grid(watcher=watcher, **options)
        result = make().start(grid=grid, initial_arrays=start_arrays(), num_rounds=rounds)
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    return arrays, result.train_metrics_clientapp, watcher.folds


def train_floats(message: Message, context: Context) -> Message:
    """Send back the received arrays plus one."""
    if message.metadata.message_type != "train":
        return Message(RecordDict({"m": MetricRecord({"num-examples": 2})}), reply_to=message)
    arrays = ArrayRecord({name: Array(array.numpy() + 1) for name, array in message.content["arrays"].items()})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


STRATEGIES: dict[str, tuple[Callable[[], Strategy], bool]] = {
    "FedAvg": (FedAvg, True),
    "FedProx": (lambda: FedProx(proximal_mu=0.1), True),
    "FedAvgM": (lambda: FedAvgM(server_momentum=0.9), True),
    "FedAdam": (FedAdam, True),
    "FedYogi": (FedYogi, True),
    "FedAdagrad": (FedAdagrad, True),
    "own configure_train": (Scheduled, True),
    "FedMedian": (FedMedian, False),
    "FedTrimmedAvg": (FedTrimmedAvg, False),
    "Krum": (Krum, False),
    "MultiKrum": (MultiKrum, False),
    "Bulyan": (Bulyan, False),
    "own aggregate_train": (Custom, False),
    "own loop": (OwnLoop, False),
    "own mean of metrics": (lambda: FedAvg(train_metrics_aggr_fn=first), False),
    "differential privacy": (
        lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 10.0, NODES),
        False,
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategys_model_is_the_same_folded_and_collected(name: str) -> None:
    make, folds = STRATEGIES[name]
    if name == "differential privacy" and not SCALARS:
        pytest.skip("this release of Flower cannot clip arrays of integers")
    ours, our_metrics, folded = trained(make)
    theirs, their_metrics, collected = trained(make, folds=False)
    assert folded == [folds] * ROUNDS
    assert collected == [False] * ROUNDS
    assert list(ours) == list(theirs), "the arrays' order is that of the first reply"
    for key, value in ours.items():
        assert value.dtype == theirs[key].dtype
        if folds:
            tolerance = 2e-2 if key == "half" else 1e-5
            np.testing.assert_allclose(value, theirs[key], rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(value, theirs[key])
    assert our_metrics == their_metrics


def test_a_mean_is_by_weight_and_counters_become_floats() -> None:
    model, _, folds = trained(FedAvg, rounds=1)
    assert folds == [True]
    assert model["steps"].dtype == np.float64
    assert model["w"].dtype == np.float32
    draws = [np.random.default_rng((partition, 1)) for partition in range(NODES)]
    first = [np.ones((30, 5), np.float32) + draw.standard_normal((30, 5)) + 1 for draw in draws]
    weights = []
    for draw in draws:
        for shape in (() if SCALARS else (1,), (4,), (5,), (3, 4)):
            draw.standard_normal(shape)
        weights.append(int(draw.integers(1, 100)))
    np.testing.assert_allclose(model["w"], np.average(first, axis=0, weights=weights), rtol=1e-5)


def test_a_nodes_order_of_arrays_is_its_own() -> None:
    def reverse(content: RecordDict) -> None:
        content["arrays"] = ArrayRecord({name: content["arrays"][name] for name in reversed(list(content["arrays"]))})

    answers = (train, other(reverse), train)
    ours, _, folded = trained(FedAvg, answers, rounds=1)
    theirs, _, _ = trained(FedAvg, answers, rounds=1, folds=False)
    assert folded == [True]
    assert list(ours) == list(theirs), "that of the first reply"
    for key, value in ours.items():
        np.testing.assert_allclose(value.astype(float), theirs[key].astype(float), rtol=2e-2, atol=2e-2)


def other(change: Callable[[RecordDict], None], only_in: int | None = None) -> Answer:
    """Train like the other clients, but change the reply, in one round or in all."""

    def answer(message: Message, context: Context) -> Message:
        reply = train(message, context)
        if message.metadata.message_type == "train":
            number = message.content["config"]["server-round"]
            if only_in in (None, number):
                change(reply.content)
        return reply

    return answer


def with_nan(content: RecordDict) -> None:
    values = content["arrays"]["w"].numpy()
    values[0, 0] = np.nan
    content["arrays"]["w"] = Array(values)


def with_doubles(content: RecordDict) -> None:
    content["arrays"]["w"] = Array(content["arrays"]["w"].numpy().astype(np.float64))


def with_float_weight(content: RecordDict) -> None:
    content["metrics"]["num-examples"] = 1.5


def with_no_weight(content: RecordDict) -> None:
    content["metrics"]["num-examples"] = 0


def with_long_text(content: RecordDict) -> None:
    content["more"] = ConfigRecord({"raw": b"x" * 100_000})


@pytest.mark.parametrize("change", [with_doubles, with_float_weight, with_no_weight, with_long_text, with_nan])
def test_a_reply_that_cannot_be_folded_counts_as_much_as_the_others(change: Callable[[RecordDict], None]) -> None:
    answers = (train, other(change), train, other(change, only_in=2))
    ours, our_metrics, folded = trained(FedAvg, answers)
    theirs, their_metrics, _ = trained(FedAvg, answers, folds=False)
    assert folded == [True] * ROUNDS
    for key, value in ours.items():
        np.testing.assert_allclose(value.astype(float), theirs[key].astype(float), rtol=2e-2, atol=2e-2)
        assert value.dtype == theirs[key].dtype
    assert our_metrics == their_metrics


def test_if_no_reply_can_be_folded_the_bits_are_flowers() -> None:
    answers = (other(with_long_text),) * NODES
    ours, _, folded = trained(FedAvg, answers)
    theirs, _, _ = trained(FedAvg, answers, folds=False)
    assert folded[0]
    for key, value in ours.items():
        np.testing.assert_array_equal(value, theirs[key])


def test_other_arrays_in_one_reply_end_no_run() -> None:
    """Without this, Flower's own loop would raise, and one client could end the run for all."""

    def more(content: RecordDict) -> None:
        content["arrays"]["more"] = Array(np.ones(2))

    for folds in (True, False):
        model, _, _ = trained(FedAvg, (train, train, other(more)), folds=folds)
        alone, _, _ = trained(FedAvg, (train, train), folds=folds)
        np.testing.assert_allclose(model["w"], alone["w"], rtol=1e-5)


def test_replies_without_the_weight_that_a_strategy_wants_are_flowers_error() -> None:
    with pytest.raises(InconsistentMessageReplies):
        trained(lambda: FedAvg(weighted_by_key="samples"))


def test_who_raises_is_not_in_the_mean() -> None:
    def raises(content: RecordDict) -> None:
        raise ValueError("no")

    ours, _, _ = trained(FedAvg, (train, other(raises), train))
    theirs, _, _ = trained(FedAvg, (train, other(raises), train), folds=False)
    np.testing.assert_allclose(ours["w"], theirs["w"], rtol=1e-5, atol=1e-5)


def test_a_late_reply_is_in_no_mean() -> None:
    release = threading.Event()

    def late(content: RecordDict) -> None:
        release.wait(LIMIT)

    answers = (train, train, other(late, only_in=1))
    with network(answers) as running, fold.installed():
        grid = running.grid()
        result = FedAvg(fraction_evaluate=0.0).start(
            grid=grid, initial_arrays=start_arrays(), num_rounds=1, timeout=1.0
        )
        release.set()
    alone, _, _ = trained(FedAvg, (train, train), rounds=1)
    np.testing.assert_allclose(result.arrays["w"].numpy(), alone["w"], rtol=1e-5, atol=1e-6)


def test_folded_arrays_have_names_and_shapes_and_no_values() -> None:
    seen: list[ArrayRecord] = []

    class Looking(FedAvg):
        def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
            return super().aggregate_evaluate(server_round, replies)

    strategy = Looking()
    original = strategy._check_and_log_replies

    with network((train,) * 2) as running, fold.installed():
        grid = running.grid()
        sent = strategy.configure_train(1, start_arrays(), ConfigRecord(), grid)
        # If the caller is not Flower's own loop, it gets all arrays.
        whole = grid.send_and_receive(sent)
        assert not any(isinstance(one, Folded) for one in whole[0].content["arrays"].values())
        assert whole.mean is None

        def check(replies: Any, is_train: bool, validate: bool = True) -> Any:
            seen.extend(reply.content["arrays"] for reply in replies if is_train)
            return original(replies, is_train, validate)

        kept = fold._CHECK
        assert fold.weighted_key(strategy) == "num-examples"
        strategy._check_and_log_replies = check
        assert fold.weighted_key(strategy) is None, "of its own attribute nothing is known"
        assert kept is not None


class Keeping(FedAvg):
    """A strategy that keeps the replies of each round, and checks those of the previous round."""

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.keep = keep
        self.kept: list[Any] = []
        self.seen: list[tuple[int, int]] = []

    def configure_train(self, server_round: int, *given: Any) -> Any:
        gc.collect()
        alive = sum(type(one) is Replies and len(one) > 0 for one in gc.get_objects())
        self.seen.append((alive, len(self.kept[-1]) if self.kept else 0))
        return super().configure_train(server_round, *given)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if self.keep:
            self.kept.append(replies)
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize(("keep", "seen"), [(True, [(0, 0), (2, 2), (3, 2)]), (False, [(0, 0), (1, 0), (1, 0)])])
def test_replies_are_freed_but_for_those_that_a_strategy_keeps(keep: bool, seen: list[tuple[int, int]]) -> None:
    strategy = Keeping(keep)
    trained(lambda: strategy, (train, train))
    # The replies of an evaluation are freed when the next messages are sent.
    assert strategy.seen == seen


class Comparing(FedAvg):
    """A strategy that keeps the arrays with which the first training began."""

    first: ArrayRecord | None = None

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        self.first = self.first or arrays
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("folds", [True, False])
def test_initial_arrays_are_freed_but_for_those_that_a_strategy_keeps(
    folds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "WORTH_A_SEARCH", 0)
    given = ArrayRecord({"w": Array(np.ones((30, 5), np.float32)), "bias": Array(np.zeros(5))})
    begun: list[weakref.ref[Array]] = []
    alive = []

    def look(number: int, arrays: ArrayRecord) -> None:
        if number == 0:
            begun.append(weakref.ref(arrays["w"]))
        alive.append(begun[0]() is not None)

    keeping = Comparing()
    for strategy in (FedAvg(), keeping):
        begun.clear()
        with network((train_floats,) * 2) as running, fold.installed():
            strategy.start(running.grid(folds=folds), given, num_rounds=3, evaluate_fn=look)
    assert alive == [True, True, False, False, True, True, True, True]
    assert keeping.first is not None
    np.testing.assert_array_equal(keeping.first["w"].numpy(), given["w"].numpy())


def test_the_mean_of_collected_replies_is_kept_as_it_is_summed_up() -> None:
    with network((train_floats,) * 3) as running, fold.installed():
        given = ArrayRecord({"w": Array(np.ones((30, 5), np.float32))})
        result = FedAvg().start(running.grid(folds=False), given, num_rounds=1)
        mine = Array(np.ones(3))
    assert isinstance(result.arrays["w"], View)
    assert type(mine) is Array, "arrays of others are Flower's"
    assert result.arrays["w"].numpy().flags.writeable


def test_outside_of_a_run_flowers_code_is_as_it_was() -> None:
    before = FedAvg.aggregate_train, Strategy.start
    with fold.installed():
        assert (FedAvg.aggregate_train, Strategy.start) != before
    assert (FedAvg.aggregate_train, Strategy.start) == before


def test_installed_code_is_inert_for_other_grids_and_replies() -> None:
    class OneNode(Grid):
        """A grid without a network, which makes the replies itself."""

        @property
        def run(self) -> Any:
            return None

        def set_run(self, run: Any) -> None: ...

        def create_message(self, *args: Any, **given: Any) -> Any:
            raise NotImplementedError

        def get_node_ids(self) -> list[int]:
            return [2, 3]

        def push_messages(self, messages: Any) -> Any:
            raise NotImplementedError

        def pull_messages(self, message_ids: Any) -> Any:
            raise NotImplementedError

        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
            found = []
            for message in messages:
                message.metadata.__dict__["_message_id"] = str(message.metadata.dst_node_id)
                context = Context(1, 1, {"partition-id": message.metadata.dst_node_id}, RecordDict(), {})
                found.append(train(message, context))
            return found

    from thalweg.flower import compat

    compat.identify(1)
    plain = FedAvg().start(OneNode(), start_arrays(), 2)
    with fold.installed():
        patched = FedAvg().start(OneNode(), start_arrays(), num_rounds=2)
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(array.numpy(), patched.arrays[name].numpy())
    assert plain.train_metrics_clientapp == patched.train_metrics_clientapp


def record(**values: npt.NDArray[Any]) -> RecordDict:
    return RecordDict({"a": ArrayRecord({name: Array(value) for name, value in values.items()})})


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        record(),
        record(z=np.ones(2, np.complex64)),
        record(n=np.zeros((1 << 20) + 1, np.int8)),
        record(e=np.ones((0, 3))),
        RecordDict({"a": record(x=np.ones(2))["a"], "b": record(x=np.ones(2))["a"]}),
    ],
)
def test_content_that_is_no_model_is_not_folded(content: RecordDict) -> None:
    assert Slots.of(content) is None
