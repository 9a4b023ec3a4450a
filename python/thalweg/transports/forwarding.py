"""``thalweg forward``: what its core is told, and its events in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from thalweg.errors import PlanError
from thalweg.sections import SecuritySection
from thalweg.transports import links
from thalweg.ui.units import format_bytes

# Where programs connect if only a port is named: nobody else may speak through the near end's token.
THIS_MACHINE: Final = "127.0.0.1"


def host_and_port(option: str, text: str) -> str:
    """Return ``host:port`` from ``host:port`` or ``:port``, which is this machine's. Raises PlanError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or "://" in text:
        raise PlanError(f"{option} is {text!r}", "Write it as host:port, or as :port for this machine")
    return f"{host or THIS_MACHINE}:{port}"


def far_end(
    url: str, to: str, security: SecuritySection, own: Mapping[str, object], congestion: str | None
) -> dict[str, Any]:
    """Return the core's settings of a far end at ``url`` for the target ``to``.

    Raises PlanError; LinkError if others can reach ``url`` and nothing says who may come.
    """
    trust = links.server_trust(security, url)
    transport = {"tls": trust.get("tls"), "congestion": congestion, "own": own}
    return {"listen": url, "to": host_and_port("--to", to), "secret": trust.get("secret"), "transport": transport}


def near_end(listen: str, url: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the core's settings of a near end; ``options`` are those of a client of that name. Raises PlanError."""
    return {"listen": host_and_port("--listen", listen), "via": url, "name": name, **options}


def words(event: Mapping[str, Any]) -> str:
    """Return an event as a line for people."""
    kind = event["event"]
    if kind == "listening":
        way = f"to {event['to']}" if "to" in event else f"via {event['via']}"
        return f"listening at {event['listen']}, forwarding {way}; Ctrl-C ends it"
    if kind == "link":
        return f"link with {event['peer']}: " + ("up" if event["up"] else f"down, {event['why']}")
    if kind == "connection":
        return f"connection {event['connection']} from {event['from']}"
    if kind == "note":
        return str(event["what"])
    if kind == "stopped":
        return f"ended; connections: {event['connections']}"
    bytes_ = f"{format_bytes(event['sent'])} sent, {format_bytes(event['received'])} received"
    error = "" if event["error"] is None else f"; reset, {event['error']}"
    return f"connection {event['connection']} from {event['from']}: ended, {bytes_}{error}"
