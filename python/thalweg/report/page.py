"""The page: one HTML file with everything in it, which loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any, Final

from thalweg.report import charts, details, graphs, tables, traces, workers
from thalweg.report.cells import Cell, Lost, cells, verdicts, warnings
from thalweg.report.charts import Chart
from thalweg.report.series import MOST_POINTS, thinned
from thalweg.report.source import Run
from thalweg.report.tables import facts, links, parties
from thalweg.report.text import embedded, escaped
from thalweg.report.traces import LinkTrace

# Timelines and links are drawn for so many runs; tables and comparisons have all of them.
MOST_RUNS: Final = 12
SCALED: Final = frozenset({"communication-time", "communication-rounds", "round-time"})


class Page:
    """The parts of a page as they come."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.sections: list[str] = []
        self.charts: list[dict[str, Any]] = []

    def section(self, name: str, title: str, about: str) -> None:
        """Begin a section."""
        self.sections.append(name)
        self.parts.append(f'<h2 id="{name}">{escaped(title)}</h2>\n<p class="muted">{about}</p>')

    def chart(self, chart: Chart) -> None:
        """Add a plot, if there is anything to draw, and what is to be said of it."""
        if chart.traces:
            place = f"plot-{len(self.charts)}"
            scale = f'<label class="scale"><input type="checkbox" value="{place}"> logarithmic</label>'
            self.parts.append(scale if chart.name in SCALED else "")
            self.parts.append(
                f'<div class="plot" id="{place}" data-chart="{len(self.charts)}" data-axis="{chart.scaled}" '
                f'data-name="{chart.name}" '
                f'style="height:{chart.height}px"></div>'
            )
            self.charts.append(chart.content())
        self.notes(chart.notes)

    def notes(self, notes: Iterable[str]) -> None:
        """Add remarks."""
        lines = "".join(f"<li>{escaped(note)}</li>" for note in notes)
        self.parts.append(f'<ul class="notes">{lines}</ul>' if lines else "")

    def each(self, runs: Sequence[Run], whys: Mapping[str, str], make: Any) -> None:
        """Add a plot for each run that has one, the first unfolded, and say of the others why there is none."""
        able = [run for run in runs if run.label not in whys]
        for place, run in enumerate(able[:MOST_RUNS]):
            if len(able) > 1:
                self.parts.append(f"<details{'' if place else ' open'}><summary>{escaped(run.label)}</summary>")
            self.chart(make(run, len(able[:MOST_RUNS])))
            self.parts.append("</details>" if len(able) > 1 else "")
        rest = len(able) - MOST_RUNS
        self.notes([*_reasons(whys), *([f"{rest} more runs are not drawn"] if rest > 0 else [])])


def page(
    runs: Sequence[Run],
    numbers: Sequence[Mapping[str, Any]],
    lost: Sequence[Lost] = (),
    links: Sequence[LinkTrace] = (),
) -> str:
    """Return the page of ``runs`` with their ``numbers``, of runs that were ``lost``, and of traced ``links``."""
    made = Page()
    if runs or lost:
        _runs(made, runs, numbers, lost)
    if links:
        _traces(made, links)
    return _document(made, numbers, links)


def _runs(made: Page, runs: Sequence[Run], numbers: Sequence[Mapping[str, Any]], lost: Sequence[Lost]) -> None:
    _answer(made, numbers, lost)
    _graphs(made, runs, numbers)
    _compare(made, runs, numbers)
    made.section("timeline", "Timeline", TIMELINE)
    made.each(runs, {run.label: NO_TRANSFERS for run in runs if not run.transfers}, details.timeline_chart)
    _workers(made, runs)
    made.section("links", "Links", LINKS)
    made.each(runs, {run.label: run.why_no_links() for run in runs if not run.samples}, details.links_chart)
    for run, of in zip(runs, numbers, strict=True):
        made.parts += links(run.label if len(runs) > 1 else None, of["links"])
    made.section("parties", "Parties", PARTIES)
    for run, of in zip(runs, numbers, strict=True):
        made.parts += parties(run.label if len(runs) > 1 else None, of["parties"])
    made.notes(_reasons({run["label"]: NO_PARTIES for run in numbers if not run["parties"]}))


