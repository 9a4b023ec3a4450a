"""``thalweg run``."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from thalweg import wire
from thalweg.cli.finished import is_finished, say_so
from thalweg.cli.plans import Options, PlanFile, Resume, assemble, plan_options
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

    The server is this process, and each client has a process of its own. With --graph there is no server, and each node
    has a process.
    """
    with output(as_json=as_json) as emit:
        from thalweg.lab import guest
        from thalweg.transports import registry

        own = {f"transport.options.{key}": value for key, value in registry.own_options(option or ()).items()}
        chosen = assemble(plan, resume, plan_options(context) | own)
        finished = is_finished(resume, chosen)
        inside = not finished and guest.is_wanted(chosen)
        if finished and resume is not None:
            say_so(resume, chosen, emit)
        elif inside:
            from thalweg.job.common.failure import end_elsewhere

            # Run the same command line inside the guest.
            program = [sys.executable, "-m", "thalweg", *sys.argv[1:]]
            folders = [Path(chosen.record.folder), *([] if plan is None else [plan.parent])]
            code, text = guest.run(program, folders=folders, on_cut=end_elsewhere)
            if as_json and text:
                emit(wire.decode(dict[str, object], text))
        else:
            from thalweg.job.run import run
            from thalweg.ui.progress import progress_on_stderr

            result = run(chosen, progress_on_stderr(), resume=resume)
            emit(result.table())
    if inside:
        sys.stdout.write("" if as_json else text)
        raise typer.Exit(code)
    if not as_json and not finished:
        from thalweg.cli.summary import show

        show(result)
