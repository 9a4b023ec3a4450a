"""``thalweg tree plan``, ``thalweg tree simulate``, ``thalweg tree watch`` and ``thalweg tree calibrate``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypeAlias

import typer

from thalweg.cli.plans import PlanCommand, plan_options
from thalweg.ui.output import Json, output
from thalweg.ui.phrases import number_of

if TYPE_CHECKING:
    from thalweg.job.tree.calibration import Calibration
    from thalweg.plan import Plan
    from thalweg.trees import Head, NodeTree, Replayed, SimulatedRound

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at aggregation trees.")
PlanFile: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="PLAN.toml", help="Plan with [tree] and [nodes]; options override it.")
]
Records: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--record", metavar="FOLDER", help="Record of a live run to check the simulation against; may be repeated."
    ),
]
# Printed with simulated numbers, by whether they agree with a live run.
CAVEAT: Final = "simulated, and not accepted: no live run of this system was met within 15 % (--record)"
ACCEPTED: Final = "simulated, and accepted: the live runs above were met within 15 %"
SHOWN: Final = 20
# Time between two looks at the record of a running job.
LOOK_SECONDS: Final = 0.5
ROUTES: Final = {
    "auto": "inside the kernel where it can take them, else through the node",
    "kernel": "inside the kernel",
    "node": "through the node",
}
# The model to calibrate with if there is no plan.
DEFAULT: Final = "payload:8MiB"


class TreeCommand(PlanCommand):
    """A command of trees with options for keys of a plan: those whose marks name the command."""

    group: ClassVar[str] = "tree"


@app.command("plan", cls=TreeCommand)
def plan(context: typer.Context, file: PlanFile = None, *, as_json: Json = False) -> None:
    """Print what the control plane would do for a plan, and why; nothing is run."""
    with output(as_json=as_json) as emit:
        from thalweg import trees
        from thalweg.cli.plans import assemble

        read = assemble(file, None, plan_options(context))
        planned = trees.planned(read)
        left_out = _without_middles(read)
        emit(planned)
    if as_json:
        return
    typer.echo(_head(planned))
    if left_out:
        typer.echo(left_out)
    for tree in planned.plan.trees[:SHOWN]:
        typer.echo(f"  {_tree(tree)}")
    _more(len(planned.plan.trees), "nodes")
    typer.echo(f"notes between a node and its workers: {ROUTES[planned.routes]}")
    typer.echo("why:")
    for reason in planned.reasons[:SHOWN]:
        typer.echo(f"  {reason.text}")
    _more(len(planned.reasons), "reasons")


@app.command("simulate", cls=TreeCommand)
def simulate(context: typer.Context, file: PlanFile = None, *, record: Records = None, as_json: Json = False) -> None:
    """Simulate a plan's rounds in virtual time, with the costs of [tree.costs] instead of the work itself."""
    with output(as_json=as_json) as emit:
        from thalweg import trees
        from thalweg.cli.plans import assemble
        from thalweg.report.replay import replayed

        met: list[Replayed] = []
        for folder in record or []:
            met.append(replayed(folder, met))
        read = assemble(file, None, plan_options(context))
        simulated = trees.simulated(read, met)
        left_out = _without_middles(read)
        emit(simulated)
    if as_json:
        return
    typer.echo(_head(simulated))
    if left_out:
        typer.echo(left_out)
    for row in simulated.rounds[-SHOWN:]:
        typer.echo(f"  {_round(row)}")
    for one in met:
        typer.echo(f"  {_met(one)}")
    typer.echo(ACCEPTED if simulated.accepted else CAVEAT)


