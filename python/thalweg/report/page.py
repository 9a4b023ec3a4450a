"""The sections of a page and their order.

The first sections depend on the number of runs, and on the kind of the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from thalweg.report import charts, details, graphs, tables, traces, trees, workers
from thalweg.report.cells import Cell, Lost, cells, verdicts, warnings
from thalweg.report.document import MOST_RUNS, Page, document
from thalweg.report.opening import failures, headline
from thalweg.report.series import MOST_POINTS, Number, by_cell, thinned
from thalweg.report.source import Run
from thalweg.report.text import escaped
from thalweg.report.traces import LinkTrace
from thalweg.report.values import RunNumbers, unit

Numbers: TypeAlias = Sequence[RunNumbers]
MOST_VERDICTS: Final = 12


def page(runs: Sequence[Run], numbers: Numbers, lost: Sequence[Lost] = (), links: Sequence[LinkTrace] = ()) -> str:
    """Return the page of ``runs`` with their ``numbers``, of runs that were ``lost``, and of traced ``links``."""
    made = Page()
    if len(runs) == 1 and not lost:
        _one_run(made, runs[0], numbers[0])
    elif runs or lost:
        _comparison(made, runs, numbers, lost)
    if runs:
        _details(made, runs, numbers)
    if links:
        _traces(made, links)
    _left_out(made, runs, numbers)
    shown = [replace(run, each_round=thinned(run.each_round, MOST_POINTS)) for run in numbers]
    return document(made, _title(runs, numbers, links), shown)


def _title(runs: Sequence[Run], numbers: Numbers, links: Sequence[LinkTrace]) -> str:
    names = [str(run.model) for run in numbers] or [link.file for link in links]
    title = f"thalweg: {', '.join(dict.fromkeys(names))}"
    if len(runs) == 1:
        return f"{title}, {SHAPES[numbers[0].shape]}"
    return title + (f", {len(runs)} runs" if runs else "")


def _one_run(made: Page, run: Run, of: RunNumbers) -> None:
    """Add how a run ended and which clients failed, then the section of its kind of job, and its rounds."""
    made.section("run", "Run")
    made.sentence(headline(run, of))
    made.notes(failures(run))
    _graphs(made, [run], [of])
    _trees(made, [run])
    if _has_curve([of]):
        made.section("accuracy", "Accuracy", ACCURACY)
        made.chart(charts.accuracy_rounds([of]))
    _client_accuracy(made, [of])
    split = charts.split_rounds(of)
    if split.traces:
        made.section("rounds", f"{unit([of]).capitalize()}s", SPLIT_NODES if of.shape == "graph" else SPLIT)
        made.chart(split)
    _communication(made, [of])
    if _has_curve([of]) and of.bound_seconds is not None:
        made.about(ACCURACY_TIME)
        made.chart(charts.accuracy_time([of]))


def _comparison(made: Page, runs: Sequence[Run], numbers: Numbers, lost: Sequence[Lost]) -> None:
    """Add the fastest transport of each network, then a plot, and a table by transport and network."""
    rows = cells(numbers, lost)
    made.section("answer", "Answer")
    answers = verdicts(rows)
    for condition, one in list(answers.items())[:MOST_VERDICTS]:
        made.sentence(f"{condition}: {one.sentence}." if len(answers) > 1 else f"{one.sentence}.")
    made.notes(
        [f"{len(answers) - MOST_VERDICTS} more networks are in the table"] if len(answers) > MOST_VERDICTS else []
    )
    made.notes(warnings(rows))
    made.about(ANSWER_OF_ROUNDS if any(cell.whole_rounds for cell in rows) else ANSWER)
    made.chart(charts.communication_time(numbers))
    made.parts.append(tables.cells([cell.numbers() for cell in rows]))
    made.notes(f"{cell.transport}, {cell.condition}: {why}" for cell in rows for why in _failures(cell))
    if _has_curve(numbers):
        made.section("accuracy", "Accuracy", f"{ACCURACY} {OVER_RUNS}" if _is_repeated(numbers) else ACCURACY)
        made.chart(charts.accuracy_rounds(numbers))
        made.about(ACCURACY_TIME)
        made.chart(charts.accuracy_time(numbers))
    _client_accuracy(made, numbers)
    _communication(made, numbers)
    times = charts.round_time(numbers)
    if times.traces:
        made.section("rounds", f"{unit(numbers).capitalize()}s", f"{SPLIT} {FLOOR}")
        made.chart(times)
    _graphs(made, runs, numbers)
    _trees(made, runs)


def _communication(made: Page, numbers: Numbers) -> None:
    """Draw each round's communication time, if any is known."""
    chart = charts.communication_rounds(numbers)
    if chart.traces:
        has_bound = any(row.bound_seconds is not None for run in numbers for row in run.each_round)
        about = (
            COMMUNICATION.format(unit=unit(numbers)),
            BOUND if has_bound else "",
            OVER_RUNS if _is_repeated(numbers) else "",
        )
        made.section("communication", "Communication", " ".join(filter(None, about)))
        made.chart(chart)


