"""``thalweg tree plan`` and ``thalweg tree simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import typer

from thalweg.cli.plans import PlanCommand, given
from thalweg.ui.output import Json, output

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at aggregation trees without running them.")
PlanFile: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="PLAN.toml", help="Plan with [tree] and [nodes]; options override it.")
]
# Said with every simulated number.
CAVEAT: Final = "simulated, and not yet accepted: no live tree has confirmed these times within 15 %"
SHOWN: Final = 20


class TreeCommand(PlanCommand):
    """A command of trees with an option for each key of a plan that says so."""

    group: ClassVar[str] = "tree"


@app.command("plan", cls=TreeCommand)
def plan(context: typer.Context, file: PlanFile = None, *, as_json: Json = False) -> None:
    """Print what the control plane would do for a plan, and why; nothing is run."""
    with output(as_json=as_json) as emit:
        from thalweg import trees
        from thalweg.cli.plans import assemble

        found = trees.planned(assemble(file, None, given(context)))
        emit(found)
    if as_json:
        return
    typer.echo(_head(found))
    for tree in found["plan"]["trees"][:SHOWN]:
        typer.echo(f"  {_tree(tree)}")
    _more(len(found["plan"]["trees"]), "nodes")
    typer.echo("why:")
    for reason in found["reasons"][:SHOWN]:
        typer.echo(f"  {reason['text']}")
    _more(len(found["reasons"]), "reasons")


@app.command("simulate", cls=TreeCommand)
def simulate(context: typer.Context, file: PlanFile = None, *, as_json: Json = False) -> None:
    """Play a plan's rounds in virtual time, with the costs of [tree.costs] in place of work."""
    with output(as_json=as_json) as emit:
        from thalweg import trees
        from thalweg.cli.plans import assemble

        found = trees.simulated(assemble(file, None, given(context)))
        emit(found)
    if as_json:
        return
    typer.echo(_head(found))
    for row in found["rounds"][-SHOWN:]:
        typer.echo(f"  {_round(row)}")
    typer.echo(CAVEAT)


def _head(found: dict[str, Any]) -> str:
    from thalweg.ui.units import format_bytes

    goal = "" if found["goal"] is None else f", of which {found['goal']} end a round"
    updates = f"{found['clients']} updates of {format_bytes(found['update_bytes'])}{goal}"
    return f"{found['system']}: {updates}, {found['nodes']} nodes"


def _tree(tree: dict[str, Any]) -> str:
    middle = " and a middle" if tree["middle"] else ""
    changes = f"start {tree['start']}" + (f", end {tree['stop']}" if tree["stop"] else "")
    return f"node {tree['node']}: {tree['clients']} clients, {tree['leaves']} workers{middle} ({changes})"


def _round(row: dict[str, Any]) -> str:
    from thalweg.ui.units import format_bytes, format_seconds

    top = "sharded" if row["top"] is None else f"node {row['top']}"
    cpu = sum(row["cpu"].values())
    return (
        f"round {row['round']}: completed in {format_seconds(row['completion_seconds'])}, "
        f"{row['nodes_used']} nodes, top {top}, {row['aggregators_created']} aggregators created, "
        f"{row['reused']} reused, {format_bytes(row['bytes_between'])} between nodes, CPU {format_seconds(cpu)}"
    )


def _more(count: int, what: str) -> None:
    if count > SHOWN:
        typer.echo(f"  and {count - SHOWN} more {what}; --json has all")
