"""RESULTS.md of a study: tables generated from measurements, between marks in text written by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from experiments import measured, simulated
from experiments.claims import rule
from experiments.measured import Cell, Origin
from experiments.plan import ROOT, Experiment, names
from experiments.run import judge
from thalweg.report.text import commit_words

COLUMNS: Final = ("FedComm's s", "measured s", "bound s", "resent", "wire/update")
# The columns of tables on goodput: the key of a cell's number, the factor, and the heading; then the columns that have
# a meaning only if there are several flows.
RATES: Final = (
    ("goodput", 1e-6, "Mbit/s"),
    ("share", 100.0, "% of the ceiling"),
    ("missing", 100.0, "% missing"),
    ("lost", 100.0, "% lost on the way"),
    ("queue_seconds", 1e3, "ms waited, mean"),
    ("queue_seconds_max", 1e3, "ms waited, most"),
)
AMONG: Final = (
    ("slowest", 1e-6, "slowest, Mbit/s"),
    ("rivals", 1e-6, "rivals together, Mbit/s"),
    ("jain", 1.0, "Jain's index"),
)
# The columns of tables on jobs on graphs, in the same form.
ITERATIONS: Final = (
    ("exchange_mean", 1e3, "ms, mean"),
    ("exchange_median", 1e3, "median"),
    ("exchange_std", 1e3, "std"),
    ("iteration_mean", 1e3, "with training, ms"),
    ("used", 100.0, "% of chunks used"),
    ("timeouts", 100.0, "% ended by a deadline"),
    ("sent", 1.0, "bytes sent / models"),
    ("others", 1.0, "cores others used"),
)
LEARNED: Final = (
    ("reached", 100.0, "accuracy, %"),
    ("reached_std", 100.0, "std over nodes"),
    ("tested_loss", 1.0, "test loss"),
    ("finish_seconds", 1.0, "after, s"),
    ("drift", 1.0, "drift"),
    ("disagreement", 1.0, "disagreement"),
)
# The columns of tables on aggregation trees, in the same form.
AGGREGATION: Final = (
    ("completion", 1e3, "ACT, ms"),
    ("hand_over", 1e3, "hand-over, ms"),
    ("fold", 1e3, "fold, ms"),
    ("taken", 1e3, "both, ms"),
    ("finish", 1e3, "finish, ms"),
    ("cpu", 1.0, "CPU s a round"),
    ("created", 1.0, "aggregators"),
    ("active", 1.0, "active"),
    ("nodes_used", 1.0, "nodes"),
    ("simulated", 1e3, "ACT simulated, ms"),
    ("off", 100.0, "off, %"),
)
TRAINED: Final = (("reached", 100.0, "accuracy, %"), ("time_to", 1.0, "s to 70 %"), ("cpu_to", 1.0, "CPU s to 70 %"))
# A generated table, with the marks around it.
MADE: Final = r"<!-- (measured|simulated) ([\w-]+) -->.*?<!-- end of \2 -->"
# The mark of results whose code is in no commit, or in an unknown one.
MARK: Final = "\u2020"


def update(study: str) -> Path:
    """Update the tables in a study's RESULTS.md and return the file."""
    file = ROOT / study / "RESULTS.md"
    file.write_text(filled(file.read_text(), study))
    return file


def filled(text: str, study: str) -> str:
    """Return ``text`` with new tables between each mark ``<!-- measured NAME -->``, or ``simulated``, and its end."""

    def replaced(mark: re.Match[str]) -> str:
        name = f"{study}/{mark[2]}"
        made = tables(name) if mark[1] == "measured" else simulated.of_file(ROOT / name)
        return f"<!-- {mark[1]} {mark[2]} -->\n\n{made}\n\n<!-- end of {mark[2]} -->"

    return re.sub(MADE, replaced, text, flags=re.DOTALL)


def tables(name: str) -> str:
    """Return the numbers and the verdicts of an experiment as Markdown, or a sentence that it has not been run."""
    file = ROOT / name / measured.FILE
    if name not in names() or not file.is_file():
        return "Not run yet."
    experiment, modes, origins = Experiment.load(name), measured.read(file), measured.origins(file)
    marked = {f"{mode}{'' if origins[mode].is_exact else MARK}": cells for mode, cells in modes.items()}
    scale = json.loads(file.read_text())["scale"]
    facts = [_measured(mode, origins[mode], scale, cells) for mode, cells in modes.items()]
    facts += [f"{MARK}: the code that was measured is in no commit, or nobody knows which."] * (MARK in "".join(marked))
    return "\n\n".join(
        ("\n".join(f"- {one}" for one in facts), _TABLES[experiment.quantity](marked), _verdicts(name, file))
    )


def _measured(mode: str, origin: Origin, scale: str, cells: Sequence[Cell]) -> str:
    """Return the text on how a mode was measured, and on which of these facts were not recorded."""
    runs = sorted({cell.runs for cell in cells})
    count = f"{runs[0]} run{'' if runs == [1] else 's'}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]} runs"
    load = origin.load
    parts = [
        f"Mode {mode}: scale `{scale}`, {count} of each cell",
        f"commit {commit_words(origin.commit)}",
        *([f"core {commit_words(origin.core)}"] if origin.core != origin.commit else []),
        "date not recorded" if origin.began is None else origin.began[:10],
        "load not recorded" if load is None else f"others used {load['mean']:.2g} cores, at most {load['most']:.2g}",
    ]
    return "; ".join(parts) + ("." if origin.command is None else f": `{origin.command}`.")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _times(modes: dict[str, list[Cell]]) -> str:
    first = next(iter(modes.values()))
    axes = list(first[0].labels)
    head = [*axes, *(f"{mode}: {what}" for mode in modes for what in COLUMNS)]
    rows = []
    for cell in first:
        row = [cell.labels[axis].removeprefix("payload:") for axis in axes]
        for cells in modes.values():
            row += _figures(next((one for one in cells if one.labels == cell.labels), None))
        rows.append(row)
    return _table(head, rows)


