"""The figures of a round that trackers draw: numbers by name, such as ``model/accuracy``.

Values are as in the journal: seconds, bytes, accuracies from 0 to 1. A figure that is not known is left out. What is
not finite is left out too, because not every tracker stores it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Final, TypeGuard

from thalweg.outcome import Entry, completion_seconds

# Names of figures, and the key of the journal's entry that each one shows.
_NAMES: Final[Mapping[str, str]] = {
    "model/accuracy": "accuracy",
    "model/loss": "loss",
    "clients/accuracy": "client_accuracy",
    "clients/loss": "client_loss",
    "round/seconds": "seconds",
    "round/communication_seconds": "communication_seconds",
    "round/compute_seconds": "compute_seconds",
    "round/evaluation_seconds": "evaluation_seconds",
    "round/updates": "participants",
    "round/expected": "expected",
    "bytes/down": "bytes_down",
    "bytes/up": "bytes_up",
    "graph/drift": "drift",
    "graph/disagreement": "disagreement",
}
# States of participants whose update counts.
_COUNTING: Final = frozenset({"whole", "partial"})
# Maximum number of metrics of clients. Each client may report 64 names, and others in each round.
MOST: Final = 256


def figures(entry: Entry) -> dict[str, float]:
    """Return a round's figures by name.

    ``clients/NAME`` is the mean of the metric NAME over the clients, or nodes of a graph, that reported a number, each
    weighted by its samples. Only the first ``MOST`` names count, in alphabetical order.
    """
    named = {name: entry.get(key) for name, key in _NAMES.items()}
    named["round/completion_seconds"] = completion_seconds(entry)
    found = {name: float(value) for name, value in named.items() if is_number(value)}
    means = {f"clients/{name}": mean for name, mean in sorted(client_means(entry).items())[:MOST]}
    return {name: value for name, value in {**means, **found}.items() if isfinite(value)}


def client_means(entry: Entry) -> dict[str, float]:
    """Return the mean of each metric that clients, or nodes of a graph, reported, weighted by their samples.

    Without samples all weigh the same.
    """
    reports = list(_reports(entry))
    total = sum(weight for weight, _ in reports)
    sums: dict[str, tuple[float, float]] = {}
    for weight, metrics in reports:
        share = weight if total else 1.0
        for name, value in metrics.items():
            if is_number(value):
                summed, shares = sums.get(name, (0.0, 0.0))
                sums[name] = (summed + float(value) * share, shares + share)
    return {name: summed / shares for name, (summed, shares) in sums.items() if shares}


def _reports(entry: Entry) -> Iterator[tuple[float, Mapping[str, object]]]:
    """Yield the weight and the metrics of each client whose update counts, and of each node of a graph."""
    for part in entry["clients"]:
        if part["state"] in _COUNTING:
            yield float(part["samples"] or 0), _table(part["metrics"])
    for node in entry.get("nodes", {}).values():
        yield float(node.get("samples") or 0), _table(node.get("metrics"))


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number, and neither true nor false."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