def _has_curve(numbers: Numbers, of: Number = lambda row: row.accuracy) -> bool:
    """Whether any run has the number in more than one round."""
    return any(sum(of(row) is not None for row in run.each_round) > 1 for run in numbers)


def _client_accuracy(made: Page, numbers: Numbers) -> None:
    """Draw the accuracy that clients reported of their own models, if they evaluated in more than one round."""
    if _has_curve(numbers, lambda row: row.client_accuracy):
        about = f"{CLIENT_ACCURACY} {OVER_RUNS}" if _is_repeated(numbers) else CLIENT_ACCURACY
        made.section("clients", "Clients' own accuracy", about)
        made.chart(charts.client_accuracy_rounds(numbers))


def _is_repeated(numbers: Numbers) -> bool:
    return any(len(cell.runs) > 1 for cell in by_cell(numbers))


def _failures(cell: Cell) -> list[str]:
    if not cell.failed:
        return []
    return [f"{len(cell.failed)} of {len(cell.runs)} runs failed: {'; '.join(cell.reasons)}"]


def _graphs(made: Page, runs: Sequence[Run], numbers: Numbers) -> None:
    """For jobs on a graph, add which nodes are slow, and draw the graph."""
    by_label = {run.label: of.graph for run, of in zip(runs, numbers, strict=True) if of.graph is not None}
    if not by_label:
        return
    made.section("graph", "Graph")
    for label, one in by_label.items():
        made.sentence(f"{label}: {one.sentence}." if len(runs) > 1 else f"{one.sentence}.")
    made.about(GRAPH)
    made.each([run for run in runs if run.label in by_label], lambda run, _count: graphs.chart(by_label[run.label]))
    for label, one in by_label.items():
        made.parts += tables.nodes(label if len(runs) > 1 else None, one.nodes)


def _trees(made: Page, runs: Sequence[Run]) -> None:
    """Show the nodes of aggregation trees and the work of their workers."""
    runs_of_trees = [run for run in runs if workers.has_workers(run)]
    if not runs_of_trees:
        return
    made.section("workers", "Tree")
    for run in runs_of_trees:
        words, label = trees.sentence(run), run.label if len(runs) > 1 else None
        if words:
            made.sentence(f"{label}: {words}." if label else f"{words}.")
        made.parts += tables.tree_nodes(label, trees.nodes(run))
    made.about(WORKERS)
    made.each([run for run in runs_of_trees if workers.timeline(run).bars], details.workers_chart)


def _details(made: Page, runs: Sequence[Run], numbers: Numbers) -> None:
    """Add tables of facts about runs, and details of their clients, links and parties."""
    made.section("summary", "Summary", SUMMARY)
    made.parts += tables.facts(numbers)
    moved = [run for run in runs if run.transfers and run.system is None]
    if moved:
        made.section("timeline", "Timeline", TIMELINE)
        made.each(moved, details.timeline_chart)
    both = list(zip(runs, numbers, strict=True))
    if any(run.samples or of.links for run, of in both):
        made.section("links", "Links", LINKS)
        made.each([run for run in runs if run.samples], details.links_chart)
        made.folded([tables.links(run.label if len(runs) > 1 else None, of.links) for run, of in both])
    if any(of.parties for of in numbers):
        made.section("parties", "Parties", PARTIES)
        made.folded([tables.parties(run.label if len(runs) > 1 else None, of.parties) for run, of in both])


