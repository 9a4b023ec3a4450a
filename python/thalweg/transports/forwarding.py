"""``thalweg forward``: the settings for its core, and the text of its events."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from thalweg import wire
from thalweg.errors import PlanError
from thalweg.sections import SecuritySection
from thalweg.transports import links
from thalweg.ui.units import format_bytes
from thalweg.wire import Table

# The address of the near end if only a port is given: loopback, as whoever connects uses the near end's token.
THIS_MACHINE: Final = "127.0.0.1"
# Maximum size of the message of an answer, in bytes; the core refuses a longer one.
MOST_MESSAGE: Final = 1 << 20
# Length of the one attempt to connect that a timeout of 0 allows, in seconds.
ONE_ATTEMPT: Final = 10.0


def host_and_port(option: str, text: str) -> str:
    """Return ``host:port`` from ``host:port``, or from ``:port``, which means this machine. Raises PlanError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or "://" in text:
        raise PlanError(f"{option} is {text!r}", "Write it as host:port, or as :port for this machine")
    return f"{host or THIS_MACHINE}:{port}"


def far_end(
    url: str, to: str, security: SecuritySection, own: Table, congestion: str | None, *, login: links.Login | None
) -> dict[str, object]:
    """Return the core's settings of a far end at ``url`` for the target ``to``.

    Raises PlanError; LinkError if others can reach ``url`` and nothing says who may come.
    """
    trust = links.server_trust(security, url)
    transport = {"tls": trust.tls, "congestion": congestion, "own": own, "login": login}
    return {"listen": url, "to": host_and_port("--to", to), "issuer": trust.issuer, "transport": transport}


def near_end(listen: str, url: str, name: str, options: Table, *, timeout: float) -> dict[str, object]:
    """Return the settings for the core of a near end, to which programs connect. Raises PlanError.

    ``options`` are the client options for the client ``name``. It tries to connect for ``timeout`` seconds.
    """
    transport = dict(wire.part(options, "transport"))
    transport["connect_timeout_ms"] = max(1, round(1000 * (timeout or ONE_ATTEMPT)))
    # Programs' connections do not outlive a broken link, so a near end has no outage to wait for.
    own = {key: value for key, value in options.items() if key != "outage"}
    return {"listen": host_and_port("--listen", listen), "via": url, "name": name, **own, "transport": transport}


def answers(options: Iterable[str], *, grpc: bool, near: bool) -> list[dict[str, str]]:
    """Return the core's settings of methods that a near end answers, each given as ``METHOD`` or ``METHOD=FILE``.

    Raises PlanError.
    """
    methods = [_answer(option) for option in options]
    if methods and not (grpc and near):
        raise PlanError("--answer is of a near end that ends HTTP/2", "Give --via and --grpc with it")
    return methods


def _answer(option: str) -> dict[str, str]:
    method, equals, file = option.partition("=")
    if not re.fullmatch(r"/[^/\s]+/[^/\s]+", method):
        raise PlanError(f"--answer is {option!r}", "Write it as /package.Service/Method, or with =FILE behind it")
    try:
        message = Path(file).read_bytes() if equals else b""
    except OSError as error:
        raise PlanError(
            f"--answer: {file} cannot be read: {error.strerror}", "Name a file that holds the answer's message"
        ) from None
    if len(message) > MOST_MESSAGE:
        raise PlanError(f"--answer: {file} has {format_bytes(len(message))}", "An answer's message has at most 1 MiB")
    return {"method": method, "message": message.hex()}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of an end, as docs/reference/json.md describes them. What its kind does not have is None."""

    event: Literal["listening", "link", "connection", "end", "note", "stopped"]
    listen: str | None = None
    via: str | None = None
    to: str | None = None
    answers: tuple[str, ...] = ()
    peer: str | None = None
    up: bool | None = None
    why: str | None = None
    connection: int | None = None
    program: Annotated[str | None, Field(alias="from")] = None
    sent: int = 0
    received: int = 0
    error: str | None = None
    calls: int | None = None
    answered: int = 0
    unkept: int = 0
    what: str | None = None
    connections: int | None = None


def words(text: str) -> str:
    """Return an event of the core as a line for people."""
    event = wire.decode(Event, text)
    kind = event.event
    if kind == "listening":
        way = f"via {event.via}" if event.to is None else f"to {event.to}"
        return f"listening at {event.listen}, forwarding {way}; Ctrl-C ends it" + _promises(event.answers)
    if kind == "link":
        return f"link with {event.peer}: " + ("up" if event.up else f"down, {event.why}")
    if kind == "connection":
        return f"connection {event.connection} from {event.program}"
    if kind == "note":
        return event.what or ""
    if kind == "stopped":
        return f"ended; connections: {event.connections}"
    bytes_ = f"{format_bytes(event.sent)} sent, {format_bytes(event.received)} received"
    error = "" if event.error is None else f"; reset, {event.error}"
    return f"connection {event.connection} from {event.program}: ended, {bytes_}{_calls(event)}{error}"


def _promises(methods: Iterable[str]) -> str:
    lines = (
        f"\nanswers {method} itself: its caller hears of success before the server has the call" for method in methods
    )
    return "".join(lines)


def _calls(event: Event) -> str:
    """Return the outcome of a connection's calls, if HTTP/2 ends here."""
    if event.calls is None:
        return ""
    text = f", {event.calls} calls"
    if event.answered:
        text += f", {event.answered} of them answered here and {event.unkept} of these not by the server"
    return text
