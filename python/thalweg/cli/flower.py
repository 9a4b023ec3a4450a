"""``thalweg flower``: unmodified Flower apps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

import typer

from thalweg.cli.client import Authority, Certificate, Key, Name, Outage, Timeout, member, note
from thalweg.cli.plans import Options, PlanCommand, plan_options
from thalweg.machine.waiting import OUTAGE_SECONDS
from thalweg.ui.explain import FAILED
from thalweg.ui.output import Json, output

if TYPE_CHECKING:
    from thalweg.flower.data import Made
    from thalweg.plan import Plan

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Run unmodified Flower apps (the extra thalweg[flower])."
)
AppDir: TypeAlias = Annotated[Path, typer.Argument(metavar="APP_DIR", help="Folder of a Flower app.")]
RunConfig: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--run-config", metavar="'KEY=VALUE ...'", help="Values over the app's own configuration; may be repeated."
    ),
]


class FlowerCommand(PlanCommand):
    """A command of Flower apps with options for keys of a plan: those whose marks name the command."""

    group: ClassVar[str] = "flower"


def _play(
    context: typer.Context, folder: Path, run_config: RunConfig, option: Options, *, as_json: bool, elsewhere: bool
) -> None:
    """Run an app's ServerApp and print the result. Its nodes join from ``elsewhere``, or this command starts them."""
    with output(as_json=as_json) as emit:
        from thalweg.flower import run as flower
        from thalweg.ui.progress import progress_on_stderr

        plan, progress = _plan(context, folder, run_config, option), progress_on_stderr()
        result = flower.serve(plan, plan.url, progress) if elsewhere else flower.run(plan, progress)
        emit(result.table())
    if not as_json:
        from thalweg.cli.summary import show_flower

        show_flower(result)


def _preview(context: typer.Context, folder: Path, run_config: RunConfig, option: Options, *, as_json: bool) -> None:
    """Print what a run of an app would do, and the least time that its messages take."""
    with output(as_json=as_json) as emit:
        from thalweg.flower import run as flower

        preview = flower.preview(_plan(context, folder, run_config, option))
        emit(preview)
    if not as_json:
        from thalweg.cli.summary import show_flower_preview

        show_flower_preview(preview)


def _plan(context: typer.Context, folder: Path, run_config: RunConfig, option: Options) -> Plan:
    from thalweg.flower import run as flower
    from thalweg.transports import registry

    own = {f"transport.options.{key}": value for key, value in registry.own_options(option or ()).items()}
    return flower.plan_of(folder, plan_options(context) | own, run_config or ())


@app.command("run", cls=FlowerCommand)
def run(
    context: typer.Context,
    folder: AppDir,
    *,
    run_config: RunConfig = None,
    option: Options = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Start no node: run the ServerApp until it sends a message, and print how long that takes.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a Flower app on this machine.

    Its ServerApp runs in this process, its nodes in others; messages between them take any transport.
    """
    if dry_run:
        _preview(context, folder, run_config, option, as_json=as_json)
        return
    _play(context, folder, run_config, option, as_json=as_json, elsewhere=False)


@app.command("server", cls=FlowerCommand)
def server(
    context: typer.Context,
    folder: AppDir,
    *,
    run_config: RunConfig = None,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Run a Flower app's ServerApp for nodes on other machines.

    Each node joins with `thalweg flower client`; the app begins when all have joined.
    """
    _play(context, folder, run_config, option, as_json=as_json, elsewhere=True)


@app.command("client", cls=FlowerCommand)
def client(
    context: typer.Context,
    folder: AppDir,
    url: Annotated[str, typer.Argument(metavar="URL", help="The server's: tcp://host:port.")],
    *,
    name: Name = None,
    node_config: Annotated[
        list[str] | None,
        typer.Option("--node-config", metavar="'KEY=VALUE ...'", help="partition-id=0 num-partitions=4."),
    ] = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
    option: Options = None,
    timeout: Timeout = 60.0,
    outage: Outage = OUTAGE_SECONDS,
    as_json: Json = False,
) -> None:
    """Serve as a node of a Flower app, whose ServerApp is at URL, until the run is over."""
    options = plan_options(context)
    with output(as_json=as_json) as emit:
        from thalweg.flower.run import join
        from thalweg.plan import Plan

        own = Plan.of({}).merge(options)
        waits = {"timeout": timeout, "outage": outage}
        membership = member(own, url, name=name, ca=ca, cert=cert, key=key, option=option, **waits)
        emit(join(membership, folder, node_config or (), own.training.threads, note))


@app.command("data")
def data(
    folder: AppDir,
    *,
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that gets the data; run the app in it. Without it this one.")
    ] = Path(),
    dataset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A data set that the source of the app does not name; may be repeated."),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with the files of thalweg's own data sets.")
    ] = None,
    substitute: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="digits or mnist: images that replace those that thalweg does not have; the folder's name says so.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the data sets that a Flower app asks flwr_datasets for, so that it loads them without a network.

    The exit code is 1 if thalweg cannot make one of them.
    """
    with output(as_json=as_json) as emit:
        from thalweg.flower.data import ENVIRONMENT, prepare

        made, unclear = prepare(folder, to, more=dataset or [], root=data_root, substitute=substitute)
        emit(
            {
                "folder": str(to),
                "datasets": made,
                "unclear": [one.where for one in unclear],
                "environment": ENVIRONMENT,
            }
        )
    if not as_json:
        for one in made:
            _show_made(to, one)
        for call in unclear:
            typer.echo(f"{call.where}: the source does not name the data set; name it with --dataset", err=True)
        if not made and not unclear:
            typer.echo(f"{folder} asks flwr_datasets for nothing")
        if any(one.state != "missing" for one in made):
            variables = " ".join(f"{key}={value}" for key, value in ENVIRONMENT.items())
            typer.echo(f"next, in the folder {to.resolve()}: {variables} thalweg flower run {folder.resolve()}")
    if unclear or any(one.state == "missing" for one in made):
        raise typer.Exit(FAILED)


def _show_made(to: Path, made: Made) -> None:
    if made.state == "missing":
        typer.echo(f"{made.name}: cannot be made: {made.reason}\nhint: {made.hint}", err=True)
        return
    state = "exists already" if made.state == "kept" else "written"
    substitute = ", SUBSTITUTE" if made.substitute else ""
    typer.echo(f"{to / made.name}: {state}{substitute}: {made.source or 'not by thalweg'}")
