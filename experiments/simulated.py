"""Experiments in virtual time: ``python -m experiments.simulated lifl/fig08``.

``simulated.toml`` of a figure says what is simulated: a plan, numbers of updates, their sizes, the systems as keys of
[tree], and the paper's numbers. The results are written to ``simulated.json`` beside it. Costs are the simulator's own,
and nothing is measured. ``why_not`` checks whether the simulator agrees with the study's live runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from experiments import measured
from experiments.plan import ROOT
from thalweg import trees, wire
from thalweg.errors import ThalwegError
from thalweg.plan import Plan, read
from thalweg.report.replay import MARGIN

# The note on simulated times if live runs of the study confirm them, and the note if they do not.
ACCEPTED: Final = "simulated, and accepted: live runs of each system were met within 15 %"
CAVEAT: Final = "simulated, and not accepted: {why}"
OUTCOME: Final = "simulated.json"
REACHED: Final = {True: "yes", False: "no", None: "not judged"}
KEPT: Final = ("completion_seconds", "nodes_used", "aggregators_created", "reused", "bytes_between")
# Further numbers of rounds in which clients' updates arrive over time: how long they arrive, how long workers existed,
# and how many bytes lay in memory.
SPREAD: Final = (*KEPT, "arrival_seconds", "worker_seconds", "peak_bytes")


class Ratio(BaseModel):
    """A claim of the paper: the ratio of two systems' numbers, such as their completion times."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: str
    over: str
    under: str
    updates: int
    paper: float
    number: str = "completion_seconds"
    size: str | None = None


class Simulated(BaseModel):
    """A figure that is simulated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    source: str
    updates: list[int]
    sizes: list[str]
    base: dict[str, dict[str, Any]]
    systems: dict[str, dict[str, Any]]
    ratios: list[Ratio]
    nodes: dict[str, list[int]] = {}


def load(folder: Path) -> Simulated:
    """Return the simulation that a figure's folder describes. Raises ThalwegError if it describes none."""
    return Simulated.model_validate(read(folder / "simulated.toml"))


def rows(figure: Simulated) -> list[dict[str, Any]]:
    """Simulate every system with every number and size of updates."""
    return [
        {"size": size, "system": name, "updates": updates, **_one(figure, size, name, updates)}
        for size in figure.sizes
        for name in figure.systems
        for updates in figure.updates
    ]


def _one(figure: Simulated, size: str, name: str, updates: int) -> dict[str, Any]:
    base = figure.base
    table = {
        **base,
        "job": {**base["job"], "clients": updates},
        "model": {"name": f"payload:{size}"},
        "tree": {**base["tree"], **figure.systems[name]},
    }
    last = wire.values_of(trees.simulated(Plan.of(table, name)).rounds[-1])
    kept = SPREAD if "spread" in base["tree"] else KEPT
    return {**{key: last[key] for key in kept}, "cpu_seconds": sum(last["cpu"].values())}


def verdicts(figure: Simulated, simulated_rows: list[dict[str, Any]], *, accepted: bool) -> list[dict[str, Any]]:
    """Compare the paper's numbers with the simulated ones. ``verdict`` is null if the simulation is not accepted."""
    by = {(row["size"], row["system"], row["updates"]): row for row in simulated_rows}

    def number(one: Ratio, size: str, system: str) -> float:
        return float(by[size, system, one.updates][one.number])

    ratios: list[dict[str, Any]] = [
        {"claim": f"{one.claim}, {one.updates} updates of {size}", "paper": one.paper,
         "ours": number(one, size, one.over) / number(one, size, one.under)}
        for one in figure.ratios
        for size in (figure.sizes if one.size is None else [one.size])
    ]  # fmt: skip
    nodes: list[dict[str, Any]] = [
        {"claim": f"nodes used by {name}, {updates} updates of {size}", "paper": paper,
         "ours": by[size, name, updates]["nodes_used"]}
        for name, papers in figure.nodes.items()
        for updates, paper in zip(figure.updates, papers, strict=True)
        for size in figure.sizes
    ]  # fmt: skip
    return [
        *({**one, "verdict": one["ours"] >= one["paper"] if accepted else None} for one in ratios),
        *({**one, "verdict": one["ours"] == one["paper"] if accepted else None} for one in nodes),
    ]


def why_not(figure: Simulated, study: Path) -> str | None:
    """Return why the simulated times are not accepted; None if they are.

    They are accepted if the study has a live run of each system, on at least as many nodes as in the figure, and the
    simulator's completion times agree with those of all these runs.
    """
    cells = [
        cell.numbers
        for file in sorted(study.glob(f"*/{measured.FILE}"))
        for mode in measured.read(file).values()
        for cell in mode
        if cell.numbers.get("off") is not None
    ]
    nodes = figure.base["nodes"]["count"]
    for system in dict.fromkeys(table["system"] for table in figure.systems.values()):
        own = [cell for cell in cells if cell["system"] == system]
        if not own:
            return f"the study has no live run of {system} that the simulator plays again"
        if missed := [cell for cell in own if abs(cell["off"]) > MARGIN]:
            return f"a live run of {system} was missed by {100 * missed[0]['off']:+.0f} %"
        if max(cell["nodes_used"] for cell in own) < nodes:
            return f"live runs of {system} that were met have fewer than {nodes} nodes"
    return None


def table(simulated_rows: list[dict[str, Any]], judged: list[dict[str, Any]], why: str | None) -> str:
    """Return the simulated numbers and the claims as Markdown."""
    lines = [
        "| size | system | updates | completion s | CPU s | aggregators | nodes |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['size']} | {row['system']} | {row['updates']} | {row['completion_seconds']:.3g} "
        f"| {row['cpu_seconds']:.3g} | {row['aggregators_created']} | {row['nodes_used']} |"
        for row in simulated_rows
    ]
    return "\n".join([*lines, "", claims_table(judged, why)])


def claims_table(judged: list[dict[str, Any]], why: str | None) -> str:
    """Return the claims as Markdown, and whether the simulation is accepted. If it is not, claims have no verdict."""
    lines = ["| claim | paper | simulated | reached |", "|---|---|---|---|"]
    lines += [
        f"| {one['claim']} | {one['paper']:g} | {one['ours']:.3g} | {REACHED[one['verdict']]} |" for one in judged
    ]
    return "\n".join([*lines, "", f"{ACCEPTED if why is None else CAVEAT.format(why=why)}."])


def of_file(folder: Path) -> str:
    """Return the claims in a figure's ``simulated.json`` as Markdown."""
    outcome = json.loads((folder / OUTCOME).read_text())
    return claims_table(outcome["claims"], outcome["why"])


def main() -> int:
    """Simulate a figure, and write and print the result."""
    parser = argparse.ArgumentParser(prog="python -m experiments.simulated", description=__doc__)
    parser.add_argument("name", help="as lifl/fig08")
    folder = ROOT / parser.parse_args().name
    try:
        figure = load(folder)
        simulated_rows = rows(figure)
    except ThalwegError as error:
        sys.stderr.write(f"error: {error.cause}\nhint: {error.hint}\n")
        return 2
    why = why_not(figure, folder.parent)
    judged = verdicts(figure, simulated_rows, accepted=why is None)
    result: dict[str, Any] = {"simulated": True, "accepted": why is None, "why": why, "source": figure.source}
    result |= {"rows": simulated_rows, "claims": judged}
    (folder / OUTCOME).write_text(json.dumps(result, indent=1) + "\n")
    print(table(simulated_rows, judged, why))
    return 0


if __name__ == "__main__":
    sys.exit(main())
