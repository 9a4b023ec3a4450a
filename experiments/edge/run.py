"""Runs the sweeps, draws their pictures, and writes their tables and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from experiments.edge import pictures, sweep

HERE: Final = Path(__file__).parent
FILE: Final = "measured.json"
TABLES: Final = "RESULTS.md"
# The goal of outages: at most this share of the bytes reaches the server twice.
TWICE: Final = 0.02


def folder_of(scale: str, out: Path) -> Path:
    """Return the folder for results of a scale: the one of this file; for ``ci`` one in ``out``."""
    return out / "edge" / scale if scale == "ci" else HERE


def run(scale: str, out: Path, note: Callable[[str], None], sweeps: Collection[str] = (), beside: int = 4) -> list[str]:
    """Run the cells that a scale's results lack, draw all results, and return the verdicts.

    ``sweeps`` chooses some of the sweeps; ``beside`` is the number of cells that run at the same time.
    """
    folder = folder_of(scale, out)
    sweep.run(scale, folder / FILE, note, sweeps=sweeps, beside=beside)
    for file in write(folder):
        note(f"written: {file}")
    return judge(folder)


def write(folder: Path) -> list[Path]:
    """Draw the pictures of a folder's measurements, and write their tables; return the files."""
    content = pictures.read(folder / FILE)
    drawn = pictures.draw(content, folder)
    verdicts = "\n".join(f"- {line}" for line in verdicts_of(content))
    file = folder / TABLES
    file.write_text(f"{_head(content)}\n## Tables\n\n{pictures.tables(content)}\n## Verdicts\n\n{verdicts}\n")
    return [*drawn, file]


def judge(folder: Path) -> list[str]:
    """Return the verdicts of a folder's measurements."""
    return verdicts_of(pictures.read(folder / FILE))


def verdicts_of(content: pictures.Content) -> list[str]:
    """Return where each system stops, and whether the goals of outages are met, each with its numbers."""
    lines = []
    for name, (words, factor, _) in pictures.TABLES.items():
        rows = pictures.rows_of(content, name)
        for system in pictures.systems_of(rows):
            last, first = pictures.stops_at(rows, system)
            reached = "never" if last is None else f"up to {factor * last:g}"
            stopped = "" if first is None else f", stops at {factor * first:g}"
            lines.append(f"{words}: {system} reaches the target {reached}{stopped}")
    for row in pictures.rows_of(content, "outage"):
        how = ", ".join(row["how"])
        what = f"outage of {row['key'][2]:g} s{f' ({how})' if how else ''}: {row['key'][1]}"
        if not row["goes_on"]:
            lines.append(f"{what} does not go on: {row['note'] or 'no round after it'}")
            continue
        verdict = "yes" if row["twice"] < TWICE else "no"
        lines.append(
            f"{what} goes on after {row['after']:.1f} s; under 2 % twice: {verdict} ({100 * row['twice']:.1f} %)"
        )
    return lines


def _head(content: pictures.Content) -> str:
    rows = content["rows"]
    loads = [load for row in rows for load in row["load"]]
    cores = sorted({str(row["core"]) for row in rows if row["core"]})
    besides = {row.get("beside", content["beside"]) for row in rows}
    return (
        f"# Results of the edge\n\nScale {content['scale']}, `{content['command']}`, one run of each cell, "
        f"{min(besides)} to {max(besides)} cells beside each other. Load average of the machine (two cores): "
        f"{min(loads):g} to {max(loads):g}, as other programs were at work. Commit of the core: {', '.join(cores)}. "
        "These tables are made by `python -m experiments run edge`.\n"
    )