@app.command("watch")
def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Record of a run, which may be running.")],
    *,
    once: Annotated[bool, typer.Option("--once", help="Print what there is now, and do not wait for more.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a running tree's nodes plan, round by round: leaves, the reasons, and what became of workers.

    It ends with the run, also if the run is killed. With --json it prints what there is now.
    """
    with output(as_json=as_json) as emit:
        from thalweg.record import Record, workers

        record = Record(folder)
        if as_json:
            emit({"status": record.manifest["status"], "rounds": list(workers.read(folder))})
            return
        from thalweg.trees.balance import balance_in_words
        from thalweg.trees.decided import plan_in_words, workers_in_words

        looks = 0

        def goes_on() -> bool:
            nonlocal looks
            if looks:
                time.sleep(LOOK_SECONDS)
            looks += 1
            return not once and record.is_running

        shown = 0
        for row in workers.followed(folder, goes_on):
            shown += 1
            if "balance" in row:
                typer.echo(f"before round {row['round']}: {balance_in_words(row['balance'])}")
                continue
            typer.echo(workers_in_words(row))
            for decision in row["decisions"]:
                typer.echo(f"  {plan_in_words(decision)}")
        if not shown:
            typer.echo("nothing was planned: that takes tree.split = 'clients', or tree.scaling = 'knative'")


@app.command("calibrate", cls=TreeCommand)
def calibrate(
    context: typer.Context,
    file: PlanFile = None,
    *,
    seconds: Annotated[float, typer.Option(min=1, help="About how long it may take.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Measure in live rounds how many updates a node of this machine can hold at once, and what its work costs.

    Prints [nodes] and [tree.costs] for a plan (LIFL appendix E).
    """
    with output(as_json=as_json) as emit:
        from thalweg.cli.plans import assemble
        from thalweg.job.tree.calibration import calibrated
        from thalweg.ui.progress import progress_on_stderr

        note = progress_on_stderr().note
        default = {"model.name": DEFAULT} if file is None else {}
        options = {key: value for key, value in plan_options(context).items() if value is not None}
        calibration = calibrated(assemble(file, None, {**default, **options}), seconds, note)
        emit(calibration)
    if as_json:
        return
    typer.echo(_capacity(calibration))
    typer.echo(calibration.toml.rstrip())


def _capacity(calibration: Calibration) -> str:
    """Return a TOML comment with the measured capacity and how reliable it is."""
    from thalweg.ui.units import format_bytes, format_seconds

    at, size = calibration.at, format_bytes(calibration.update_bytes)
    measured = f"# {at.rate:.4g} updates of {size} a second took {format_seconds(at.seconds)} each"
    if calibration.overloaded:
        return f"{measured}, at least {calibration.significant:g} times as long as in an idle node"
    return f"{measured}, hardly longer than in an idle node: it can do more, and {calibration.ended}"


def _without_middles(plan: Plan) -> str | None:
    """Return the line that levels of middle nodes are left out; None if the plan has none. Raises PlanError."""
    from thalweg.sections.trees import NodesSection, TreeSection
    from thalweg.trees import tags

    tree, nodes = plan.tree or TreeSection(), plan.nodes or NodesSection()
    if nodes.middle or (tree.tag is not None and tags.levels_of_middles(tree.tag, tree, nodes)[1]):
        return "middle nodes between these nodes and the top are left out"
    return None


def _head(head: Head) -> str:
    from thalweg.ui.units import format_bytes

    goal = "" if head.goal is None else f", of which {head.goal} end a round"
    updates = f"{head.clients} updates of {format_bytes(head.update_bytes)}{goal}"
    return f"{head.system}: {updates}, {head.nodes} nodes"


def _tree(tree: NodeTree) -> str:
    middle = " and a middle" if tree.middle else ""
    changes = f"start {tree.start}" + (f", end {tree.stop}" if tree.stop else "")
    return (
        f"node {tree.node}: {number_of(tree.clients, 'client')}, {number_of(tree.leaves, 'worker')}{middle} ({changes})"
    )


def _round(row: SimulatedRound) -> str:
    from thalweg.ui.units import format_bytes, format_seconds

    top = "sharded" if row.top is None else f"node {row.top}"
    cpu = sum(row.cpu.values())
    return (
        f"round {row.round}: completed in {format_seconds(row.completion_seconds)}, "
        f"{row.nodes_used} nodes, top {top}, {row.aggregators_created} aggregators created, "
        f"{row.reused} reused, {format_bytes(row.bytes_between)} between nodes, CPU {format_seconds(cpu)}"
    )


def _met(one: Replayed) -> str:
    from thalweg.ui.units import format_seconds

    live, simulated = format_seconds(one["live_seconds"]), format_seconds(one["simulated_seconds"])
    verdict = "met" if one["met"] else "missed"
    return (
        f"{one['record']} ({one['system']}): live {live}, simulated {simulated}, {100 * one['off']:+.0f} %: {verdict}"
    )


def _more(count: int, what: str) -> None:
    if count > SHOWN:
        typer.echo(f"  and {count - SHOWN} more {what}; --json has all")
