"""``thalweg unifl proxy``: masked loss for any TCP server."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from thalweg.cli.plans import Options
from thalweg.ui.output import output

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="UniFL's masked loss for other programs (Linux, as root)."
)
EXAMPLES = """\b
Examples:
  thalweg unifl proxy --listen 10.0.0.5:9000 --to :7000 --holes unix:/run/holes.sock
  thalweg unifl proxy --listen :9000 --to 10.0.0.6:7000 --budget 0.01 --align 4 > holes.jsonl
"""


@app.command("proxy", epilog=EXAMPLES)
def proxy(
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients connect; :9000 listens at all addresses.")
    ],
    to: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server; :7000 on this machine.")],
    holes: Annotated[
        str, typer.Option(metavar="PLACE", help="The hole map: a file, unix:PATH for a socket, - for stdout.")
    ] = "-",
    budget: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="SHARE", help="Share of a stream that may be masked; 0.02.")
    ] = None,
    reliable: Annotated[
        str, typer.Option(metavar="SIZE", help="Beginning of each connection that is never masked.")
    ] = "64KiB",
    align: Annotated[
        int, typer.Option(min=1, max=4096, help="Widen holes to multiples of so many bytes, counted behind --reliable.")
    ] = 1,
    control: Annotated[str | None, typer.Option(help="Clients' window: delay, paper, fixed or none.")] = None,
    option: Options = None,
    buffer: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most of a connection that waits for the server; 32MiB.")
    ] = None,
    connections: Annotated[int, typer.Option(min=1, max=2048, help="Most at a time; further ones wait.")] = 256,
    first_byte: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Reset a client that sends nothing for this long.")
    ] = 20.0,
    idle: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="End clients that are silent so long; else never.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Be an ordinary TCP proxy where loss cannot be masked; else refuse.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events as lines of JSON, and nothing else on stdout but the hole map.")
    ] = False,
) -> None:
    """Mask loss in front of any TCP server, until Ctrl-C, SIGTERM or SIGHUP.

    Clients need no change. The server receives each client's stream with zeros in place of lost bytes, and the hole map
    lists these places. The server's own stream is never masked.
    """
    from thalweg import _core, wire
    from thalweg.transports import proxying, serving

    def observe(event: str) -> None:
        if not as_json:
            _say(proxying.words(event))
        elif holes != proxying.STDOUT or not proxying.is_mapped(event):
            sys.stdout.write(event + "\n")
            sys.stdout.flush()

    with output(as_json=as_json) as emit:
        config = proxying.configure(
            sizes={"reliable": reliable, "buffer": buffer},
            own={"budget": budget, "control": control},
            option=option or (),
            listen=listen,
            to=to,
            holes=holes,
            align=align,
            connections=connections,
            first_byte=first_byte,
            idle=idle,
            plain=plain,
        )
        proxy = _core.Proxy(config)
        emit(wire.plain(proxy.listening))
    serving.serve(proxy, observe, first=None if as_json else proxy.listening)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