def _workers(made: Page, runs: Sequence[Run]) -> None:
    """Draw what workers did, if any run had some."""
    if not any(map(workers.has_workers, runs)):
        return
    made.section("workers", "Workers", WORKERS)
    made.each(runs, {run.label: NO_WORKERS for run in runs if not workers.has_workers(run)}, details.workers_chart)


def _traces(made: Page, links: Sequence[LinkTrace]) -> None:
    made.section("traces", "Traces", TRACES)
    made.parts.append(traces.summary([link.numbers() for link in links]))
    since = traces.started(links)
    for place, link in enumerate(links[:MOST_RUNS]):
        name = f"{link.file}: to {link.peer}, link {link.link}"
        made.parts.append(f"<details{'' if place else ' open'}><summary>{escaped(name)}</summary>")
        made.chart(traces.chart(link, since[link.file]))
        made.parts.append("</details>")
    rest = len(links) - MOST_RUNS
    made.notes([f"{rest} more links are not drawn"] if rest > 0 else [])


def _answer(made: Page, numbers: Sequence[Mapping[str, Any]], lost: Sequence[Lost]) -> None:
    """Say first which transport is fastest where, then show it, then tell it by transport and network."""
    found = cells(numbers, lost)
    made.section("answer", "Answer", ANSWER)
    told = verdicts(found)
    for place, one in list(told.items())[:MOST_VERDICTS]:
        where = f"{escaped(place)}: " if len(told) > 1 else ""
        made.parts.append(f'<p class="verdict">{where}{escaped(one.sentence)}.</p>')
    made.notes([f"{len(told) - MOST_VERDICTS} more networks are in the table"] if len(told) > MOST_VERDICTS else [])
    made.notes(warnings(found))
    made.chart(charts.communication_time(numbers))
    made.parts.append(tables.cells([cell.table() for cell in found]))
    made.notes(f"{cell.transport}, {cell.place}: {why}" for cell in found for why in _failures(cell))


def _graphs(made: Page, runs: Sequence[Run], numbers: Sequence[Mapping[str, Any]]) -> None:
    """Say of jobs on a graph which nodes are slow, and draw where they are."""
    found = {run.label: of["graph"] for run, of in zip(runs, numbers, strict=True) if of["graph"] is not None}
    if not found:
        return
    made.section("graph", "Graph", GRAPH)
    for label, one in found.items():
        where = f"{escaped(label)}: " if len(runs) > 1 else ""
        made.parts.append(f'<p class="verdict">{where}{escaped(one["sentence"])}.</p>')
    whys = {run.label: NO_GRAPH for run in runs if run.label not in found}
    made.each(runs, whys, lambda run, _count: graphs.chart(found[run.label]))
    for label, one in found.items():
        made.parts += tables.nodes(label if len(runs) > 1 else None, one["nodes"])


def _failures(cell: Cell) -> list[str]:
    if not cell.failed:
        return []
    return [f"{len(cell.failed)} of {len(cell.runs)} runs failed: {'; '.join(cell.reasons)}"]


def _compare(made: Page, runs: Sequence[Run], numbers: Sequence[Mapping[str, Any]]) -> None:
    made.section("summary", "Summary", SUMMARY)
    made.parts.append(facts(numbers))
    made.section("accuracy", "Accuracy", ACCURACY)
    whys = {run.label: run.why_no_accuracy() for run, of in zip(runs, numbers, strict=True) if of["accuracy"] is None}
    made.chart(charts.accuracy_rounds(numbers))
    made.chart(charts.accuracy_time(numbers))
    made.notes(_reasons(whys))
    made.section("communication", "Communication", COMMUNICATION)
    idle = _reasons({run.label: run.why_no_rounds() for run in runs if not run.rounds})
    made.chart(charts.communication_rounds(numbers))
    unbounded = [of for of in numbers if of["rounds"] and of["bound_seconds"] is None]
    made.notes([*idle, *(f"{of['label']}: no lower bound: {of['bound_source'] or 'not known'}" for of in unbounded)])
    made.section("rounds", "Rounds", ROUNDS)
    made.chart(charts.round_time(numbers))
    made.notes(idle)


