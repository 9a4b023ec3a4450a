"""``thalweg run``."""

from __future__ import annotations

import typer

from thalweg.cli.plans import Options, PlanFile, Resume, assemble, given
from thalweg.ui.output import Json, output


def command(
    context: typer.Context,
    plan: PlanFile = None,
    *,
    option: Options = None,
    resume: Resume = None,
    as_json: Json = False,
) -> None:
    """Run a job on this machine.

    The server is this process, each client one of its own; with --graph there is no server, and each node is one.
    """
    with output(as_json=as_json) as emit:
        from thalweg.job.run import run
        from thalweg.transports import registry
        from thalweg.ui.progress import progress_on_stderr

        own = {f"transport.options.{key}": value for key, value in registry.own_options(option or ()).items()}
        result = run(assemble(plan, resume, given(context) | own), progress_on_stderr(), resume=resume)
        emit(result.table())
    if not as_json:
        from thalweg.cli.summary import show

        show(result)
