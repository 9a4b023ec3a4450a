"""Reports on a job on a graph: which nodes are slow, how long others wait for them, and where they are in the graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Final

from thalweg import extras
from thalweg.report.charts import GREY, Chart, Trace, axes
from thalweg.report.text import escaped
from thalweg.report.values import Gaps, GraphNumbers, NodeNumbers
from thalweg.ui.units import format_seconds

if TYPE_CHECKING:
    from thalweg.record.rows import Iteration
    from thalweg.report.source import Run

# A node is slow if its median training time is more than SLOW times the median node's, and if at most the share
# MAY_BE_FAST of its iterations trains no longer than the median node. So a node whose times only scatter is not slow.
SLOW: Final = 1.5
MAY_BE_FAST: Final = 0.1
# Maximum number of slow nodes that a sentence names.
NAMED: Final = 5
# Maximum number of nodes for a force-directed layout, which then takes about a second. More nodes form a circle.
MOST_SPRINGS: Final = 400
RED: Final = "#d02020"
BLUE: Final = "#0a84c6"


def graph(run: Run) -> GraphNumbers | None:
    """Return the numbers of a job on a graph: its nodes, edges, slow nodes and their cost. None for any other job."""
    facts = run.manifest.part("graph")
    if "nodes" not in facts:
        return None
    names = [str(name) for name in facts.items("nodes")]
    edges = [(a, b) for a, b in _pairs(facts.items("edges")) if max(a, b) < len(names) and min(a, b) >= 0]
    around: dict[str, list[str]] = defaultdict(list)
    for a, b in edges:
        around[names[a]].append(names[b])
        around[names[b]].append(names[a])
    by_node: dict[str, list[Iteration]] = {name: [] for name in names}
    for row in run.iterations:
        by_node.setdefault(row.node, []).append(row)
    nodes = [_node(name, len(around[name]), rows) for name, rows in by_node.items()]
    slow = _slow(nodes, by_node)
    return GraphNumbers(
        word=facts.text("word"),
        spectral_gap=facts.number("spectral_gap"),
        nodes=nodes,
        edges=edges,
        slow=slow,
        sentence=_sentence(nodes, around, slow),
        finish_gap_seconds=_finish_gaps(nodes, around),
        timed_out=sum(node.timed_out for node in nodes),
        chunks_used=_chunks_used(run.iterations),
        drift=_last([row.drift for row in run.rounds]),
        disagreement=_last([row.disagreement for row in run.rounds]),
    )


def chart(numbers: GraphNumbers) -> Chart:
    """Draw the graph. Slow nodes are red, and a node shows its numbers when pointed at."""
    points = positions(len(numbers.nodes), numbers.edges)
    slow = set(numbers.slow)
    lines: dict[str, list[float | None]] = {"x": [], "y": []}
    for a, b in numbers.edges:
        for axis, at in (("x", 0), ("y", 1)):
            lines[axis] += [points[a][at], points[b][at], None]
    nodes = numbers.nodes[: len(points)]
    traces: list[Trace] = [
        {"type": "scatter", "mode": "lines", **lines, "line": {"color": GREY, "width": 1}, "hoverinfo": "skip",
         "showlegend": False},
    ]  # fmt: skip
    for name, colour, chosen in (
        ("nodes", BLUE, [at for at, node in enumerate(nodes) if node.node not in slow]),
        ("slow nodes", RED, [at for at, node in enumerate(nodes) if node.node in slow]),
    ):
        if chosen:
            traces.append(_dots(name, colour, [nodes[at] for at in chosen], [points[at] for at in chosen]))
    hidden = {"visible": False, "rangemode": "normal"}
    layout = axes("", "", showlegend=bool(slow), xaxis=hidden, yaxis={**hidden, "scaleanchor": "x"})
    return Chart("graph", traces, layout, [], 460)


def positions(nodes: int, edges: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Return the positions of nodes, the same each time: a force-directed layout, or a circle for many nodes."""
    extras.require("a graph in a report", "networkx")
    import networkx

    drawn = networkx.Graph()
    drawn.add_nodes_from(range(nodes))
    drawn.add_edges_from(edges)
    is_many = nodes > MOST_SPRINGS
    places = networkx.circular_layout(drawn) if is_many else networkx.spring_layout(drawn, seed=0, iterations=200)
    return [(round(float(places[node][0]), 4), round(float(places[node][1]), 4)) for node in range(nodes)]


