"""Folding on arrival: replies of a training round are added to the mean while they arrive, and are not kept.

This is possible if the strategy computes what Flower's ``FedAvg.aggregate_train`` does: the mean of the replies'
arrays, by weight. The strategy's code decides, not its name: each method that reads replies must be one of Flower's
own. Any other strategy gets its replies whole.

``Slots`` are the tensors of such a mean. Integers are averaged as float64, as Flower's own mean does.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, Strategy

from thalweg.flower.agreeing import odd
from thalweg.flower.arrays import Folded, Values, View, averaging, size_of, values_of
from thalweg.flower.records import Packed, housed

if TYPE_CHECKING:
    from thalweg.tasks import Tensors

#: Minimum size of arrays, in bytes, for which a garbage collection that frees them is worth its time.
WORTH_A_SEARCH: Final = 32 << 20
#: Maximum size of integer arrays that are folded, in bytes: as float64 they may take eight times as many.
MOST_INTEGERS: Final = 1 << 20
#: Least and largest weight that the core takes, except 0.
WEIGHTS: Final = (2.0**-30, 2.0**40)
#: Metrics by name, as a MetricRecord has them.
Numbers: TypeAlias = Mapping[str, int | float | list[int] | list[float]]
_FLOATS: Final = {"float16": "F16", "float32": "F32", "float64": "F64"}


@dataclass(frozen=True)
class Slots:
    """The tensors of a mean, in order: each array's name, with its element type in the mean and its shape."""

    shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]

    @classmethod
    def of(cls, content: RecordDict) -> Slots | None:
        """Return the tensors that the mean of replies to a message will have; None if they cannot be folded."""
        record = only(content, ArrayRecord)
        shapes, integers = {}, 0
        for name, array in ({} if record is None else record).items():
            values = values_of(array)
            if values is None:
                return None
            if values.dtype.name not in _FLOATS:
                integers += values.nbytes
            shapes[name] = (averaged(values.dtype), values.shape)
        some = any(0 not in shape for _, shape in shapes.values())
        return cls(shapes) if some and integers <= MOST_INTEGERS else None

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the tensors in the form of ``TaskServer.send(returns=...)``."""
        return {str(at): (_FLOATS[dtype.name], shape) for at, (dtype, shape) in enumerate(self.shapes.values())}

    def missing(self, sent: Packed) -> dict[str, float]:
        """Return which tensors may be missing in replies, in the form of ``TaskServer.send(missing=...)``.

        They are the tensors that the sent message has too. Its values then take the place of the missing ones.
        """
        return {str(at): 1.0 for at, name in enumerate(self.shapes) if sent.arrays.get(name) == at}

    def fit(self, content: RecordDict, key: str) -> Fit | None:
        """Return the parts of a reply that are folded; None if it cannot be. The metric ``key`` is its weight."""
        record, metrics = only(content, ArrayRecord), only(content, MetricRecord)
        weight = None if metrics is None else metrics.get(key)
        if record is None or record.keys() != self.shapes.keys() or not isinstance(weight, (int, float)):
            return None
        values = {name: values_of(array) for name, array in record.items()}
        fits = all(one is not None and self._takes(name, one) for name, one in values.items())
        if not fits or not WEIGHTS[0] <= weight <= WEIGHTS[1]:
            return None
        whole = {name: one for name, one in values.items() if one is not None}
        ordered = ((whole[name], dtype) for name, (dtype, _) in self.shapes.items())
        body = {str(at): one.astype(dtype, copy=False) for at, (one, dtype) in enumerate(ordered)}
        return Fit(body, whole, float(weight))

    def _takes(self, name: str, values: Values) -> bool:
        dtype, shape = self.shapes[name]
        return values.shape == shape and averaged(values.dtype) == dtype


@dataclass(frozen=True)
class Fit:
    """A reply that can be folded: ``body``, its tensors for the mean; ``values``, its arrays; and its weight."""

    body: Mapping[str, Values]
    values: Mapping[str, Values]
    weight: float


def averaged(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the element type of Flower's mean of arrays of this type: float64 for integers, else the type itself."""
    return dtype if dtype.name in _FLOATS else np.dtype(np.float64)


