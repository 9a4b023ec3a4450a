"""The table at the end of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from thalweg.job.star.attendance import sentences
from thalweg.ui import terminal
from thalweg.ui.progress import missing_share
from thalweg.ui.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from thalweg.flower.hosting import FlowerResult
    from thalweg.flower.rounds import RoundMetrics
    from thalweg.flower.run import Preview
    from thalweg.job.graph.result import GraphResult
    from thalweg.job.star.host import Result
    from thalweg.outcome import Entry
    from thalweg.plan.bound import Bound

COLUMNS: Final = ("time", "communication", "down", "up", "participants", "goodput", "of bound")
# Accuracy and loss are the server's or the clients': prefix of their keys in a round -> prefix of the column's title.
WHOSE: Final = {"": "", "client_": "clients' "}
# Direction of transfers -> title of the column with the share that did not arrive.
MISSING: Final = {"down": "missing down", "up": "missing up"}


# Maximum number of rounds in the table. Each round also had a line of its own when it ended.
SHOWN: Final = 100


def summary(entries: Iterable[Entry], bound: Bound, network: str | None = None) -> Table:
    """Return a table with a row for each of the last rounds. Goodput: bytes of updates per second of communication.

    If no round has an accuracy, the column has the loss instead. If clients evaluate their own models, their accuracy
    or loss has a column too. Where parts of models or updates did not arrive, columns say which shares.
    """
    rows: deque[tuple[str, dict[str, str], list[str], dict[str, str]]] = deque(maxlen=SHOWN)
    count, known = 0, set[str]()
    for entry in entries:
        missing = {way: missing_share(entry, way) for way in MISSING}
        rows.append((str(entry["round"]), {of: _quality(entry, of) for of in WHOSE}, _cells(entry, bound), missing))
        known |= {key for key, value in entry.items() if value is not None}
        count += 1
    earlier = f"the {count - SHOWN} rounds before these are in the record\n" if count > SHOWN else ""
    caption = f"{earlier}bound: {bound.source}" + (f"\nnetwork: {network}" if network else "")
    titles = {of: title for of in WHOSE if (title := _title(of, known)) is not None} or {"": "accuracy"}
    ways = {way: title for way, title in MISSING.items() if any(row[3][way] for row in rows)}
    table = terminal.table("round", *titles.values(), *COLUMNS, *ways.values(), right=True, caption=caption)
    for number, qualities, cells, missing in rows:
        table.add_row(number, *(qualities[of] for of in titles), *cells, *(missing[way] or "-" for way in ways))
    return table


def _title(of: str, known: Container[str]) -> str | None:
    """Return the title of a column of quality: accuracy, else loss; None if no round has either."""
    return next((f"{WHOSE[of]}{figure}" for figure in ("accuracy", "loss") if of + figure in known), None)


def _cells(entry: Entry, bound: Bound) -> list[str]:
    return [
        format_seconds(entry["seconds"]),
        format_seconds(entry["communication_seconds"]),
        format_bytes(entry["bytes_down"]),
        format_bytes(entry["bytes_up"]),
        f"{entry['participants']}/{entry['expected']}",
        *_goodput(entry, bound),
    ]


def _quality(entry: Entry, of: str) -> str:
    """Return the accuracy of a round, else its loss: the server's, or the clients'."""
    accuracy, loss = (
        (entry.get("client_accuracy"), entry.get("client_loss")) if of else (entry.get("accuracy"), entry.get("loss"))
    )
    if accuracy is not None:
        return f"{100 * accuracy:.2f} %"
    return "-" if loss is None else f"{loss:.4g}"


def _goodput(entry: Entry, bound: Bound) -> tuple[str, str]:
    down, up = (_payload_bytes(entry, direction) for direction in ("down", "up"))
    seconds = entry["communication_seconds"]
    if not seconds:
        return "-", "-"
    links = len({transfer["client"] for transfer in entry["transfers"]})
    least = bound.seconds(down, up, links)
    share = "-" if least is None else f"{100 * least / seconds:.0f} %"
    return format_rate(8 * (down + up) / seconds), share


def _payload_bytes(entry: Entry, direction: str) -> int:
    return sum(transfer["bytes"] for transfer in entry["transfers"] if transfer["direction"] == direction)


def graph_summary(result: GraphResult) -> Table:
    """Return the results of a job on a graph as mean, median and standard deviation over its nodes."""
    table = terminal.table("", "mean", "median", "std", right=True)
    for name, spread in (("iteration", result.seconds), ("exchange", result.exchange_seconds)):
        if spread is not None:
            table.add_row(name, *(format_seconds(spread[key]) for key in ("mean", "median", "std")))
    if result.accuracy is not None:
        mean, deviation = (f"{100 * result.accuracy[key]:.2f} %" for key in ("mean", "std"))
        table.add_row("accuracy", mean, "-", deviation)
    return table


def graph_lines(result: GraphResult) -> Iterator[str]:
    """Yield the sentences below the table of ``graph_summary``."""
    used = "" if result.chunks_used is None else f", {100 * result.chunks_used:.3g} % of the chunks used"
    nodes = result.plan.job.clients
    yield f"{result.iterations} iterations of {nodes} nodes: {format_bytes(result.bytes_sent)} sent{used}"
    if result.drift is not None and result.disagreement is not None:
        yield f"drift {result.drift:.2g} an iteration, disagreement {result.disagreement:.2g} at the end"
    yield from (f"{name} is gone: {why}" for name, why in result.lost.items())


def network_line(result: Result | FlowerResult | GraphResult) -> str | None:
    """Return the level at which links were emulated, and why not at packet level; None without emulation."""
    if result.plan.network is None:
        return None
    level = result.emulation.partition(":")[0]
    return f"emulated at {level}" + (f", because {result.emulation_reason}" if result.emulation_reason else "")


def show(result: Result | GraphResult) -> None:
    """Print the table of a result and the path of its record."""
    from thalweg.job.graph.result import GraphResult

    console = terminal.console()
    if isinstance(result, GraphResult):
        console.print(graph_summary(result))
        network = network_line(result)
        for line in (*graph_lines(result), *([] if network is None else [f"network: {network}"])):
            console.print(line, soft_wrap=True)
        console.print(f"record: {result.record.path}", soft_wrap=True)
        return
    console.print(summary(result.record.rounds(), result.bound, network_line(result)))
    for line in sentences(result.absent, result.rounds):
        console.print(line, soft_wrap=True)
    if result.tree is not None:
        console.print(result.tree.sentence(), soft_wrap=True)
    console.print(f"record: {result.record.path}", soft_wrap=True)


def show_flower(result: FlowerResult) -> None:
    """Print a table of the rounds of a Flower app, and the path of its record."""
    columns = ("round", "time", "communication", "replies", "errors", "folded", "metrics")
    table = terminal.table(*columns, right=True, caption=network_line(result))
    metrics = {row["round"]: row for row in result.metrics}
    for row in result.rows[-SHOWN:]:
        table.add_row(
            str(row["round"]),
            format_seconds(row["seconds"]),
            format_seconds(row["communication_seconds"]),
            str(row["replies"]),
            str(row["errors"]),
            "yes" if row["folded"] else "no",
            _metrics(metrics.get(row["round"], {})),
        )
    console = terminal.console()
    console.print(table)
    for line in sentences(result.absent, len(result.rows)):
        console.print(line, soft_wrap=True)
    console.print(f"record: {result.record.path}", soft_wrap=True)


def show_flower_preview(preview: Preview) -> None:
    """Print what a run of a Flower app would do."""
    console = terminal.console()
    console.print(
        f"{preview.app}: {preview.clients} nodes in {preview.processes} processes over {preview.transport}, "
        f"--fold {preview.fold}"
    )
    size, rounds, seconds = preview.update_bytes, preview.rounds, preview.estimate_seconds
    console.print(f"rounds: {'the app does not say how many' if rounds is None else rounds}")
    console.print(f"arrays of a message: {'not known before nodes answer' if size is None else format_bytes(size)}")
    bound = "not known: the rates of the links are not given" if seconds is None else format_seconds(seconds)
    console.print(f"links alone, at least: {bound}")


def _metrics(row: RoundMetrics) -> str:
    """Return up to three metrics of a round: of the server's evaluation, else the clients', else their training."""
    kinds = (row.get(kind) for kind in ("server", "evaluate", "train"))
    chosen = next((metrics for metrics in kinds if metrics and not isinstance(metrics, int)), {})
    numbers = [(name, value) for name, value in chosen.items() if isinstance(value, (int, float))]
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers[:3]) or "-"