def _dots(name: str, colour: str, nodes: Sequence[NodeNumbers], points: Sequence[tuple[float, float]]) -> Trace:
    details = [
        [_time(node.train_seconds), _time(node.exchange_seconds), node.iterations, node.timed_out] for node in nodes
    ]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": name,
        "x": [point[0] for point in points],
        "y": [point[1] for point in points],
        "text": [escaped(node.node) for node in nodes],
        "textposition": "top center",
        "customdata": details,
        "marker": {"color": colour, "size": 13},
        "hovertemplate": "%{text}<br>training %{customdata[0]}, exchange %{customdata[1]}<br>"
        "%{customdata[2]} iterations, %{customdata[3]} of them ended by a deadline<extra></extra>",
    }


def _time(seconds: float | None) -> str:
    return "not known" if seconds is None else format_seconds(seconds)


def _pairs(edges: Sequence[object]) -> list[tuple[int, int]]:
    return [(one[0], one[1]) for one in edges if isinstance(one, list) and len(one) == 2 and _are_whole(one)]


def _are_whole(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _node(name: str, degree: int, rows: Sequence[Iteration]) -> NodeNumbers:
    """Return a node's numbers: medians over its iterations, and the time at which it finished the last one."""
    return NodeNumbers(
        node=name,
        degree=degree,
        iterations=len(rows),
        train_seconds=_middle(row.train_seconds for row in rows),
        exchange_seconds=_middle(row.exchange_seconds for row in rows),
        seconds=_middle(row.seconds for row in rows),
        timed_out=sum(bool(row.timed_out) for row in rows),
        skipped=sum(row.skipped or 0 for row in rows),
        chunks_used=_chunks_used(rows),
        finished=max((row.mixed for row in rows if row.mixed is not None), default=None),
    )


def _slow(nodes: Sequence[NodeNumbers], by_node: Mapping[str, Sequence[Iteration]]) -> list[str]:
    """Return the nodes whose training takes much longer than that of the median node, the slowest first."""
    times = _training(nodes)
    if not times:
        return []
    usual = median(times.values())
    slow = [
        name for name, seconds in times.items() if seconds > SLOW * usual > 0 and _is_mostly_above(by_node[name], usual)
    ]
    return sorted(slow, key=lambda name: -times[name])


def _is_mostly_above(rows: Sequence[Iteration], usual: float) -> bool:
    """Return whether training took longer than ``usual`` in all iterations but a few."""
    times = sorted(row.train_seconds for row in rows if row.train_seconds is not None)
    return times[int(MAY_BE_FAST * len(times))] > usual


def _training(nodes: Sequence[NodeNumbers]) -> dict[str, float]:
    """Return the median seconds that each node trained, without nodes that finished no iteration."""
    return {node.node: node.train_seconds for node in nodes if node.train_seconds is not None}


def _sentence(nodes: Sequence[NodeNumbers], around: Mapping[str, Sequence[str]], slow: Sequence[str]) -> str:
    """Return a sentence that says which nodes are slow, and what that costs their neighbours."""
    times = _training(nodes)
    if not times:
        return "no node finished an iteration"
    usual = median(times.values())
    if not slow:
        span = f"{format_seconds(min(times.values()))} to {format_seconds(max(times.values()))}"
        return f"no node is much slower than the others: they train {span} an iteration"
    beside = {other for name in slow for other in around[name]} - set(slow)
    waits, others = (
        _middle(node.exchange_seconds for node in nodes if node.node in chosen)
        for chosen in (beside & set(times), set(times) - beside - set(slow))
    )
    more = f" and {len(slow) - NAMED} more" if len(slow) > NAMED else ""
    verb, times_as, whose = ("is", "times", "its") if len(slow) == 1 else ("are", "times or more", "their")
    least = min(times[name] for name in slow) / usual
    text = f"{', '.join(slow[:NAMED])}{more} {verb} slow: {least:.1f} {times_as} the training of the median node"
    if waits is not None:
        text += f"; {whose} neighbours exchange for {format_seconds(waits)} an iteration"
        text += "" if others is None else f", the others for {format_seconds(others)}"
    return text


def _finish_gaps(nodes: Sequence[NodeNumbers], around: Mapping[str, Sequence[str]]) -> Gaps | None:
    """Return how far apart neighbours finished: the spread over nodes of the mean distance to their neighbours."""
    ends = {node.node: node.finished for node in nodes if node.finished is not None}
    gaps: list[float] = []
    for name, end in ends.items():
        far = [abs(end - ends[other]) for other in around[name] if other in ends]
        gaps += [sum(far) / len(far)] if far else []
    if not gaps:
        return None
    return Gaps(sum(gaps) / len(gaps), median(gaps), min(gaps), max(gaps))


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _chunks_used(rows: Sequence[Iteration]) -> float | None:
    expected = sum(row.chunks_expected or 0 for row in rows)
    return sum(row.chunks_used or 0 for row in rows) / expected if expected else None


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)
