"""The tables of a job on a graph, and the journal's entry of one iteration of all nodes.

For each iteration a node reports what it did, the core's report of its waiting and mixing, and a sketch of its model
before and after mixing. An entry has the reports of all nodes that took part in the iteration, and their means and
sums.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Final, cast

from thalweg.graphs import measures
from thalweg.outcome import Entry, NodeEntry
from thalweg.record.columns import Row
from thalweg.record.rows import TABLES
from thalweg.ui import strict_json
from thalweg.ui.strict_json import number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Keys of a node's line that are not stored: drift and disagreement are computed from these sketches.
SKETCHES: Final = ("before", "after")


def entry(iteration: int, lines: Mapping[str, Row], expected: int) -> Entry:
    """Return the journal's entry of an iteration from the lines of its nodes. The graph has ``expected`` nodes.

    It has the keys of a round of a job with a server, so that the same code reads both: times are means over nodes,
    bytes are sums, accuracy and loss are means over the nodes that evaluated.
    """
    kept = {name: _node(line) for name, line in lines.items()}
    tested = [line["evaluation"] for line in lines.values() if line.get("evaluation")]
    nodes = list(kept.values())
    drift, disagreement = _together(lines)
    return {
        "round": iteration,
        "accuracy": _mean(test.get("accuracy") for test in tested),
        "loss": _mean(test.get("loss") for test in tested),
        "seconds": fmean(node["seconds"] for node in nodes),
        "communication_seconds": fmean(node["exchange_seconds"] for node in nodes),
        "compute_seconds": _mean(node["train_seconds"] for node in nodes),
        "fedcomm_seconds": None,
        "fedcomm_communication_seconds": None,
        "evaluation_seconds": _mean(test["seconds"] for test in tested),
        "bytes_down": sum(node["bytes_received"] for node in nodes),
        "bytes_up": sum(node["bytes_sent"] for node in nodes),
        "participants": len(nodes),
        "expected": expected,
        "complete": len(nodes) == expected and all(node["whole"] == node["neighbours"] for node in nodes),
        "fold": None,
        "drift": drift,
        "disagreement": disagreement,
        "clients": [],
        "transfers": [],
        "nodes": kept,
    }


def packed(sketch: NDArray[np.float64]) -> str:
    """Return a sketch as text that ``unpacked`` reads: little-endian float64 in base64."""
    return base64.b64encode(sketch.astype("<f8").tobytes()).decode()


def unpacked(text: str) -> NDArray[np.float64]:
    """Return the sketch in a text of ``packed``. Raises ValueError if the text is invalid."""
    import numpy as np

    values = np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8")
    if values.shape != (measures.PLACES,):
        raise ValueError(f"a sketch has {measures.PLACES} values, not {values.size}")
    return values


def _node(line: Row) -> NodeEntry:
    """Return the part of a node's line that is stored: numbers in place of lists, and times on the run's clock."""
    report = line["report"]
    shift = line["clock"]
    begin, ready, mixed = (report[f"{name}_at"] + shift for name in ("begin", "ready", "mixed"))
    row: Row = {column.name: report.get(column.name) for column in TABLES["iterations"]}
    row |= {"begin": begin, "ready": ready, "mixed": mixed, "seconds": mixed - begin}
    row |= {"train_seconds": ready - begin, "exchange_seconds": mixed - ready}
    row |= {name: len(report[name]) for name in ("heard", "whole", "connected")}
    row |= {"neighbours": len(report["exchanges"]), "skipped": line["skipped"]}
    row |= {"samples": line["samples"], "metrics": line["metrics"]}
    tested = line.get("evaluation")
    row["evaluation"] = None
    if tested:
        row["evaluation"] = {name: tested.get(name) for name in ("accuracy", "loss", "seconds")}
        row["evaluation"]["at"] = tested["at"] + shift
    row["exchanges"] = report["exchanges"]
    return cast("NodeEntry", row)


def _together(lines: Mapping[str, Row]) -> tuple[float | None, float | None]:
    """Return drift and disagreement of the nodes that took part in an iteration.

    Both are None if only one node took part, or if a model is not finite.
    """
    import numpy as np

    if len(lines) < 2:  # there is nothing to compare one node with
        return None, None
    before, after = (np.stack([unpacked(line[name]) for line in lines.values()]) for name in SKETCHES)
    drift, disagreement = measures.drift(before, after), measures.disagreement(after)
    return drift if np.isfinite(drift) else None, disagreement if np.isfinite(disagreement) else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _iterations(entry: Entry) -> list[Row]:
    return [
        {**node, "round": entry["round"], "node": name, "metrics": strict_json.dumps(node["metrics"], sort_keys=True)}
        for name, node in entry["nodes"].items()
    ]


def _exchanges(entry: Entry) -> list[Row]:
    return [
        {**exchange, "round": entry["round"], "node": name, "neighbour": exchange["peer"]}
        for name, node in entry["nodes"].items()
        for exchange in node["exchanges"]
    ]


def _evaluations(entry: Entry) -> list[Row]:
    return [
        {**{key: number(value) for key, value in node["evaluation"].items()}, "round": entry["round"], "node": name}
        for name, node in entry["nodes"].items()
        if node["evaluation"]
    ]


MAKERS: Final[Mapping[str, Callable[[Entry], list[Row]]]] = {
    "iterations": _iterations,
    "exchanges": _exchanges,
    "evaluations": _evaluations,
}