def _figures(cell: Cell | None) -> list[str]:
    if cell is None or cell.numbers["seconds"] is None:
        return ["-" if cell is None else cell.numbers["status"], *["-"] * (len(COLUMNS) - 1)]
    numbers, ways = cell.numbers, cell.numbers["seconds_by_accounting"]
    rest = (numbers["bound_seconds"], numbers["retransmissions"], numbers["wire_ratio"])
    short = numbers["incomplete_rounds"]
    shown = ["-" if value is None else f"{value:.4g}" for value in (ways["fedcomm"], ways["measured"], *rest)]
    return [f"{shown[0]} ({short} rounds short)" if short else shown[0], *shown[1:]]


def _goodputs(modes: dict[str, list[Cell]]) -> str:
    with_flows = [cell.numbers for cells in modes.values() for cell in cells if "flows" in cell.numbers]
    wanted = {
        "slowest": any(numbers["clients"] > 1 for numbers in with_flows),
        "rivals": any(numbers.get("rivals") for numbers in with_flows),
        "jain": any(len(numbers["flows"]) > 1 for numbers in with_flows),
    }
    columns = (*RATES[:2], *(column for column in AMONG if wanted[column[0]]), *RATES[2:])
    axes = list(next(iter(modes.values()))[0].labels)
    rows = []
    for mode, cells in modes.items():
        for cell in cells:
            shown = [_number(cell.numbers.get(key), factor) for key, factor, _ in columns]
            shown[0] = shown[0] if "goodput" in cell.numbers else cell.numbers["status"]
            rows.append([mode, *(cell.labels[axis] for axis in axes), *shown])
    return _table(["mode", *axes, *(words for _, _, words in columns)], rows)


def _iterations(modes: dict[str, list[Cell]]) -> str:
    learned = any(cell.numbers.get("curve") for cells in modes.values() for cell in cells)
    columns = (*ITERATIONS[:-1], *(LEARNED if learned else ()), ITERATIONS[-1])
    axes = list(next(iter(modes.values()))[0].labels)
    rows = []
    for mode, cells in modes.items():
        for cell in cells:
            shown = [_number(cell.numbers.get(key), factor) for key, factor, _ in columns]
            shown[0] = shown[0] if "exchange_mean" in cell.numbers else cell.numbers["status"]
            rows.append([mode, *(cell.labels[axis] for axis in axes), *shown])
    return _table(["mode", *axes, *(words for _, _, words in columns)], rows)


def _aggregations(modes: dict[str, list[Cell]]) -> str:
    trained = any(cell.numbers.get("reached") is not None for cells in modes.values() for cell in cells)
    columns = (*AGGREGATION, *(TRAINED if trained else ()))
    axes = list(next(iter(modes.values()))[0].labels)
    rows = []
    for mode, cells in modes.items():
        for cell in cells:
            shown = [_number(cell.numbers.get(key), factor) for key, factor, _ in columns]
            shown[0] = shown[0] if "completion" in cell.numbers else cell.numbers["status"]
            rows.append([mode, *(cell.labels[axis].removeprefix("payload:") for axis in axes), *shown])
    return _table(["mode", *axes, *(words for _, _, words in columns)], rows)


def _number(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{factor * value:.4g}"


def _accuracies(modes: dict[str, list[Cell]]) -> str:
    first = next(iter(modes.values()))
    axes = list(first[0].labels)
    longest = max(len(cell.numbers["accuracy"]) for cell in first)
    rounds = sorted({1, 2, 5, 10, 20, 50, 100, longest} & set(range(1, longest + 1)))
    rows = []
    for mode, cells in modes.items():
        for cell in cells:
            series = cell.numbers["accuracy"]
            shown = [f"{100 * series[at - 1]:.2f}" if at <= len(series) else "-" for at in rounds]
            rows.append([mode, *(cell.labels[axis] for axis in axes), *shown])
    return _table(["mode", *axes, *(f"round {at}" for at in rounds)], rows)


_TABLES: Final[Mapping[str, Callable[[dict[str, list[Cell]]], str]]] = {
    "communication": _times,
    "accuracy": _accuracies,
    "goodput": _goodputs,
    "iterations": _iterations,
    "aggregation": _aggregations,
}


def _verdicts(name: str, file: Path) -> str:
    origins, rows = measured.origins(file), []
    for one in judge(name, file):
        verdicts = [f"{one.verdicts[mode].seen}: {one.verdicts[mode].words}" for mode in origins]
        rows.append([one.claim["id"], one.claim["says"], rule(one.claim), *verdicts])
    if not rows:
        return "The paper says nothing of these."
    modes = [f"mode {mode}{'' if origin.is_exact else MARK}" for mode, origin in origins.items()]
    return _table(["claim", "the paper says", "holds if", *modes], rows)
