"""``thalweg forward --mask``: masked loss for any TCP server."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

import typer

from thalweg.cli import effects
from thalweg.errors import PlanError
from thalweg.ui.output import output

STDOUT: Final = "-"
# The options of `forward` that only masking has; and the options that masking shares with the far end and the near end.
ALONE: Final = frozenset({"holes", "budget", "reliable", "align", "control", "buffer", "idle", "plain"})
SHARED: Final = frozenset({"mask", "listen", "to", "option", "connections", "first_byte", "as_json"})
MOST_CONNECTIONS: Final = 2048

Holes: TypeAlias = Annotated[
    str,
    typer.Option(metavar="PLACE", help="--mask: the hole map: a file, unix:PATH for a socket, - for stdout."),
]
Budget: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1, metavar="SHARE", help="--mask: share of a stream that may be masked; 0.02."),
]
Reliable: TypeAlias = Annotated[
    str, typer.Option(metavar="SIZE", help="--mask: beginning of each connection that is never masked.")
]
Align: TypeAlias = Annotated[
    int,
    typer.Option(min=1, max=4096, help="--mask: widen holes to multiples of so many bytes, counted behind --reliable."),
]
Control: TypeAlias = Annotated[str | None, typer.Option(help="--mask: clients' window: delay, paper, fixed or none.")]
Buffer: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIZE", help="--mask: most of a connection that waits for the server; 32MiB.")
]
Idle: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="--mask: end clients that are silent so long; else never."),
]
Plain: TypeAlias = Annotated[
    bool,
    typer.Option("--plain", help="--mask: be an ordinary TCP proxy where loss cannot be masked; else refuse."),
]


def check(context: typer.Context, *, mask: bool) -> None:
    """Raise PlanError for an option of ``forward`` that was given and has no effect with, or without, ``--mask``."""
    for name in effects.names_given(context):
        if mask and name not in SHARED | ALONE:
            effects.refuse(name, "with --mask")
        if not mask and name in ALONE:
            effects.refuse(name, "without --mask", "Give --mask")


def serve(
    context: typer.Context,
    *,
    listen: str,
    to: str | None,
    holes: str,
    sizes: Mapping[str, str | None],
    own: Mapping[str, object],
    option: Sequence[str],
    connections: int,
    as_json: bool,
    **rest: object,
) -> None:
    """Mask loss in front of the TCP server ``to`` until Ctrl-C, SIGTERM or SIGHUP."""
    from thalweg import _core, wire
    from thalweg.transports import proxying, serving

    def observe(event: str) -> None:
        if not as_json:
            _say(proxying.words(event))
        elif holes != STDOUT or not proxying.is_mapped(event):
            sys.stdout.write(event + "\n")
            sys.stdout.flush()

    with output(as_json=as_json) as emit:
        check(context, mask=True)
        if to is None:
            raise PlanError("--mask needs the server", "Give --to HOST:PORT; :7000 is on this machine")
        if connections > MOST_CONNECTIONS:
            raise PlanError(f"--mask serves at most {MOST_CONNECTIONS} connections", "Give a smaller --connections")
        settings = {"listen": listen, "to": to, "holes": holes, "connections": connections, **rest}
        proxy = _core.Proxy(proxying.configure(sizes=sizes, own=own, option=option, **settings))
        emit(wire.plain(proxy.listening))
    serving.serve(proxy, observe, first=None if as_json else proxy.listening)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
