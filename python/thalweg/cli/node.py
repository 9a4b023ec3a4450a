"""``thalweg node``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thalweg.cli.plans import Options, Resume, assemble, plan_options
from thalweg.ui.output import Json, output

if TYPE_CHECKING:
    from thalweg.job.star.remote import MemberResult

PemFile = Path | None


def command(
    context: typer.Context,
    plan: Annotated[
        str,
        typer.Argument(
            metavar="PLAN.toml|URL", help="Plan with job.graph and hosts.nodes; or where a node of a tree listens."
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="Name of this node in hosts.nodes. Of a tree, the default is the token's name.")
    ] = None,
    parent: Annotated[
        str | None, typer.Option(metavar="URL", help="Of a tree: where its server listens, as tcp://host:port.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="Of a tree: how many clients this node waits for.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="NUMBER", help="Of a tree: how many nodes it waits for, instead of clients."),
    ] = None,
    token_file: Annotated[
        PemFile, typer.Option(metavar="FILE", help="Of a tree: from `thalweg pki issue NAME --role tree-node`.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Of a tree: the URL for clients of other nodes. Default: where it listens."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where to listen, as tcp://0.0.0.0:7070. Default: the URL in hosts.nodes."),
    ] = None,
    ca: Annotated[PemFile, typer.Option(help="Certificate authority of all nodes, PEM.")] = None,
    cert: Annotated[PemFile, typer.Option(help="This node's certificate, PEM.")] = None,
    key: Annotated[PemFile, typer.Option(help="Its private key, PEM.")] = None,
    option: Options = None,
    timeout: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for neighbours to join, or of a tree for the parent.")
    ] = 300.0,
    resume: Resume = None,
    as_json: Json = False,
) -> None:
    """Be one node of a graph, or with --parent of an aggregation tree.

    The other nodes are started in the same way, on their machines.
    """
    if "://" in plan or parent is not None:
        with output(as_json=as_json) as emit:
            metrics = plan_options(context)["record.metrics"]
            options = {"name": name, "token_file": token_file, "ca": ca, "cert": cert, "key": key, "timeout": timeout}
            options["advertise"] = advertise
            emit(_of_tree(plan, parent, clients, nodes, metrics=metrics, **options))
        return
    with output(as_json=as_json) as emit:
        from thalweg.errors import PlanError
        from thalweg.job.graph.remote_node import NodeIdentity, take_part
        from thalweg.transports import registry
        from thalweg.ui.progress import progress_on_stderr

        own = {f"transport.options.{key}": value for key, value in registry.own_options(option or ()).items()}
        if name is None:
            raise PlanError("no node of the plan is named", "Give --name; hosts.nodes has the names")
        chosen = assemble(Path(plan), None, plan_options(context) | own)
        result = take_part(chosen, NodeIdentity(name, listen, ca, cert, key, timeout, resume), progress_on_stderr())
        emit({"name": name, **result.table()})
    if not as_json:
        from thalweg.cli.summary import show

        show(result)


def _of_tree(
    listen: str,
    parent: str | None,
    clients: int | None,
    nodes: int | None,
    *,
    metrics: str | None,
    **options: Any,
) -> MemberResult:
    """Be a node of a tree until its job is over, and return the result."""
    from thalweg.cli.client import note
    from thalweg.errors import PlanError
    from thalweg.job.tree.remote_node import TreeNodeOptions, run_tree_node
    from thalweg.plan import Plan

    if parent is None or (clients is None and nodes is None) or "://" not in listen:
        raise PlanError(
            "a node of a tree needs to know where it listens, its parent, and how many clients or nodes it has",
            "Give URL --parent URL --clients NUMBER, or --nodes NUMBER instead of --clients",
        )
    checked = Plan.of({"record": {} if metrics is None else {"metrics": metrics}})
    chosen = TreeNodeOptions(listen, parent, clients, nodes, metrics=checked.record.metrics, **options)
    return run_tree_node(chosen, note)
