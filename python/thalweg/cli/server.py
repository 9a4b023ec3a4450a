"""``thalweg server``."""

from __future__ import annotations

from typing import Annotated

import typer

from thalweg.cli.plans import AppName, Clients, DataRoot, PlanFile, Record, Resume, Rounds, Tensors, assemble
from thalweg.ui.output import Json, output


def command(
    plan: PlanFile = None,
    *,
    listen: Annotated[str | None, typer.Option(metavar="URL", help="Where to listen: tcp://0.0.0.0:7070.")] = None,
    pki: Annotated[str | None, typer.Option(metavar="DIR", help="Folder that `thalweg pki init` made.")] = None,
    app: AppName = None,
    tensors: Tensors = None,
    clients: Clients = None,
    rounds: Rounds = None,
    data_root: DataRoot = None,
    record: Record = None,
    resume: Resume = None,
    as_json: Json = False,
) -> None:
    """Serve a job to other machines.

    Clients come by themselves with `thalweg client` (FedComm section III.C steps 6 and 7).
    """
    overrides = {
        "app.object": app,
        "model.tensors": tensors or None,
        "transport.url": listen,
        "security.pki": pki,
        "job.clients": clients,
        "job.rounds": rounds,
        "data.root": data_root,
        "record.folder": record,
    }
    with output(as_json=as_json) as emit:
        from thalweg.job.remote import listen_url, serve_job
        from thalweg.ui.progress import progress_on_stderr

        chosen = assemble(plan, resume, overrides)
        url = listen or listen_url(chosen)
        result = serve_job(chosen, url, progress_on_stderr(), resume=resume)
        emit(result.table())
    if not as_json:
        from thalweg.cli.summary import show

        show(result)
