"""The numbers of aggregation trees, from the records of a bench's runs.

================  ==============================================================================================
``completion``    from a round's first whole update to the new model (the paper's ACT), seconds
``hand_over``     from the node's note until a worker holds the update, on any data plane, seconds
``fold``          from then until the worker has folded the update, seconds
``taken``         ``hand_over`` + ``fold``
``finish``        the part of ``completion`` after the last update, when the workers' sums become a model
``cpu``           CPU seconds of server, nodes, workers and hops together, mean of a round
``created``       aggregators that were started in the whole run
``active``        aggregators that took updates, averaged over time, to a few per cent: the clock of decisions begins
                  before the first round, or with the first update
``nodes_used``    nodes that had clients
``reached``       accuracy of the last round
``time_to``       seconds of aggregation until the accuracy of ``TARGET`` was reached; null if it was not
``cpu_to``        CPU seconds of aggregation until then
``simulated``     the simulator's completion time with this run's costs and arrivals; only runs with one node
``off``           how far ``simulated`` is from ``completion``, as a fraction of ``completion``
================  ==============================================================================================

Times of a run are medians over its rounds. All numbers are medians over runs; ``completion_by_run`` has each run's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments.measured import Table, middle, rounded, scalars
from thalweg.bench.values import Outcome
from thalweg.errors import RecordError
from thalweg.record import Record, workers
from thalweg.report.replay import replayed

NUMBERS: Final = (
    "completion",
    "hand_over",
    "fold",
    "taken",
    "finish",
    "cpu",
    "created",
    "active",
    "nodes_used",
    "reached",
    "time_to",
    "cpu_to",
    "simulated",
    "off",
)
# The target accuracy of the paper's figure 9.
TARGET: Final = 0.7


def by_cell(runs: Iterable[Outcome], folder: Path) -> dict[int, Table]:
    """Return the numbers of each cell from its complete runs' records, below ``folder``. Raises RecordError."""
    tables_by_cell: dict[int, list[Table]] = defaultdict(list)
    for run in runs:
        if run.status == "complete" and run.record:
            record = Record(folder / run.record)
            rounds = list(record.rounds())
            numbers = of_run(record.manifest["tree"], rounds)
            averaged = active(workers.read(record.path), sum(entry["seconds"] for entry in rounds))
            numbers["active"] = float(numbers.pop("workers")) if averaged is None else averaged
            tables_by_cell[run.cell].append({**numbers, **played(record.path)})
    return {cell: joined(tables) for cell, tables in tables_by_cell.items()}


def of_run(tree: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> Table:
    """Return the numbers of a run from its ``tree`` and its rounds."""
    handed, folded = tree["handover_us"]["p50"], tree["fold_us"]["p50"]
    completions = [entry["fold"]["completion_seconds"] for entry in rounds]
    cpu = _total(tree["cpu_seconds"]) / max(1, len(rounds))
    accuracies = [entry.get("accuracy") for entry in rounds]
    needed = next((at for at, value in enumerate(accuracies, 1) if value is not None and value >= TARGET), None)
    return {
        "system": tree["system"],
        "workers": tree["workers"],
        "completion": middle(completions),
        "hand_over": None if handed is None else rounded(handed / 1e6),
        "fold": None if folded is None else rounded((folded - handed) / 1e6),
        "taken": None if folded is None else rounded(folded / 1e6),
        "finish": middle(entry["fold"].get("finish_seconds") for entry in rounds),
        "cpu": rounded(cpu),
        "created": tree["aggregators_created"],
        "nodes_used": tree["nodes_used"],
        "reached": rounded(accuracies[-1]) if accuracies and accuracies[-1] is not None else None,
        "time_to": None if needed is None else rounded(sum(value or 0.0 for value in completions[:needed])),
        "cpu_to": None if needed is None else rounded(needed * cpu),
    }


def active(rows: Iterable[Mapping[str, Any]], seconds: float) -> float | None:
    """Return how many leaves took updates, averaged over ``seconds`` from the first decision on; None without any.

    ``rows`` are those of a record's ``workers.jsonl``.
    """
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for row in rows:
        for decision in row.get("decisions", ()):
            changes[row["node"]].append((decision["at"], decision["leaves"]))
    if not changes:
        return None
    begin = min(at for node in changes.values() for at, _ in node)
    end = begin + seconds
    total = 0.0
    for node in changes.values():
        ends = [at for at, _ in node[1:]] + [end]
        total += sum(max(0.0, min(until, end) - at) * leaves for (at, leaves), until in zip(node, ends, strict=True))
    return rounded(total / seconds)


def played(folder: Path) -> Table:
    """Return the simulator's numbers for a run; none if it cannot replay the run."""
    try:
        simulation = replayed(folder)
    except RecordError:
        return {"simulated": None, "off": None}
    return {"simulated": rounded(simulation["simulated_seconds"]), "off": rounded(simulation["off"])}


def joined(tables: Sequence[Table]) -> Table:
    """Return the medians of several runs' numbers."""
    medians: Table = {key: middle(table[key] for table in tables) for key in NUMBERS}
    system = tables[0]["system"]
    completions = [table["completion"] for table in tables]
    return {**medians, "system": system, "completion_by_run": completions, "by_run": scalars(tables)}


def _total(cpu: Mapping[str, Any]) -> float:
    """Return the sum of all seconds in a tree's ``cpu_seconds``, including those in its tables by node."""
    return sum(_total(value) if isinstance(value, Mapping) else float(value or 0.0) for value in cpu.values())
