"""``thalweg client``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from thalweg.cli.plans import Options, given
from thalweg.ui.output import Json, output

PemFile = Path | None
CHECKED: Final = (
    "security.token_file",
    "security.tls",
    "security.login_file",
    "transport.congestion",
    "training.threads",
)


def command(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL|PLAN.toml", help="tcp://host:port, or a plan with hosts.server.")],
    *,
    name: Annotated[str | None, typer.Option(help="Its name; without it the token's, or this machine's.")] = None,
    ca: Annotated[PemFile, typer.Option(help="Certificate authority of the server, PEM.")] = None,
    cert: Annotated[PemFile, typer.Option(help="This client's certificate, PEM.")] = None,
    key: Annotated[PemFile, typer.Option(help="Its private key, PEM.")] = None,
    option: Options = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds after which it gives up if no server has let it in.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Take part in a server's job."""
    said = given(context)
    with output(as_json=as_json) as emit:
        from thalweg.job.remote import Membership, join_job
        from thalweg.plan import Plan
        from thalweg.transports import registry

        # The job's plan is the server's; of what is said here a plan checks what does not hang together with that.
        own = Plan.of({}).merge({key: said[key] for key in CHECKED})
        membership = Membership(
            target=url,
            name=name,
            token_file=_path(own.security.token_file),
            ca=ca,
            cert=cert,
            key=key,
            tls=own.security.tls,
            congestion=own.transport.congestion,
            login_file=_path(own.security.login_file),
            own=registry.own_options(option or ()),
            patience=patience,
        )
        app, root, tensors = (said[key] for key in ("app.object", "data.root", "model.tensors"))
        emit(join_job(membership, app, root, own.training.threads, _note, tensors=tensors))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
