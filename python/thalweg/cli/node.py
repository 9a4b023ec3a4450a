"""``thalweg node``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thalweg.cli.plans import Options, Resume, assemble, given
from thalweg.ui.output import Json, output

PemFile = Path | None


def command(
    context: typer.Context,
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="Plan with job.graph and hosts.nodes.")],
    *,
    name: Annotated[str, typer.Option(help="Which node of hosts.nodes it is.")],
    listen: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where to listen, as tcp://0.0.0.0:7070; without it as hosts.nodes says."),
    ] = None,
    ca: Annotated[PemFile, typer.Option(help="Certificate authority of all nodes, PEM.")] = None,
    cert: Annotated[PemFile, typer.Option(help="This node's certificate, PEM.")] = None,
    key: Annotated[PemFile, typer.Option(help="Its private key, PEM.")] = None,
    option: Options = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds after which it gives up if a neighbour is not there.")
    ] = 300.0,
    resume: Resume = None,
    as_json: Json = False,
) -> None:
    """Be one node of a graph.

    The other nodes are started in the same way, on their machines.
    """
    with output(as_json=as_json) as emit:
        from thalweg.job.remote_node import Place, take_part
        from thalweg.transports import registry
        from thalweg.ui.progress import progress_on_stderr

        own = {f"transport.options.{key}": value for key, value in registry.own_options(option or ()).items()}
        chosen = assemble(plan, None, given(context) | own)
        result = take_part(chosen, Place(name, listen, ca, cert, key, patience, resume), progress_on_stderr())
        emit({"name": name, **result.table()})
    if not as_json:
        from thalweg.cli.summary import show

        show(result)
