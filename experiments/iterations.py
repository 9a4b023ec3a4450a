"""The iterations of a job on a graph, from the records of a bench's runs.

An exchange lasts from the end of training until the model is the mean. udp-dpsgd calls it an iteration (section 4.3.2).

======================  ========================================================================================
``exchange_mean``       mean seconds of an exchange, over all iterations of all nodes
``exchange_median``     median of the same
``exchange_std``        standard deviation of the same
``iteration_mean``      mean seconds of an iteration with its training, without evaluation
``used``                share of the neighbours' chunks that are in the means
``timeouts``            share of iterations whose wait a deadline ended
``sent``                bytes on all links, divided by the bytes of the models that they carried
``gap_mean``            of nodes that finished after all their neighbours: by how many seconds, mean over
                        neighbours
``gap_std``             standard deviation of the same; also ``gap_median``, ``gap_min`` and ``gap_max``
``last``                number of such nodes; no two of them are neighbours
``drift``               by how much mixing moved the mean of all models, over its norm; mean over iterations
``disagreement``        distance of the models from their mean after the last iteration, over the mean's norm
``reached``             accuracy of the nodes' models in the last evaluation, mean over nodes
``reached_std``         standard deviation of the same
``tested_loss``         cross-entropy on the test set in the last evaluation, mean over nodes
``finish_seconds``      when that evaluation ended, on the run's clock, mean over nodes
``others``              number of cores that other programs kept busy during the run
``box``                 of the exchanges' seconds: minimum, quartiles, maximum; whiskers within 1.5
                        interquartile ranges
``curve``               of each evaluation: ``round``, ``seconds``, ``accuracy``, ``loss``, both ``_std``,
                        ``train_loss``
``graph``               ``edges`` between node numbers from 0, and the nodes that finished ``last``
======================  ========================================================================================

Single numbers are medians over runs; ``box``, ``curve`` and ``graph`` are those of the first run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments import load
from experiments.measured import Table, middle, rounded, scalars
from thalweg.bench.values import Outcome
from thalweg.record.rows import Evaluation, Iteration
from thalweg.report.graphs import graph
from thalweg.report.numbers import divided
from thalweg.report.source import Run, json_object, read_run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Values that are taken from the first run, because their median over runs has no meaning.
OF_ONE: Final = ("box", "curve", "graph")
# Numbers that are stored for each run too, so that figures can show their spread.
SPREAD: Final = ("exchange_mean", "exchange_median", "used")
QUARTILES: Final = (0, 25, 50, 75, 100)
WHISKER: Final = 1.5


def by_cell(runs: Iterable[Outcome], folder: Path) -> dict[int, Table]:
    """Return the numbers of each cell from its complete runs' records, below ``folder``. Raises RecordError."""
    tables_by_cell: dict[int, list[Table]] = defaultdict(list)
    for run in runs:
        if run.status == "complete" and run.record:
            noted = folder / "cells" / f"{Path(run.record).name}{load.SUFFIX}"
            others = json.loads(noted.read_text())["others"] if noted.is_file() else None
            tables_by_cell[run.cell].append({**of_run(read_run(folder / run.record)), "others": others})
    return {cell: joined(tables) for cell, tables in tables_by_cell.items()}


def joined(tables: Sequence[Table]) -> Table:
    """Return one cell's numbers from those of its runs."""
    medians: Table = {name: middle(table[name] for table in tables) for name in tables[0] if name not in OF_ONE}
    medians |= {name: tables[0][name] for name in OF_ONE}
    spread = {f"{name}_by_run": [rounded(table[name]) for table in tables] for name in SPREAD}
    return {**medians, **spread, "by_run": scalars(tables)}


