"""``thalweg flower``: unmodified Flower apps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, TypeAlias

import typer

from thalweg.cli.client import Authority, Certificate, Key, Name, Patience, member, note
from thalweg.cli.plans import Options, PlanCommand, given
from thalweg.ui.output import Json, output

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
    """A command of Flower apps with an option for each key of a plan that says so."""

    group: ClassVar[str] = "flower"


@app.command("run", cls=FlowerCommand)
def run(
    context: typer.Context,
    folder: AppDir,
    *,
    run_config: RunConfig = None,
    option: Options = None,
    as_json: Json = False,
) -> None:
    """Run a Flower app on this machine.

    Its ServerApp runs in this process, its nodes in others; messages between them take any transport.
    """
    with output(as_json=as_json) as emit:
        from thalweg.flower.run import plan_of
        from thalweg.flower.run import run as run_app
        from thalweg.transports import registry
        from thalweg.ui.progress import progress_on_stderr

        own = {f"transport.options.{key}": value for key, value in registry.own_options(option or ()).items()}
        result = run_app(plan_of(folder, given(context) | own, run_config or ()), progress_on_stderr())
        emit(result.table())
    if not as_json:
        from thalweg.cli.summary import show_flower

        show_flower(result)


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

    They come by themselves with `thalweg flower client`; the app begins when all are here.
    """
    with output(as_json=as_json) as emit:
        from thalweg.flower.run import plan_of, serve
        from thalweg.transports import registry
        from thalweg.ui.progress import progress_on_stderr

        own = {f"transport.options.{key}": value for key, value in registry.own_options(option or ()).items()}
        plan = plan_of(folder, given(context) | own, run_config or ())
        result = serve(plan, plan.url, progress_on_stderr())
        emit(result.table())
    if not as_json:
        from thalweg.cli.summary import show_flower

        show_flower(result)


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
    patience: Patience = 60.0,
    as_json: Json = False,
) -> None:
    """Serve as a node of a Flower app, whose ServerApp is at URL, until the run is over."""
    said = given(context)
    with output(as_json=as_json) as emit:
        from thalweg.flower.run import join
        from thalweg.plan import Plan

        own = Plan.of({}).merge(said)
        membership = member(own, url, name=name, ca=ca, cert=cert, key=key, option=option, patience=patience)
        emit(join(membership, folder, node_config or (), own.training.threads, note))
