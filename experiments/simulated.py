"""Experiments in virtual time: ``python -m experiments.simulated lifl/fig08``.

``simulated.toml`` of a figure says what is simulated: a plan, numbers of updates, sizes, systems as keys of [tree], and
the paper's numbers. The outcome goes to ``simulated.json`` beside it. Costs are the simulator's; nothing is measured,
and no live tree has confirmed the times yet.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from experiments.plan import ROOT
from thalweg import trees
from thalweg.errors import ThalwegError
from thalweg.plan import Plan, read

CAVEAT: Final = "simulated, and not yet accepted: no live tree has confirmed these times within 15 %"
KEPT: Final = ("completion_seconds", "nodes_used", "aggregators_created", "reused", "bytes_between")


class Ratio(BaseModel):
    """A claim of the paper: how many times one system's completion time is another's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    claim: str
    over: str
    under: str
    updates: int
    paper: float


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
    nodes: dict[str, list[int]]


def load(folder: Path) -> Simulated:
    """Return what a figure's folder says. Raises ThalwegError if there is none."""
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
    last = trees.simulated(Plan.of(table, name))["rounds"][-1]
    return {**{key: last[key] for key in KEPT}, "cpu_seconds": sum(last["cpu"].values())}


def verdicts(figure: Simulated, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the paper's numbers beside the simulated ones."""
    by = {(row["size"], row["system"], row["updates"]): row for row in found}

    def seconds(size: str, system: str, updates: int) -> float:
        return float(by[size, system, updates]["completion_seconds"])

    ratios: list[dict[str, Any]] = [
        {"claim": f"{one.claim}, {one.updates} updates of {size}", "paper": one.paper,
         "ours": seconds(size, one.over, one.updates) / seconds(size, one.under, one.updates)}
        for one in figure.ratios
        for size in figure.sizes
    ]  # fmt: skip
    nodes: list[dict[str, Any]] = [
        {"claim": f"nodes used by {name}, {updates} updates of {size}", "paper": paper,
         "ours": by[size, name, updates]["nodes_used"]}
        for name, papers in figure.nodes.items()
        for updates, paper in zip(figure.updates, papers, strict=True)
        for size in figure.sizes
    ]  # fmt: skip
    return [
        *({**one, "verdict": one["ours"] >= one["paper"]} for one in ratios),
        *({**one, "verdict": one["ours"] == one["paper"]} for one in nodes),
    ]


def table(found: list[dict[str, Any]], judged: list[dict[str, Any]]) -> str:
    """Return both as Markdown."""
    lines = [
        "| size | system | updates | completion s | CPU s | aggregators | nodes |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['size']} | {row['system']} | {row['updates']} | {row['completion_seconds']:.3g} "
        f"| {row['cpu_seconds']:.3g} | {row['aggregators_created']} | {row['nodes_used']} |"
        for row in found
    ]
    lines += ["", "| claim | paper | simulated | reached |", "|---|---|---|---|"]
    lines += [
        f"| {one['claim']} | {one['paper']:g} | {one['ours']:.3g} | {'yes' if one['verdict'] else 'no'} |"
        for one in judged
    ]
    return "\n".join([*lines, "", CAVEAT])


def main() -> int:
    """Simulate a figure, write what came of it, and print it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.simulated", description=__doc__)
    parser.add_argument("name", help="as lifl/fig08")
    folder = ROOT / parser.parse_args().name
    try:
        figure = load(folder)
        found = rows(figure)
    except ThalwegError as error:
        sys.stderr.write(f"error: {error.cause}\nmend: {error.mend}\n")
        return 2
    judged = verdicts(figure, found)
    result = {"simulated": True, "accepted": False, "source": figure.source, "rows": found, "claims": judged}
    (folder / "simulated.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(found, judged))
    return 0


if __name__ == "__main__":
    sys.exit(main())
