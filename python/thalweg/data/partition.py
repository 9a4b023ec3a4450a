"""Partitions a training set among clients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.errors import PlanError

Indices: TypeAlias = NDArray[np.int64]
Kind: TypeAlias = Literal["contiguous", "iid", "kshard", "dirichlet"]

FORMS: Final = "contiguous, iid, kshard:N (as kshard:4) or dirichlet:A (as dirichlet:0.5)"
ALPHA_MIN: Final = 1e-3
ALPHA_MAX: Final = 1e6
_SPEC: Final = re.compile(r"(contiguous|iid)|(kshard):([0-9]{1,6})|(dirichlet):([0-9]{1,7}(?:\.[0-9]{1,9})?)", re.ASCII)


@dataclass(frozen=True)
class Partition:
    """A kind of partition. ``value``: shards for each client (``kshard``), alpha (``dirichlet``), else 0."""

    kind: Kind
    value: float = 0.0


def parse_partition(spec: str) -> Partition:
    """Read ``contiguous``, ``iid``, ``kshard:N`` (N >= 1) or ``dirichlet:A`` (0.001 <= A <= 1,000,000).

    Raises PlanError for anything else.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise PlanError(f"unknown partition {spec!r}", f"Write {FORMS}")
    plain, kshard, shards, _, alpha = match.groups()
    if plain:
        return Partition(cast(Kind, plain))
    if kshard:
        if int(shards) == 0:
            raise PlanError("a client cannot have 0 shards", "Write kshard:1 or more")
        return Partition("kshard", int(shards))
    if not ALPHA_MIN <= float(alpha) <= ALPHA_MAX:
        raise PlanError(
            f"alpha {alpha} is out of range", f"Write dirichlet:A with A from {ALPHA_MIN} to {ALPHA_MAX:.0f}"
        )
    return Partition("dirichlet", float(alpha))


def partition(labels: Indices, clients: int, spec: str, seed: int) -> list[Indices]:
    """Partition samples with these ``labels`` (int64, shape (n,)). Returns each client's sorted indices (int64).

    The parts are disjoint, cover all samples, and depend on nothing but the arguments.

    - ``contiguous``: blocks in file order, as FedComm cuts CIFAR-10; sizes differ by at most one. Ignores the seed.
    - ``iid``: blocks of the shuffled samples.
    - ``kshard:N``: samples sorted by label are cut into clients * N shards, whose sizes differ by at most one. Each
      client gets N of them at random.
    - ``dirichlet:A``: each class is divided in proportions drawn from a symmetric Dirichlet distribution. Small A
      means few classes for each client. Then each client without samples gets one sample: the first sample of the
      client that has the most at that time (of the first such client, if there are several).

    Raises PlanError if the spec is unknown or there are too few samples for every client to have one.
    """
    how = parse_partition(spec)
    pieces = clients * int(how.value) if how.kind == "kshard" else clients
    if clients < 1 or pieces > len(labels):
        raise PlanError(
            f"{len(labels)} samples cannot be cut into {pieces} parts for {clients} clients ({spec})",
            "Take 1 client or more, fewer clients or shards, or a larger data set",
        )
    generator = np.random.default_rng(seed)
    if how.kind == "contiguous":
        return _blocks(np.arange(len(labels), dtype=np.int64), clients)
    if how.kind == "iid":
        return [np.sort(part) for part in _blocks(generator.permutation(len(labels)), clients)]
    if how.kind == "kshard":
        return _kshard(labels, clients, int(how.value), generator)
    return _dirichlet(labels, clients, how.value, generator)


def describe(labels: Indices, parts: list[Indices], classes: int) -> Indices:
    """Return the label histogram of each part: int64, shape (parts, classes)."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts]).astype(np.int64)


def _blocks(order: Indices, pieces: int) -> list[Indices]:
    return [block.astype(np.int64) for block in np.array_split(order, pieces)]


def _kshard(labels: Indices, clients: int, shards: int, generator: np.random.Generator) -> list[Indices]:
    pieces = _blocks(np.argsort(labels, kind="stable"), clients * shards)
    assigned = generator.permutation(len(pieces)).reshape(clients, shards)
    return [np.sort(np.concatenate([pieces[piece] for piece in own])) for own in assigned]


def _dirichlet(labels: Indices, clients: int, alpha: float, generator: np.random.Generator) -> list[Indices]:
    owner = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, alpha))
        ends = np.rint(np.cumsum(shares)[:-1] * len(members))
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    sizes = np.bincount(owner, minlength=clients)
    for empty in np.flatnonzero(sizes == 0):
        donor = int(np.argmax(sizes))
        owner[np.flatnonzero(owner == donor)[0]] = empty
        sizes[donor] -= 1
        sizes[empty] += 1
    return [np.flatnonzero(owner == client).astype(np.int64) for client in range(clients)]
