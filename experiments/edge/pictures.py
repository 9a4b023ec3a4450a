"""Draws the sweeps, and finds where each system stops."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

from typing_extensions import Required

from experiments.edge.bench import TARGET
from thalweg.report.colours import colour
from thalweg.report.figures import SETTINGS


class Row(TypedDict, total=False):
    """A row of ``measured.json``: a run (``bench.RunTable``), or an outage (``outage.Measured``).

    ``key`` has the sweep, the system, the fault, and for an outage what else happens. ``core`` is the commit of the
    core; None if Flower's own programs ran.
    """

    key: Required[list[Any]]
    limit: float
    began: int
    load: list[float]
    core: str | None
    # How many cells were run at the same time; rows without it are older than this column.
    beside: int
    rounds: int
    seconds_to_target: float | None
    seconds_by_round: list[float]
    goes_on: bool
    after: float
    twice: float
    how: list[str]
    note: str


class Content(TypedDict):
    """``measured.json``: its rows, and how they were measured. ``beside`` is for rows that do not say it."""

    rows: list[Row]
    scale: str
    command: str
    beside: int


# For each sweep: the label of its axis, the factor from faults to the axis, and what is the same for all cells.
AXES: Final = {
    "delay": (
        "delay, one way, in seconds",
        1.0,
        "20 Mbit/s, 2 clients, model of 1 MiB; limit 240 s, from 5 s on 600 s",
    ),
    "loss": (
        "lost packets, both ways, in %",
        100.0,
        "20 Mbit/s, 40 ms round trip, 2 clients, model of 1 MiB; limit 240 s",
    ),
    "dropout": (
        "clients without a link, in %",
        100.0,
        "10 clients, others every 15 s, rounds of at most 30 s; limit 5 rounds, 240 s",
    ),
}
# The sweeps that have tables: those with a picture, and the long delays.
TABLES: Final = AXES | {
    "long delay": ("delay, one way, in seconds, longer", 1.0, "20 Mbit/s, 2 clients, model of 1 MiB; limit 1500 s")
}
MARKS: Final = "osD^v<>"
TICKS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def rows_of(content: Content, sweep: str) -> list[Row]:
    """Return the rows of a sweep."""
    return [row for row in content["rows"] if row["key"][0] == sweep]


def systems_of(rows: Sequence[Row]) -> list[str]:
    """Return the systems in the order of their first rows."""
    from experiments.edge.sweep import OUTAGE_APPS, SYSTEMS

    known = {row["key"][1] for row in rows}
    return [name for name in dict.fromkeys([*SYSTEMS, *OUTAGE_APPS, *sorted(known)]) if name in known]


def seconds_of(row: Row) -> float | None:
    """Return the seconds until the target; None if that was not reached.

    In the dropout sweep they count from the end of the first round, because dropout begins then. So the start of many
    programs does not count.
    """
    seconds = row["seconds_to_target"]
    if seconds is None or row["key"][0] != "dropout":
        return seconds
    return round(seconds - row["seconds_by_round"][0], 2)


def curve(rows: Sequence[Row], system: str) -> list[tuple[float, float | None]]:
    """Return a system's faults in order, each with the seconds until the target; None if that was not reached."""
    return sorted((row["key"][2], seconds_of(row)) for row in rows if row["key"][1] == system)


def stops_at(rows: Sequence[Row], system: str) -> tuple[float | None, float | None]:
    """Return the last fault before a system's first miss of the target, and the fault at that miss."""
    last = None
    for fault, seconds in curve(rows, system):
        if seconds is None:
            return last, fault
        last = fault
    return last, None


def draw(content: Content, folder: Path) -> list[Path]:
    """Draw a picture of each sweep that has rows; return the files."""
    return [_draw(content, sweep, folder) for sweep in AXES if rows_of(content, sweep)]


