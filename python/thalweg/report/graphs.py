"""Reports on a job on a graph: which nodes are slow, how long others wait for them, and where they are in the graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from thalweg.report.charts import GREY, Chart, axes
from thalweg.report.text import escaped
from thalweg.ui.units import format_seconds

if TYPE_CHECKING:
    from thalweg.report.source import Row, Run

# A node is slow if its training takes more than this many times that of the median node, and longer than that in all of
# its iterations but this share. So times that scatter much make no node slow.
SLOW: Final = 1.5
MAY_BE_FAST: Final = 0.1
# Most slow nodes that a sentence names.
NAMED: Final = 5
# Most nodes that are placed by a force-directed layout, which takes about a second; more nodes are put on a circle.
MOST_SPRINGS: Final = 400
RED: Final = "#d02020"
BLUE: Final = "#0a84c6"

Numbers = dict[str, Any]


def graph(run: Run) -> Numbers | None:
    """Return the numbers of a job on a graph: its nodes, edges, slow nodes and their cost. None for any other job."""
    said = run.manifest.get("graph")
    if not isinstance(said, dict) or not isinstance(said.get("nodes"), list):
        return None
    names = [str(name) for name in said["nodes"]]
    edges = [(a, b) for a, b in _pairs(said.get("edges")) if max(a, b) < len(names) and min(a, b) >= 0]
    around: dict[str, list[str]] = defaultdict(list)
    for a, b in edges:
        around[names[a]].append(names[b])
        around[names[b]].append(names[a])
    by_node: dict[str, list[Row]] = {name: [] for name in names}
    for row in run.iterations:
        by_node.setdefault(row["node"], []).append(row)
    nodes = [_node(name, len(around[name]), rows) for name, rows in by_node.items()]
    slow = _slow(nodes, by_node)
    return {
        "word": said.get("word"),
        "spectral_gap": said.get("spectral_gap"),
        "nodes": nodes,
        "edges": edges,
        "slow": slow,
        "sentence": _sentence(nodes, around, slow),
        "finish_gap_seconds": _finish_gaps(nodes, around),
        "timed_out": sum(node["timed_out"] for node in nodes),
        "chunks_used": _share(run.iterations, "chunks_used", "chunks_expected"),
        "drift": _last(run.rounds, "drift"),
        "disagreement": _last(run.rounds, "disagreement"),
    }


def chart(found: Mapping[str, Any]) -> Chart:
    """Draw the graph. Slow nodes are red, and a node shows its numbers when pointed at."""
    places = positions(len(found["nodes"]), found["edges"])
    slow = set(found["slow"])
    lines: dict[str, list[float | None]] = {"x": [], "y": []}
    for a, b in found["edges"]:
        for axis, at in (("x", 0), ("y", 1)):
            lines[axis] += [places[a][at], places[b][at], None]
    nodes = found["nodes"][: len(places)]
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", **lines, "line": {"color": GREY, "width": 1}, "hoverinfo": "skip",
         "showlegend": False},
    ]  # fmt: skip
    for name, colour, chosen in (
        ("nodes", BLUE, [at for at, node in enumerate(nodes) if node["node"] not in slow]),
        ("slow nodes", RED, [at for at, node in enumerate(nodes) if node["node"] in slow]),
    ):
        if chosen:
            traces.append(_dots(name, colour, [nodes[at] for at in chosen], [places[at] for at in chosen]))
    hidden = {"visible": False, "rangemode": "normal"}
    layout = axes("", "", showlegend=bool(slow), xaxis=hidden, yaxis={**hidden, "scaleanchor": "x"})
    return Chart("graph", traces, layout, [], 460)


def positions(nodes: int, edges: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Return the positions of nodes, the same each time: a force-directed layout, or a circle for many nodes."""
    import networkx

    drawn = networkx.Graph()
    drawn.add_nodes_from(range(nodes))
    drawn.add_edges_from(edges)
    is_many = nodes > MOST_SPRINGS
    found = networkx.circular_layout(drawn) if is_many else networkx.spring_layout(drawn, seed=0, iterations=200)
    return [(round(float(found[node][0]), 4), round(float(found[node][1]), 4)) for node in range(nodes)]


def _dots(name: str, colour: str, nodes: Sequence[Numbers], places: Sequence[tuple[float, float]]) -> dict[str, Any]:
    told = [
        [_time(node["train_seconds"]), _time(node["exchange_seconds"]), node["iterations"], node["timed_out"]]
        for node in nodes
    ]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": name,
        "x": [place[0] for place in places],
        "y": [place[1] for place in places],
        "text": [escaped(node["node"]) for node in nodes],
        "textposition": "top center",
        "customdata": told,
        "marker": {"color": colour, "size": 13},
        "hovertemplate": "%{text}<br>training %{customdata[0]}, exchange %{customdata[1]}<br>"
        "%{customdata[2]} iterations, %{customdata[3]} of them ended by a deadline<extra></extra>",
    }


