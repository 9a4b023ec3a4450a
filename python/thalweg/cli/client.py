"""``thalweg client``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from thalweg.cli.plans import Options, plan_options
from thalweg.machine.waiting import OUTAGE_SECONDS
from thalweg.ui.output import Json, output

if TYPE_CHECKING:
    from thalweg.job.star.remote import Membership
    from thalweg.plan import Plan

Name: TypeAlias = Annotated[
    str | None, typer.Option(help="Its name. Default: the token's name, or else this machine's.")
]
Authority: TypeAlias = Annotated[Path | None, typer.Option(help="Certificate authority of the server, PEM.")]
Certificate: TypeAlias = Annotated[Path | None, typer.Option(help="This client's certificate, PEM.")]
Key: TypeAlias = Annotated[Path | None, typer.Option(help="Its private key, PEM.")]
Timeout: TypeAlias = Annotated[float, typer.Option(min=0, help="Seconds to try to join before it gives up.")]
Outage: TypeAlias = Annotated[
    float, typer.Option(min=0, help="Seconds to try to come back after a lost link, if longer than --timeout.")
]
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
    name: Name = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
    option: Options = None,
    timeout: Timeout = 60.0,
    outage: Outage = OUTAGE_SECONDS,
    as_json: Json = False,
) -> None:
    """Take part in a server's job."""
    options = plan_options(context)
    with output(as_json=as_json) as emit:
        from thalweg.job.star.remote import join_job
        from thalweg.plan import Plan

        # The server has the job's plan. The plan that is made here only serves to check those options of the client
        # that do not depend on the server's plan.
        own = Plan.of({}).merge({key: options[key] for key in CHECKED})
        waits = {"timeout": timeout, "outage": outage}
        membership = member(own, url, name=name, ca=ca, cert=cert, key=key, option=option, **waits)
        app, root, tensors = (options[key] for key in ("app.object", "data.root", "model.tensors"))
        emit(join_job(membership, app, root, own.training.threads, note, tensors=tensors))


def member(
    own: Plan,
    url: str,
    *,
    name: str | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    option: list[str] | None,
    timeout: float,
    outage: float = OUTAGE_SECONDS,
) -> Membership:
    """Return a client's ``Membership`` from its command line. ``own`` has the options that are keys of a plan."""
    from thalweg.job.star.remote import Membership
    from thalweg.transports import registry

    return Membership(
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
        timeout=timeout,
        outage=outage,
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def note(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
