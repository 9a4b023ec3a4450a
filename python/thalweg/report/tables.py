"""The page's tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from thalweg.report.text import commit_words, escaped, table
from thalweg.report.trees import TreeNode
from thalweg.report.values import CellNumbers, LinkNumbers, NodeNumbers, PartyNumbers, RunNumbers, unit
from thalweg.ui.phrases import percent, phrase, shape, shortly
from thalweg.ui.units import format_bytes, format_rate, format_seconds

Row = TypeVar("Row")
Columns: TypeAlias = Sequence[tuple[str, Callable[[Row], str]]]
MOST_ROWS: Final = 256
WORDS: Final = frozenset(
    {
        "why updates are missing",
        "transport",
        "node",
        "link",
        "from",
        "to",
        "nominal",
        "party",
        "congestion control",
        "stress",
        "network",
    }
)
UNKNOWN: Final = "-"
EMPTY: Final = frozenset({UNKNOWN, ""})
# Columns in which 0 means that nothing happened.
RARE: Final = frozenset(
    {
        "failed", "link down", "overflow", "duplicated", "reordered", "receive buffer drops", "limiter drops",
        "ended by a deadline", "iterations skipped", "rounds as top",
    }
)  # fmt: skip
NOTHING: Final = EMPTY | {"0"}
# Maximum number of runs with unfolded tables. A report on more runs folds each table.
FEW: Final = 6


def dash_if_none(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return ``show`` with a dash for None."""
    return lambda value: UNKNOWN if value is None else show(value)


def spread(show: Callable[[float], str]) -> Callable[[Any], str]:
    """Return a function that shows a median with minimum and maximum."""
    return dash_if_none(lambda of: f"{show(of.median)} ({show(of.min)} to {show(of.max)})")


word = dash_if_none(str)
count = dash_if_none(lambda value: f"{value:,}")
size = dash_if_none(format_bytes)
seconds = dash_if_none(format_seconds)
share = dash_if_none(percent)