def _draw(content: Content, sweep: str, folder: Path) -> Path:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = rows_of(content, sweep)
    words, factor, setting = AXES[sweep]
    names = systems_of(rows)
    limit = max(row["limit"] for row in rows)
    with rc_context(SETTINGS):
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = figure.subplots()
        for place, name in enumerate(names):
            points = curve(rows, name)
            good = [(factor * x, y) for x, y in points if y is not None]
            style: dict[str, Any] = {"color": colour(place), "marker": MARKS[place % len(MARKS)]}
            axes.plot([x for x, _ in good], [y for _, y in good], label=name, markersize=5, **style)
            # A system that stops gets a cross above all curves, at a height of its own.
            _, fault = stops_at(rows, name)
            if fault is not None:
                height = limit * 1.25 * 1.22**place
                if good:
                    below = [(x, y) for x, y in good if x < factor * fault]
                    if below:
                        axes.plot([below[-1][0], factor * fault], [below[-1][1], height], ":", color=colour(place))
                axes.plot([factor * fault], [height], "x", color=colour(place), markersize=8, markeredgewidth=2.2)
        axes.set_yscale("log")
        axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.set_ylim(min([y for row in rows if (y := seconds_of(row)) is not None], default=1) / 1.4)
        if sweep == "delay":
            axes.set_xscale("log")
            ticks = sorted({row["key"][2] for row in rows})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(words)
        axes.set_ylabel(_quantity(sweep))
        axes.set_title(f"{setting}; a cross: not reached", fontsize=9)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        file = folder / f"{sweep}.png"
        figure.savefig(file, dpi=150)
    return file


def _quantity(sweep: str) -> str:
    begin = "from the first round " if sweep == "dropout" else ""
    return f"seconds {begin}until {100 * TARGET:.0f} % accuracy"


def tables(content: Content) -> str:
    """Return in Markdown a table for each sweep, with the seconds until the target, and one of the outages."""
    parts = []
    for sweep, (words, factor, setting) in TABLES.items():
        rows = rows_of(content, sweep)
        if not rows:
            continue
        faults = sorted({row["key"][2] for row in rows})
        lines = [
            f"### {words[0].upper()}{words[1:]}",
            "",
            f"{setting}. In {_quantity(sweep)}; no: not within the limits.",
            "",
        ]
        lines.append("| system | " + " | ".join(f"{factor * x:g}" for x in faults) + " | stops at |")
        lines.append("|---|" + "---|" * (len(faults) + 1))
        for name in systems_of(rows):
            known = dict(curve(rows, name))
            cells = ["" if x not in known else _seconds(known[x]) for x in faults]
            _, fault = stops_at(rows, name)
            lines.append(f"| {name} | {' | '.join(cells)} | {'-' if fault is None else f'{factor * fault:g}'} |")
        parts.append("\n".join(lines))
    if away := rows_of(content, "outage"):
        parts.append(_outages(away))
    return "\n\n".join(parts) + "\n"


def _seconds(value: float | None) -> str:
    return "no" if value is None else f"{value:.0f}"


def _outages(rows: Sequence[Row]) -> str:
    kinds = sorted({(row["key"][2], *row["key"][3:]) for row in rows}, key=lambda kind: (kind[1:], kind[0]))
    head = [f"{kind[0]:g} s" + (f", {kind[1]}" if len(kind) > 1 else "") for kind in kinds]
    lines = [
        "### Outages",
        "",
        "Seconds from the return of the path to the end of the round, and bytes sent twice.",
        "",
    ]
    lines += ["| system | " + " | ".join(head) + " |", "|---|" + "---|" * len(kinds)]
    for name in systems_of(rows):
        cells = []
        for kind in kinds:
            row = next((r for r in rows if r["key"][1] == name and tuple(r["key"][2:]) == kind), None)
            cells.append("" if row is None else _away(row))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _away(row: Row) -> str:
    if not row["goes_on"]:
        return "no"
    return f"{row['after']:.1f} s, {100 * max(0.0, row['twice']):.1f} %"


def read(file: Path) -> Content:
    """Return the content of a file of rows."""
    content: Content = json.loads(file.read_text())
    return content
