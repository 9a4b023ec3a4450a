"""Partitions: for any arguments, the parts are disjoint, cover all samples, and are not empty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from thalweg.data import Partition, describe, parse_partition, partition
from thalweg.errors import PlanError

LABELS = np.random.default_rng(1).integers(0, 10, 4000)
SPECS = ["contiguous", "iid", "kshard:1", "kshard:4", "dirichlet:0.1", "dirichlet:0.5", "dirichlet:100"]


def labels_strategy() -> st.SearchStrategy[NDArray[np.int64]]:
    return st.lists(st.integers(0, 9), min_size=1, max_size=300).map(lambda values: np.array(values, dtype=np.int64))


@settings(deadline=None, derandomize=True)
@given(
    labels=labels_strategy(),
    clients=st.integers(1, 40),
    spec=st.sampled_from([*SPECS, "dirichlet:0.001", "dirichlet:1000000"]),
    seed=st.integers(0, 2**63 - 1),
)
def test_parts_are_disjoint_cover_everything_and_are_not_empty(
    labels: NDArray[np.int64], clients: int, spec: str, seed: int
) -> None:
    how = parse_partition(spec)
    pieces = clients * int(how.value) if how.kind == "kshard" else clients
    if pieces > len(labels):
        with pytest.raises(PlanError, match=f"{len(labels)} samples cannot be cut into {pieces} parts"):
            partition(labels, clients, spec, seed)
        return
    parts = partition(labels, clients, spec, seed)
    assert len(parts) == clients
    assert all(len(part) > 0 and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    again = partition(labels, clients, spec, seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


@pytest.mark.parametrize("spec", SPECS[1:])
def test_another_seed_cuts_otherwise(spec: str) -> None:
    one, other = partition(LABELS, 4, spec, 0), partition(LABELS, 4, spec, 1)
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_contiguous_cuts_blocks_in_file_order() -> None:
    parts = partition(np.zeros(50_000, dtype=np.int64), 4, "contiguous", 7)
    assert [(part[0], part[-1]) for part in parts] == [
        (0, 12_499),
        (12_500, 24_999),
        (25_000, 37_499),
        (37_500, 49_999),
    ]


@pytest.mark.parametrize("spec", ["contiguous", "iid"])
def test_equal_parts_differ_by_one_sample_at_most(spec: str) -> None:
    sizes = [len(part) for part in partition(LABELS[:103], 10, spec, 0)]
    assert sorted(sizes) == [10] * 7 + [11] * 3


def test_kshard_gives_a_client_few_classes_and_equal_size() -> None:
    sorted_labels = np.repeat(np.arange(10), 100)
    histogram = describe(sorted_labels, partition(sorted_labels, 5, "kshard:2", 3), 10)
    assert (histogram.sum(axis=1) == 200).all()
    assert ((histogram > 0).sum(axis=1) <= 2).all()


def test_small_alpha_is_more_uneven_than_large() -> None:
    uneven = describe(LABELS, partition(LABELS, 4, "dirichlet:0.1", 0), 10)
    even = describe(LABELS, partition(LABELS, 4, "dirichlet:1000", 0), 10)
    assert uneven.std() > 5 * even.std()
    assert even.min() > 70  # of about 100 each


def test_an_empty_client_gets_the_first_sample_of_the_largest_part() -> None:
    labels = np.zeros(6, dtype=np.int64)  # with one class and a tiny alpha one client gets almost everything
    parts = partition(labels, 3, "dirichlet:0.001", 0)
    owner = int(np.argmax([len(part) for part in parts]))
    others = [part.tolist() for client, part in enumerate(parts) if client != owner]
    assert others == [[0], [1]]
    assert parts[owner].tolist() == [2, 3, 4, 5]


def test_describe_counts_labels() -> None:
    labels = np.array([0, 1, 1, 2, 2, 2])
    histogram = describe(labels, [np.array([0, 1, 3]), np.array([2, 4, 5])], classes=4)
    assert histogram.tolist() == [[1, 1, 1, 0], [0, 1, 2, 0]]
    assert histogram.dtype == np.int64


def test_specs_are_read() -> None:
    assert parse_partition("iid") == Partition("iid")
    assert parse_partition("kshard:4") == Partition("kshard", 4)
    assert parse_partition("dirichlet:0.5") == Partition("dirichlet", 0.5)


@pytest.mark.parametrize(
    "spec",
    ["", "IID", "kshard", "kshard:", "kshard:-1", "kshard:1.5", "dirichlet", "dirichlet:nan", "dirichlet:-1", "iid:2"],
)
def test_unknown_specs_are_refused(spec: str) -> None:
    with pytest.raises(PlanError, match="Write contiguous, iid, kshard:N"):
        parse_partition(spec)


@pytest.mark.parametrize("spec", ["kshard:0", "dirichlet:0", "dirichlet:0.0001", "dirichlet:9999999"])
def test_values_out_of_range_are_refused(spec: str) -> None:
    with pytest.raises(PlanError, match=r"\. Write (kshard:1 or more|dirichlet:A with A from 0.001 to 1000000)"):
        parse_partition(spec)


def test_no_clients_are_refused() -> None:
    with pytest.raises(PlanError, match="Take 1 client or more"):
        partition(LABELS, 0, "iid", 0)