# Names of facts about other jobs, each with its name for jobs on graphs.
ON_GRAPHS: Final = {"clients": "nodes", "rounds": "iterations", "time of a round": "time of an iteration"}
FACTS: Final[Columns[RunNumbers]] = (
    ("record", lambda run: word(run.record)),
    ("status", lambda run: "; ".join(filter(None, (run.status, run.reason)))),
    ("started", lambda run: word(run.started)),
    ("algorithm", lambda run: word(run.algorithm)),
    ("model", lambda run: word(run.model)),
    ("clients", lambda run: count(run.clients)),
    ("transport", lambda run: word(run.transport)),
    ("network", lambda run: word(run.network)),
    ("repair", lambda run: run.repair or "losses sent again until whole"),
    ("emulation", lambda run: "; ".join(filter(None, (run.emulation, run.emulation_reason)))),
    ("rounds", lambda run: f"{run.rounds} of {run.rounds_planned}"),
    ("accuracy, last", lambda run: share(run.accuracy)),
    ("accuracy, best", lambda run: share(run.best_accuracy)),
    ("loss, last", lambda run: dash_if_none(lambda loss: f"{loss:.4g}")(run.loss)),
    ("clients' own accuracy, last", lambda run: share(run.client_accuracy)),
    ("clients' own loss, last", lambda run: dash_if_none(lambda loss: f"{loss:.4g}")(run.client_loss)),
    ("time of a round", lambda run: spread(format_seconds)(run.seconds)),
    ("communication", lambda run: spread(format_seconds)(run.communication_seconds)),
    (
        "communication, FedComm's count",
        lambda run: spread(format_seconds)(run.fedcomm_communication_seconds),
    ),
    ("lower bound", lambda run: spread(format_seconds)(run.bound_seconds)),
    ("how it is known", lambda run: word(run.bound_source) if run.bound_seconds else UNKNOWN),
    ("share of lower bound", lambda run: spread(percent)(run.share_of_bound)),
    ("goodput", lambda run: spread(format_rate)(run.goodput_bits_per_second)),
    ("bytes down", lambda run: size(run.bytes_down)),
    ("bytes up", lambda run: size(run.bytes_up)),
    ("segments sent again", lambda run: count(run.retransmissions)),
    ("processor", lambda run: word(run.machine.cpu)),
    ("cores", lambda run: word(run.machine.cores)),
    ("memory", lambda run: size(run.machine.memory_bytes)),
    ("kernel", lambda run: word(run.machine.kernel)),
    ("thalweg", lambda run: f"{word(run.thalweg.version)} ({commit_words(run.thalweg.commit)})"),
    ("seed", lambda run: word(run.seed)),
)
LINKS: Final[Columns[LinkNumbers]] = (
    ("link", lambda row: word(row.row.link)),
    ("from", lambda row: word(row.row.source)),
    ("to", lambda row: word(row.row.target)),
    ("packets in", lambda row: count(row.row.packets_in)),
    ("bytes in", lambda row: size(row.row.bytes_in)),
    ("packets out", lambda row: count(row.row.packets_out)),
    ("bytes out", lambda row: size(row.row.bytes_out)),
    ("lost on the link", lambda row: dropped(row.row.lost, row.lost_share)),
    ("queue full", lambda row: dropped(row.row.queue_drops, row.queue_drop_share)),
    ("link down", lambda row: count(row.row.down_drops)),
    ("overflow", lambda row: count(row.row.overflow_drops)),
    ("duplicated", lambda row: count(row.row.duplicated)),
    ("reordered", lambda row: count(row.row.reordered)),
    ("most queued", lambda row: size(row.row.queue_bytes_max)),
    ("delay, median", lambda row: seconds(row.row.delay_p50)),
    ("delay, 99 %", lambda row: seconds(row.row.delay_p99)),
    ("delay, most", lambda row: seconds(row.row.delay_max)),
    ("late, 99 %", lambda row: seconds(row.row.lateness_p99)),
    ("nominal", lambda row: shape(row.nominal)),
)
NODES: Final[Columns[NodeNumbers]] = (
    ("node", lambda row: word(row.node)),
    ("neighbours", lambda row: count(row.degree)),
    ("iterations", lambda row: count(row.iterations)),
    ("training", lambda row: seconds(row.train_seconds)),
    ("exchange", lambda row: seconds(row.exchange_seconds)),
    ("chunks used", lambda row: share(row.chunks_used)),
    ("ended by a deadline", lambda row: count(row.timed_out)),
    ("iterations skipped", lambda row: count(row.skipped)),
    ("finished at", lambda row: seconds(row.finished)),
)
TREE_NODES: Final[Columns[TreeNode]] = (
    ("node", lambda row: word(row.node)),
    ("clients", lambda row: count(row.clients)),
    ("updates in the mean", lambda row: count(row.counted)),
    ("workers", lambda row: count(row.workers)),
    ("folds", lambda row: count(row.folds)),
    ("time folding", lambda row: seconds(row.fold_seconds)),
    ("rounds as top", lambda row: count(row.top)),
    ("why updates are missing", lambda row: "; ".join(row.reasons)),
)
PARTIES: Final[Columns[PartyNumbers]] = (
    ("party", lambda row: word(row.row.party)),
    ("CPU", lambda row: seconds(row.row.cpu_seconds)),
    ("peak memory", lambda row: size(row.row.peak_rss_bytes)),
    ("segments sent again", lambda row: count(row.row.retransmitted_segments)),
    ("receive buffer drops", lambda row: count(row.row.receive_buffer_drops)),
    ("limiter drops", lambda row: count(row.row.limiter_drops)),
    ("congestion control", lambda row: word(row.row.congestion_control)),
    ("cores it may use", lambda row: dash_if_none(shortly)(row.row.cpu_quota)),
    ("stress", lambda row: dash_if_none(phrase)(row.stress)),
)