def _traces(made: Page, links: Sequence[LinkTrace]) -> None:
    made.section("traces", "Traces", TRACES)
    made.parts.append(traces.summary([link.numbers() for link in links]))
    since = traces.started(links)
    for number, link in enumerate(links[:MOST_RUNS]):
        name = f"{link.file}: to {link.peer}, link {link.link}"
        made.parts.append(f"<details{'' if number else ' open'}><summary>{escaped(name)}</summary>")
        made.chart(traces.chart(link, since[link.file]))
        made.parts.append("</details>")
    rest = len(links) - MOST_RUNS
    made.notes([f"{rest} more links are not drawn"] if rest > 0 else [])


def _left_out(made: Page, runs: Sequence[Run], numbers: Numbers) -> None:
    """Add a list of what the page lacks, each reason once."""
    whys: Counter[str] = Counter()
    for run, of in zip(runs, numbers, strict=True):
        if not run.rounds:
            whys[run.why_no_rounds()] += 1
            continue
        if of.accuracy is None and of.client_accuracy is None:
            whys[f"no accuracy: {run.why_no_accuracy()}"] += 1
        if of.bound_seconds is None and of.shape != "graph":
            whys[f"no lower bound: {of.bound_source or 'not known'}"] += 1
        if not run.samples:
            whys[f"no links: {run.why_no_links()}"] += 1
    if whys:
        made.section("missing", "Not on this page")
        made.notes(f"{why} ({count} runs)" if len(runs) > 1 else why for why, count in whys.items())


SHAPES: Final = {"star": "one run", "tree": "a tree", "graph": "a graph", "Flower": "a Flower app"}
ANSWER: Final = (
    "Communication is the time of a round in which at least one update was under way. Bars: median over rounds; "
    "whiskers: least and most; short lines: the lower bound. In brackets: the 95 % interval over runs."
)
ANSWER_OF_ROUNDS: Final = (
    "Whole rounds are compared: of other systems nothing else is known. The bars are of thalweg's communication, the "
    "time of a round in which at least one update was under way. In brackets: the 95 % interval over runs."
)
GRAPH: Final = (
    "Red: nodes whose own training takes much longer than that of the median node. Times are medians over a node's "
    "iterations; exchange is from the end of its training to the new model."
)
SUMMARY: Final = (
    "Times and goodput are medians over rounds, with the least and the most. Goodput: bytes of updates by the time in "
    "which at least one was under way."
)
ACCURACY: Final = "Of the global model on the test set."
CLIENT_ACCURACY: Final = "Mean over clients: each evaluated the model that it had trained, on its test data."
ACCURACY_TIME: Final = (
    "Accuracy over the time of rounds, evaluations left out. Dotted: the same with communication at its lower bound."
)
COMMUNICATION: Final = "Time of each {unit} in which at least one update was under way."
BOUND: Final = "Dotted: the lower bound."
OVER_RUNS: Final = "Lines are medians over runs, bands from the least to the most."
SPLIT: Final = (
    "Mean over clients. Communication: of model and update, from the first byte sent to the last received. Waiting: "
    "for other clients and the server."
)
SPLIT_NODES: Final = "Mean over nodes. Waiting: for neighbours' models. Communication: the rest of the exchange."
FLOOR: Final = "Short lines: median of training with communication at its lower bound."
TIMELINE: Final = (
    "Each client's transfers, from the first byte sent to the last one received, and its training between them. "
    "Dotted: a round's first byte."
)
WORKERS: Final = (
    "Each worker waits for updates, folds them into sums, and hands these over to its node. The node then takes the "
    "mean, or gives its sums to the top. Dotted: a round's first byte."
)
LINKS: Final = (
    "What each direction of each link carried, IP headers included, and the most that waited in its queue. "
    "Dashed: the rate it was set to."
)
PARTIES: Final = "What each party used in the whole run."
TRACES: Final = (
    "What each end believed about its path while updates passed. A link is one end of a connection; those over which "
    "most was delivered come first."
)