def _reasons(whys: Mapping[str, str]) -> list[str]:
    return [f"{label}: {why}" for label, why in whys.items()]


def _document(made: Page, numbers: Sequence[Mapping[str, Any]], links: Sequence[LinkTrace]) -> str:
    from plotly.offline import get_plotlyjs

    library, script = get_plotlyjs(), _file("page.js")
    shown = [{**run, "each_round": thinned(run["each_round"], MOST_POINTS)} for run in numbers]
    models = ", ".join(dict.fromkeys(str(run["model"]) for run in numbers))
    models = models or ", ".join(dict.fromkeys(link.file for link in links))
    title = f"thalweg: {models}" + (f", {len(numbers)} runs" if len(numbers) > 1 else "")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(library, script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped(title)}</title>\n<style>\n{_file('page.css')}</style>\n</head>\n<body>",
            f"<header><h1>{escaped(title)}</h1>\n<nav>{_navigation(made)}</nav></header>\n<main>",
            *(part for part in made.parts if part),
            "</main>\n<noscript><p>The plots need JavaScript; the tables do not.</p></noscript>",
            f'<script type="application/json" id="numbers">{embedded(shown)}</script>',
            f'<script type="application/json" id="charts">{embedded(made.charts)}</script>',
            f"<script>{library}</script>\n<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _policy(*scripts: str) -> str:
    """Return a policy under which only these scripts run and nothing is loaded."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _file(name: str) -> str:
    return resources.files("thalweg.report").joinpath(name).read_text("utf-8")


def _navigation(made: Page) -> str:
    """Return links to the page's sections."""
    return " ".join(f'<a href="#{name}">{name.capitalize()}</a>' for name in made.sections)


MOST_VERDICTS: Final = 12
ANSWER: Final = (
    "Communication: time of a round in which at least one update was under way. Bars: median over rounds; whiskers: "
    "least and most; short lines: the lower bound. Transports are compared by runs; in brackets is the 95 % interval "
    "of how many times as long one takes. It is sure if chance alone would seldom make runs differ as much."
)
GRAPH: Final = (
    "Red: nodes whose own training takes much longer than that of the median node. Times are medians over a node's "
    "iterations; exchange is from the end of its training to the new model."
)
NO_GRAPH: Final = "it has a server, and no graph"
SUMMARY: Final = (
    "Times and goodput are medians over rounds, with the least and the most. Goodput is the updates' bytes by the "
    "time in which at least one was under way; the share is the lower bound of that time by the time."
)
ACCURACY: Final = (
    "Of the global model on the test set. Time is the sum of the rounds' times, evaluations left out. "
    "Dashed: the same rounds with communication at its lower bound."
)
COMMUNICATION: Final = "Time of each round in which at least one update was under way. Dashed: the lower bound."
ROUNDS: Final = (
    "Time of a round, evaluation left out. Boxes: quartiles and median. Short lines: median of training with "
    "communication at its lower bound."
)
TIMELINE: Final = (
    "Each client's transfers, from the first byte sent to the last one received, and its training between them. "
    "Dotted: a round's first byte."
)
WORKERS: Final = (
    "What each worker of an aggregation tree did: it waits for updates, folds them into its sums, and hands these over "
    "to its node. The node then takes the mean, or gives its sums to the top. Dotted: a round's first byte."
)
NO_WORKERS: Final = "its server folds updates itself"
LINKS: Final = (
    "What each direction of each link carried, IP headers included, and the most that waited in its queue. "
    "Dashed: the rate it was set to."
)
PARTIES: Final = "What each party used in the whole run."
TRACES: Final = (
    "What each end believed about its path while updates passed. A link is one end of a connection; those over which "
    "most was delivered come first."
)
NO_TRANSFERS: Final = "no transfer was recorded"
NO_PARTIES: Final = "the record has no table of its parties, and no client said what it used"