CELLS: Final[Columns[CellNumbers]] = (
    ("transport", lambda cell: word(cell.transport)),
    ("network", lambda cell: word(cell.network)),
    ("runs", lambda cell: count(cell.runs)),
    ("failed", lambda cell: count(cell.failed) if cell.failed else ""),
    ("time of a round", lambda cell: spread(format_seconds)(cell.seconds)),
    ("communication", lambda cell: spread(format_seconds)(cell.communication_seconds)),
    ("lower bound", lambda cell: seconds(cell.bound_seconds)),
    ("of the bound", lambda cell: share(cell.share_of_bound)),
    ("goodput", lambda cell: dash_if_none(format_rate)(cell.goodput_bits_per_second)),
    ("resent", lambda cell: dash_if_none(lambda value: f"{value:,.0f}")(cell.retransmissions)),
)


def cells(rows: Sequence[CellNumbers]) -> str:
    """Return a table with a row for each transport in each network."""
    return _table(CELLS, rows, "cells")


def facts(runs: Sequence[RunNumbers]) -> list[str]:
    """Return the facts about runs: one table of those that all runs share, and one of the others, with a row a run."""
    names = ON_GRAPHS if unit(runs) == "iteration" else {}
    fact_rows = [(names.get(name, name), [show(run) for run in runs]) for name, show in FACTS]
    present = [(name, values) for name, values in fact_rows if not set(values) <= EMPTY]
    common = [(name, values[0]) for name, values in present if len(set(values)) == 1]
    differing = [(name, values) for name, values in present if len(set(values)) > 1]
    parts = [table(("", "in all runs" if len(runs) > 1 else ""), common, "facts")] if common else []
    if differing:
        head = ("run", *(name for name, _ in differing))
        rows = [(run.label, *(values[at] for _, values in differing)) for at, run in enumerate(runs)]
        parts.append(f"<details{' open' if len(runs) <= FEW else ''}><summary>Each run</summary>")
        parts += [table(head, rows, "cells", {*WORDS, "record", "status", "reason", "started"}), "</details>"]
    return parts


def links(label: str | None, rows: Sequence[LinkNumbers]) -> list[str]:
    """Return a table of the links of a run, if there are any."""
    return _titled(label, LINKS, rows)


def parties(label: str | None, rows: Sequence[PartyNumbers]) -> list[str]:
    """Return a table of the resource usage of a run's parties, if it is known."""
    return _titled(label, PARTIES, rows)


def tree_nodes(label: str | None, rows: Sequence[TreeNode]) -> list[str]:
    """Return a table of the nodes of an aggregation tree."""
    return _titled(label, TREE_NODES, rows)


def nodes(label: str | None, rows: Sequence[NodeNumbers]) -> list[str]:
    """Return a table of the nodes of a graph."""
    return _titled(label, NODES, rows)


def _titled(label: str | None, columns: Columns[Row], rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    parts = [] if label is None else [f"<details><summary>{escaped(label)}</summary>"]
    parts.append(_table(columns, rows[:MOST_ROWS]))
    if len(rows) > MOST_ROWS:
        parts.append(f'<p class="muted">The first {MOST_ROWS} of {len(rows)} rows.</p>')
    return parts if label is None else [*parts, "</details>"]


def _table(columns: Columns[Row], rows: Sequence[Row], kind: str = "") -> str:
    """Return a table without columns that are empty in all rows."""
    columns_shown = [(name, [show(row) for row in rows]) for name, show in columns]
    shown = [
        (name, values) for name, values in columns_shown if not set(values) <= (NOTHING if name in RARE else EMPTY)
    ]
    values = zip(*(values for _, values in shown), strict=True)
    return table([name for name, _ in shown], list(values), kind, WORDS)


def dropped(packets: int | None, of_all: float | None) -> str:
    """Return the number of packets, and their fraction of all packets."""
    return UNKNOWN if packets is None else f"{packets:,}" + (f" ({percent(of_all)})" if packets and of_all else "")
