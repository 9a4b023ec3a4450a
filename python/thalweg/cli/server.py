"""``thalweg server``."""

from __future__ import annotations

import typer

from thalweg.cli.finished import is_finished, say_so
from thalweg.cli.plans import PlanFile, Resume, assemble, plan_options
from thalweg.ui.output import Json, output


def command(context: typer.Context, plan: PlanFile = None, *, resume: Resume = None, as_json: Json = False) -> None:
    """Serve a job to other machines.

    Clients join with `thalweg client` (FedComm section III.C steps 6 and 7).
    """
    overrides = plan_options(context)
    with output(as_json=as_json) as emit:
        from thalweg.job.star.remote import listen_url, serve_job
        from thalweg.ui.progress import progress_on_stderr

        chosen = assemble(plan, resume, overrides)
        # A server that was killed after its last round opens once more, so that its clients learn that the job is done.
        finished = is_finished(resume, chosen, complete_it=False)
        if finished and resume is not None:
            say_so(resume, chosen, emit)
        else:
            url = str(overrides["transport.url"] or listen_url(chosen))
            result = serve_job(chosen, url, progress_on_stderr(), resume=resume)
            emit(result.table())
    if not as_json and not finished:
        from thalweg.cli.summary import show

        show(result)