def only(content: RecordDict, kind: type[Any]) -> Any:
    """Return the only record of a kind; None if there is none, or more than one."""
    records = [record for record in content.values() if isinstance(record, kind)]
    return records[0] if len(records) == 1 else None


@dataclass
class Mean:
    """The mean of a round's folded replies: ``tensors`` in the order of ``slots``, and the replies' total weight."""

    slots: Slots
    tensors: Tensors
    weight: float

    def record(self, names: Sequence[str]) -> ArrayRecord:
        """Return the mean as arrays in the order of ``names``, without a copy."""
        number = {name: str(at) for at, name in enumerate(self.slots.shapes)}
        record = ArrayRecord()
        for name in names:
            at = number[name]
            record[name] = View(self.tensors[at], location=(self.tensors, at))
        return record


class Replies(list[Message]):
    """A round's list of replies, with the mean of those that were folded."""

    def __init__(self, messages: Sequence[Message] = (), mean: Mean | None = None) -> None:
        super().__init__(messages)
        self.mean = mean


def weighted_key(strategy: Strategy) -> str | None:
    """Return the metric by which a strategy weights replies; None unless the strategy certainly computes a mean.

    That is certain only if all code that reads a reply's arrays is Flower's own.
    """
    if not isinstance(strategy, FedAvg):
        return None
    kind = type(strategy)
    own = inspect.getattr_static(kind, "aggregate_train") in _MEANS
    own = own and inspect.getattr_static(kind, "_check_and_log_replies", None) is _CHECK
    own = own and strategy.train_metrics_aggr_fn is _METRICS
    # A user may have replaced one of these methods by setting an attribute of the object.
    hidden = {"aggregate_train", "_check_and_log_replies", "start"} & vars(strategy).keys()
    return strategy.weighted_by_key if own and not hidden else None


