"""``thalweg forward``: other programs' TCP streams over any transport, or with masked loss."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from thalweg.cli import masking
from thalweg.cli.client import Authority, Certificate, Key, Name
from thalweg.cli.plans import Options
from thalweg.ui.output import output

EXAMPLES = """\b
Examples:
  thalweg forward --listen ltp://0.0.0.0:9371 --to 127.0.0.1:9370 --pki pki
  thalweg forward --listen :9370 --via ltp://far.example:9371 --token-file site-1.token
  thalweg forward --listen :9370 --via ltp://far.example:9371 --token-file site-1.token --grpc
  thalweg forward --mask --listen 10.0.0.5:9000 --to :7000 --holes unix:/run/holes.sock
  thalweg forward --mask --listen :9000 --to 10.0.0.6:7000 --budget 0.01 --align 4 > holes.jsonl
"""


def command(
    context: typer.Context,
    *,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|URL",
            help="With --via: the port for programs, as :9370 (on loopback). With --to: the URL for near ends. "
            "With --mask: where clients connect; :9000 listens at all addresses.",
        ),
    ],
    via: Annotated[
        str | None, typer.Option(metavar="URL", help="Be the near end: carry programs to this far end.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Be the far end: carry streams to this TCP server.")
    ] = None,
    mask: Annotated[
        bool,
        typer.Option("--mask", help="Mask loss in front of the server --to (Linux, as root); there is no other end."),
    ] = False,
    holes: masking.Holes = masking.STDOUT,
    budget: masking.Budget = None,
    reliable: masking.Reliable = "64KiB",
    align: masking.Align = 1,
    control: masking.Control = None,
    buffer: masking.Buffer = None,
    idle: masking.Idle = None,
    plain: masking.Plain = False,
    pki: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Far end: folder that `thalweg pki init` made.")
    ] = None,
    clients: Annotated[str, typer.Option(help="Far end: what near ends must present, any or certificate.")] = "any",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Near end: from `thalweg pki issue NAME --role forward`.")
    ] = None,
    name: Name = None,
    ca: Authority = None,
    cert: Certificate = None,
    key: Key = None,
    tls: Annotated[
        str, typer.Option(help="auto, on or off: whether the link is encrypted; auto: beyond this machine.")
    ] = "auto",
    login_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with one line user:password, for a broker.")
    ] = None,
    congestion: Annotated[str | None, typer.Option(help="TCP congestion control of the link, such as cubic.")] = None,
    option: Options = None,
    grpc: Annotated[
        bool,
        typer.Option("--grpc", help="End HTTP/2 at this end, so that a call's windows do not wait for the link."),
    ] = False,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD[=FILE]",
            help="Near end with --grpc: answer calls of /package.Service/Method here, with success and the message in "
            "FILE (default: an empty one). The server may still fail. May be repeated.",
        ),
    ] = None,
    window: Annotated[
        str,
        typer.Option(metavar="SIZE", help="Most of each direction of a connection that is buffered at its receiver."),
    ] = "4MiB",
    connections: Annotated[int, typer.Option(min=1, max=4096, help="Most at a time; further ones wait.")] = 256,
    first_byte: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Near end, or with --mask: reset a program that sends nothing for this long."
        ),
    ] = 20.0,
    liveness: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Far end: silence that ends a link.")
    ] = 10.0,
    timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Near end: how long to try at the start, and programs wait later."),
    ] = 10.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events as lines of JSON, nothing else on stdout but the hole map.")
    ] = False,
) -> None:
    """Carry any program's TCP connections over a link of any transport, until Ctrl-C, SIGTERM or SIGHUP.

    The far end (--to) runs beside the server, the near end (--via) beside the programs. All connections share one link.

    With --mask there is one end. Clients need no change: the server gets each client's stream with zeros in place of
    lost bytes, and the hole map lists these places. The server's own stream is never masked.
    """
    if mask:
        masking.serve(
            context,
            listen=listen,
            to=to,
            holes=holes,
            sizes={"reliable": reliable, "buffer": buffer},
            own={"budget": budget, "control": control},
            option=option or (),
            align=align,
            connections=connections,
            first_byte=first_byte,
            idle=idle,
            plain=plain,
            as_json=as_json,
        )
        return
    from thalweg import _core, wire
    from thalweg.transports import forwarding, registry, serving

    def observe(event: str) -> None:
        if as_json:
            _line(sys.stdout, event)
        else:
            _line(sys.stderr, forwarding.words(event))

    with output(as_json=as_json) as emit:
        masking.check(context, mask=False)
        _check(via, to)
        limits = {
            "window": serving.size("--window", window),
            "connections": connections,
            "first_byte": first_byte,
            "liveness": liveness,
            "grpc": grpc,
            "answers": forwarding.answers(answer or (), grpc=grpc, near=via is not None),
        }
        if to is not None:
            from thalweg.sections import SecuritySection
            from thalweg.transports import links

            security = SecuritySection.model_validate(
                {"tls": tls, "clients": clients, "pki": None if pki is None else str(pki)}
            )
            own = registry.own_options(option or ())
            config = forwarding.far_end(listen, to, security, own, congestion, login=links.login(login_file))
        else:
            from thalweg.job.star.remote import Membership, entrance

            membership = Membership(
                target=str(via),
                name=name,
                token_file=token_file,
                ca=ca,
                cert=cert,
                key=key,
                tls=tls,
                congestion=congestion,
                login_file=login_file,
                own=registry.own_options(option or ()),
                timeout=timeout,
            )
            config = forwarding.near_end(listen, *entrance(membership), timeout=timeout)
        forwarder = _core.Forwarder(wire.encode({**config, **limits}))
        emit(wire.plain(forwarder.listening))
    serving.serve(forwarder, observe, first=None if as_json else forwarder.listening)


def _check(via: str | None, to: str | None) -> None:
    from thalweg.errors import PlanError

    if (via is None) == (to is None):
        raise PlanError(
            "one end has --via, the other --to", "Give --via URL beside the programs, --to HOST:PORT beside the server"
        )


def _line(stream: Any, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()