def _time(seconds: float | None) -> str:
    return "not known" if seconds is None else format_seconds(seconds)


def _pairs(edges: object) -> list[tuple[int, int]]:
    given = edges if isinstance(edges, list) else []
    return [(one[0], one[1]) for one in given if isinstance(one, list) and len(one) == 2 and _are_whole(one)]


def _are_whole(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _node(name: str, degree: int, rows: Sequence[Row]) -> Numbers:
    """Return a node's numbers: medians over its iterations, and the time at which it finished the last one."""
    return {
        "node": name,
        "degree": degree,
        "iterations": len(rows),
        "train_seconds": _median(rows, "train_seconds"),
        "exchange_seconds": _median(rows, "exchange_seconds"),
        "seconds": _median(rows, "seconds"),
        "timed_out": sum(bool(row["timed_out"]) for row in rows),
        "skipped": sum(row["skipped"] or 0 for row in rows),
        "chunks_used": _share(rows, "chunks_used", "chunks_expected"),
        "finished": max((row["mixed"] for row in rows if row["mixed"] is not None), default=None),
    }


def _slow(nodes: Sequence[Numbers], by_node: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the nodes whose training takes much longer than that of the median node, the slowest first."""
    known = [node for node in nodes if node["train_seconds"] is not None]
    if not known:
        return []
    usual = median(node["train_seconds"] for node in known)
    found = [
        node
        for node in known
        if node["train_seconds"] > SLOW * usual > 0 and _is_mostly_above(by_node[node["node"]], usual)
    ]
    return [node["node"] for node in sorted(found, key=lambda node: -node["train_seconds"])]


def _is_mostly_above(rows: Sequence[Row], usual: float) -> bool:
    """Return whether training took longer than ``usual`` in all iterations but a few."""
    times = sorted(row["train_seconds"] for row in rows if row["train_seconds"] is not None)
    return bool(times[int(MAY_BE_FAST * len(times))] > usual)


def _sentence(nodes: Sequence[Numbers], around: Mapping[str, Sequence[str]], slow: Sequence[str]) -> str:
    """Return a sentence that says which nodes are slow, and what that costs their neighbours."""
    known = {node["node"]: node for node in nodes if node["train_seconds"] is not None}
    if not known:
        return "no node finished an iteration"
    times = [node["train_seconds"] for node in known.values()]
    usual = median(times)
    if not slow:
        span = f"{format_seconds(min(times))} to {format_seconds(max(times))}"
        return f"no node is much slower than the others: they train {span} an iteration"
    beside = {other for name in slow for other in around[name]} - set(slow)
    waits, others = (
        _middle(node["exchange_seconds"] for name, node in known.items() if name in chosen)
        for chosen in (beside, set(known) - beside - set(slow))
    )
    more = f" and {len(slow) - NAMED} more" if len(slow) > NAMED else ""
    verb, times_as, whose = ("is", "times", "its") if len(slow) == 1 else ("are", "times or more", "their")
    least = min(known[name]["train_seconds"] for name in slow) / usual
    said = f"{', '.join(slow[:NAMED])}{more} {verb} slow: {least:.1f} {times_as} the training of the median node"
    if waits is not None:
        said += f"; {whose} neighbours exchange for {format_seconds(waits)} an iteration"
        said += "" if others is None else f", the others for {format_seconds(others)}"
    return said


def _finish_gaps(nodes: Sequence[Numbers], around: Mapping[str, Sequence[str]]) -> Numbers | None:
    """Return how far apart neighbours finished: the spread over nodes of the mean distance to their neighbours."""
    ends = {node["node"]: node["finished"] for node in nodes if node["finished"] is not None}
    gaps = []
    for name, end in ends.items():
        far = [abs(end - ends[other]) for other in around[name] if other in ends]
        gaps += [sum(far) / len(far)] if far else []
    if not gaps:
        return None
    return {"mean": sum(gaps) / len(gaps), "median": median(gaps), "min": min(gaps), "max": max(gaps)}


def _median(rows: Sequence[Row], key: str) -> float | None:
    return _middle(row[key] for row in rows)


def _middle(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _share(rows: Sequence[Row], part: str, whole: str) -> float | None:
    of = sum(row[whole] or 0 for row in rows)
    return sum(row[part] or 0 for row in rows) / of if of else None


def _last(rows: Sequence[Row], key: str) -> float | None:
    return next((row[key] for row in reversed(rows) if row[key] is not None), None)