class Loop:
    """One run of Flower's own loop of rounds, ``Strategy.start``: its strategy, its number of rounds, its results."""

    def __init__(self, strategy: Strategy, rounds: int | None) -> None:
        self.strategy, self.rounds = strategy, rounds
        self._arguments: tuple[Any, ...] = ()
        self._initial: ArrayRecord | None = None
        #: Metrics of the server's own evaluation, by round; round 0 is before the first.
        self.server_metrics: dict[int, Numbers] = {}
        #: Flower's result, once the loop has ended.
        self.result: Any = None

    def run(self, arguments: inspect.BoundArguments) -> Any:
        """Run the loop with these arguments.

        Large initial arrays are moved to a record to which only the loop refers, so that ``trains`` can free them.
        """
        initial = arguments.arguments.get("initial_arrays")
        if isinstance(initial, ArrayRecord) and sum(map(size_of, initial.values())) >= WORTH_A_SEARCH:
            own = housed(initial)
            if own is not initial:
                self._initial = arguments.arguments["initial_arrays"] = own
        self._arguments, keywords = arguments.args, arguments.kwargs
        arguments.arguments.clear()
        del arguments, initial
        self.result = _START(*self._arguments, **keywords)
        return self.result

    def trains(self, content: RecordDict) -> None:
        """Free the initial arrays once the loop trains from other arrays, which are in ``content``.

        The loop's variables refer to them until its end, but it does not read them again (tests/flower/test_compat.py).
        Nothing is freed if any other object refers to them, such as a strategy that compares models with them.
        """
        initial, arrays = self._initial, only(content, ArrayRecord)
        if initial is None or arrays is None or arrays is initial:
            return
        self._initial = None
        gc.collect(1)  # free unused messages, which still refer to the record
        if all(one is self._arguments or _namesonly(one) for one in gc.get_referrers(initial)):
            initial.clear()

    def tapped(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function of the server's own evaluation, so that its results are kept here too."""

        def tap(server_round: int, arrays: ArrayRecord) -> Any:
            metrics = evaluate(server_round, arrays)
            if metrics is not None:
                self.server_metrics[server_round] = dict(metrics)
            return metrics

        return tap


def _namesonly(holder: object) -> bool:
    """Return whether an object is a stack frame of the loop, or of the methods here that run it."""
    codes = (_START.__code__, Loop.run.__code__, Loop.trains.__code__)
    return isinstance(holder, FrameType) and holder.f_code in codes


class Looped(Protocol):
    """A grid that is notified when Flower's own loop of rounds runs."""

    def looping(self, loop: Loop) -> AbstractContextManager[None]:
        """Mark that a loop runs, until the block ends, so that messages may come from it."""


def sends_rounds(code: CodeType) -> bool:
    """Return whether code is Flower's own loop of rounds, which passes replies to ``aggregate_train`` alone."""
    return code is _START.__code__


def merged(replies: Sequence[Message], mean: Mean, key: str) -> ArrayRecord:
    """Return the mean of all replies: of the folded ones, whose mean is ``mean``, and of the others."""
    contents = [reply.content for reply in replies]
    records = [only(content, ArrayRecord) for content in contents]
    record = mean.record(list(records[0]))
    whole = [
        (one, float(only(content, MetricRecord)[key]))
        for one, content in zip(records, contents, strict=True)
        if not any(isinstance(array, Folded) for array in one.values())
    ]
    if not whole:
        return record
    total = mean.weight + sum(weight for _, weight in whole)
    result = ArrayRecord()
    for name, array in record.items():
        sums = np.asarray(array.numpy() * (mean.weight / total))
        for other, weight in whole:
            sums = np.asarray(sums + other[name].numpy() * (weight / total))
        result[name] = View(sums)
    return result


@contextmanager
def installed() -> Iterator[None]:
    """Within the block, notify grids of loops, and let ``FedAvg.aggregate_train`` use a mean that replies carry.

    Other grids and other replies are handled as before.
    """
    Strategy.start = _start  # type: ignore[method-assign]
    FedAvg.aggregate_train = _aggregate_train  # type: ignore[method-assign]
    try:
        yield
    finally:
        Strategy.start = _START  # type: ignore[method-assign]
        FedAvg.aggregate_train = _ORIGINAL  # type: ignore[method-assign]


def _start(self: Strategy, grid: Any, *args: Any, **arguments: Any) -> Any:
    looping = getattr(grid, "looping", None)
    if looping is None:
        return _START(self, grid, *args, **arguments)
    bound = _SIGNATURE.bind(self, grid, *args, **arguments)
    bound.apply_defaults()
    rounds = bound.arguments.get("num_rounds")
    loop = Loop(self, rounds if isinstance(rounds, int) else None)
    if bound.arguments.get("evaluate_fn") is not None:
        bound.arguments["evaluate_fn"] = loop.tapped(bound.arguments["evaluate_fn"])
    del args, arguments  # they refer to the initial arrays, which `trains` could then not free
    with looping(loop):
        return loop.run(bound)


def _aggregate_train(self: FedAvg, server_round: int, replies: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
    mean = getattr(replies, "mean", None)
    if not isinstance(mean, Mean):
        with averaging():
            return _ORIGINAL(self, server_round, replies)
    # The arrays are in the mean already. So a reply with other metrics can only be left out of the mean of metrics.
    valid, _ = self._check_and_log_replies(replies, is_train=True, **_UNCHECKED)
    arrays, contents = merged(valid, mean, self.weighted_by_key), [reply.content for reply in valid]
    other = odd(contents, RecordDict(), self.weighted_by_key)
    agree = [content for at, content in enumerate(contents) if at not in other]
    return arrays, self.train_metrics_aggr_fn(agree, self.weighted_by_key)


_ORIGINAL: Final = FedAvg.aggregate_train
_CHECK: Final = inspect.getattr_static(FedAvg, "_check_and_log_replies", None)
_UNCHECKED: Final[Mapping[str, bool]] = (
    {"validate": False} if "validate" in inspect.signature(_CHECK).parameters else {}
)
#: Flower's own mean of metrics: FedAvg's default.
_METRICS: Final = FedAvg().train_metrics_aggr_fn
_START: Final = Strategy.start
_SIGNATURE: Final = inspect.signature(_START)
#: Methods of Flower that get the mean of arrays from FedAvg's method, and use replies for nothing else.
_MEANS: Final = (
    _ORIGINAL,
    _aggregate_train,
    *(
        vars(kind)["aggregate_train"]
        for kind in (getattr(strategies, name, None) for name in ("FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"))
        if kind is not None and "aggregate_train" in vars(kind)
    ),
)
