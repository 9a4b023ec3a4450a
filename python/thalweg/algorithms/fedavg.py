"""Federated averaging: rounds of local training whose mean is the next global model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

MEANING: Final = (
    "in each round clients train the global model on their own data; the mean of what they send, weighted by samples, "
    "is the next one"
)
SOURCE: Final = "McMahan et al. 2017, algorithm 1"

T = TypeVar("T")


def rounds(step: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """Run a round for each number, one after the other.

    A round is done by the core: it sends the model, receives updates and takes their mean.
    """
    for number in numbers:
        yield step(number)
