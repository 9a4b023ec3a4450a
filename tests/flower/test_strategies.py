"""Flower's own strategies give the same bits with and without the adapter's patches, for arrays of any kind.

Flower's own tests of its strategies are in neither its wheel nor its source distribution: ``make flower TESTS=DIR``
runs them from a checkout of Flower.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, Strategy

from tests.flower.test_differential import Plain
from thalweg.apps import seed_all
from thalweg.flower import compat, fold
from thalweg.flower.arrays import View
from thalweg.flower.fold import Replies

NODES = 4
# The arguments of each strategy. Strategies that a Flower release lacks are skipped; unlisted ones fail a test.
MAKE: dict[str, Callable[[Any], Strategy]] = {
    **dict.fromkeys(
        ("Bulyan", "FedAdagrad", "FedAdam", "FedAvg", "FedMedian", "FedProx", "FedTrimmedAvg", "FedYogi", "Krum"),
        lambda kind: kind(),
    ),
    "MultiKrum": lambda kind: kind(num_malicious_nodes=1, num_nodes_to_select=2),
    "FedAvgM": lambda kind: kind(server_momentum=0.9, server_learning_rate=0.5),
    "FedXgbBagging": lambda kind: kind(),
    "FedXgbCyclic": lambda kind: kind(),
    "QFedAvg": lambda kind: kind(client_learning_rate=0.1),
    "DifferentialPrivacyClientSideAdaptiveClipping": lambda kind: kind(FedAvg(), 0.1, NODES),
    "DifferentialPrivacyServerSideAdaptiveClipping": lambda kind: kind(FedAvg(), 0.1, NODES),
    "DifferentialPrivacyClientSideFixedClipping": lambda kind: kind(FedAvg(), 0.1, 1.0, NODES),
    "DifferentialPrivacyServerSideFixedClipping": lambda kind: kind(FedAvg(), 0.1, 1.0, NODES),
}
HERE = sorted(set(strategies.__all__) - {"Result", "Strategy"})


def trees(count: int) -> npt.NDArray[np.uint8]:
    """Return a model with ``count`` trees in XGBoost's format."""
    model = {
        "gbtree_model_param": {"num_trees": str(count), "num_parallel_tree": "1"},
        "trees": [{"id": at} for at in range(count)],
        "iteration_indptr": list(range(count + 1)),
        "tree_info": [0] * count,
    }
    return np.frombuffer(json.dumps({"learner": {"gradient_booster": {"model": model}}}).encode(), np.uint8)


def model(name: str, node: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that a node sends back. Node -1 stands for the initial model."""
    if name.startswith("FedXgb"):
        return {"0": trees(1)}
    draw = np.random.default_rng(node + 1)
    half = draw.standard_normal(4).astype(np.float16)
    return {
        "w": draw.standard_normal((6, 5)).astype(np.float32),
        "across": np.asfortranarray(draw.standard_normal((3, 4))),
        **({"half": half} if name in ("FedAvg", "FedProx") else {}),
    }


def aggregated(name: str, kind: Callable[[npt.NDArray[Any]], Array], installed: bool) -> tuple[dict[str, Any], Any]:
    """Train for two rounds; return the model's arrays and the metrics of the last."""
    compat.identify(1)
    strategy = MAKE[name](getattr(strategies, name))
    grid = Plain(None, {})  # type: ignore[arg-type]
    arrays = ArrayRecord({key: Array(value) for key, value in model(name, -1).items()})
    seed_all(1)  # strategies draw nodes and noise
    with fold.installed() if installed else nullcontext():
        for number in (1, 2):
            sent = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
            replies = []
            for at, message in enumerate(sent):
                record = ArrayRecord()
                for key, value in model(name, at + 10 * number).items():
                    record[key] = kind(value)
                metrics = MetricRecord({"num-examples": at + 1, "train_loss": 1.5 + at, "norm_bit": at % 2})
                compat.name(message, f"{number}-{at}")
                replies.append(Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message))
            mean_arrays, mean_metrics = strategy.aggregate_train(number, Replies(replies) if installed else replies)
            assert mean_arrays is not None
            arrays = mean_arrays
    return {key: array.numpy() for key, array in arrays.items()}, mean_metrics


def test_each_strategy_of_this_release_is_known_here() -> None:
    assert set(HERE) <= set(MAKE)


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("kind", [Array, View], ids=["made here", "came over a network"])
def test_a_strategy_gives_the_same_bits_with_the_adapter_and_without(
    name: str, kind: Callable[[npt.NDArray[Any]], Array]
) -> None:
    theirs, their_metrics = aggregated(name, Array, installed=False)
    ours, our_metrics = aggregated(name, kind, installed=True)
    assert list(ours) == list(theirs)
    for key, value in theirs.items():
        assert ours[key].dtype == value.dtype
        np.testing.assert_array_equal(ours[key], value)
    assert our_metrics == their_metrics