def of_run(run: Run) -> Table:
    """Return the numbers of one run."""
    import numpy as np

    exchanges = np.array([row.exchange_seconds for row in run.iterations])
    curve = curve_of(run)
    end: Mapping[str, Any] = curve[-1] if curve else {}
    numbers = graph(run)
    edges = [] if numbers is None else list(numbers.edges)
    names = [] if numbers is None else [node.node for node in numbers.nodes]
    last, gaps = gaps_of(names, edges, run.iterations)
    carried = sum(row.bytes_expected or 0 for row in run.iterations)
    return {
        "exchange_mean": float(exchanges.mean()),
        "exchange_median": float(np.median(exchanges)),
        "exchange_std": float(exchanges.std()),
        "iteration_mean": float(np.mean([row.seconds for row in run.iterations])),
        "used": divided(
            _sum(row.chunks_used for row in run.iterations), _sum(row.chunks_expected for row in run.iterations)
        ),
        "timeouts": divided(_sum(row.timed_out for row in run.iterations), len(run.iterations)),
        "sent": divided(_sum(row.bytes_sent for row in run.iterations), carried),
        **_spread("gap", np.array(gaps)),
        "last": len(last),
        "drift": _mean(row.drift for row in run.rounds),
        "disagreement": next((row.disagreement for row in reversed(run.rounds) if row.disagreement is not None), None),
        "reached": end.get("accuracy"),
        "reached_std": end.get("accuracy_std"),
        "tested_loss": end.get("loss"),
        "finish_seconds": end.get("seconds"),
        "box": [rounded(value) for value in box(exchanges)],
        "curve": curve,
        "graph": {"edges": [list(edge) for edge in edges], "last": [names.index(name) for name in last]},
    }


def curve_of(run: Run) -> list[Table]:
    """Return each evaluation's results over all nodes, with the training loss of that iteration."""
    tested: dict[int, list[Evaluation]] = defaultdict(list)
    trained: dict[int, list[float]] = defaultdict(list)
    for test in run.evaluations:
        tested[test.round].append(test)
    for row in run.iterations:
        loss = json_object(row.metrics).get("loss")
        if row.round in tested and isinstance(loss, float):
            trained[row.round].append(loss)
    points = []
    for number, rows in sorted(tested.items()):
        point: Table = {"round": number, "seconds": _mean(row.at for row in rows)}
        for key, values in (("accuracy", [row.accuracy for row in rows]), ("loss", [row.loss for row in rows])):
            point |= {key: _mean(values), f"{key}_std": _std(values)}
        point["train_loss"] = _mean(trained[number])
        points.append({key: value if key == "round" else rounded(value) for key, value in point.items()})
    return points


def gaps_of(
    names: Sequence[str], edges: Iterable[tuple[int, int]], rows: Iterable[Iteration]
) -> tuple[list[str], list[float]]:
    """Return the nodes that finished after all their neighbours, with the seconds since each neighbour finished."""
    ends: dict[str, float] = {}
    for row in rows:
        if row.mixed is not None:
            ends[row.node] = max(row.mixed, ends.get(row.node, row.mixed))
    around: dict[str, list[str]] = defaultdict(list)
    for a, b in edges:
        around[names[a]].append(names[b])
        around[names[b]].append(names[a])
    last, gaps = [], []
    for name, end in ends.items():
        behind = [end - ends[other] for other in around[name] if other in ends]
        if behind and min(behind) > 0:
            last.append(name)
            gaps += behind
    return last, gaps


def box(values: NDArray[np.float64]) -> list[float]:
    """Return the lower whisker, the quartiles and the upper whisker of ``values``, shape (n,), n at least 1."""
    import numpy as np

    _, low, middle_one, high, _ = np.percentile(values, QUARTILES)
    far = WHISKER * (high - low)
    inside = values[(values >= low - far) & (values <= high + far)]
    return [float(one) for one in (inside.min(), low, middle_one, high, inside.max())]


def _spread(name: str, values: NDArray[np.float64]) -> Table:
    import numpy as np

    ways: Mapping[str, Callable[[NDArray[np.float64]], Any]] = {
        "mean": np.mean,
        "std": np.std,
        "median": np.median,
        "min": np.min,
        "max": np.max,
    }
    return {f"{name}_{way}": float(of(values)) if values.size else None for way, of in ways.items()}


def _sum(values: Iterable[int | None]) -> int:
    return sum(value or 0 for value in values)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _std(values: Iterable[float | None]) -> float | None:
    import numpy as np

    known = [value for value in values if value is not None]
    return float(np.std(known)) if known else None
