"""``thalweg forward --mask``: the settings for its core, and the text of its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from thalweg import wire
from thalweg.transports import registry, serving
from thalweg.ui.units import format_bytes

STDOUT: Final = "-"
# Events that are also written to the hole map.
MAPPED: Final = ("connection", "end")


def configure(
    *, sizes: Mapping[str, str | None], own: Mapping[str, object], option: Iterable[str], **rest: object
) -> str:
    """Return the core's settings.

    ``sizes`` are texts as ``64KiB``, ``own`` the transport's options that have a name on the command line, ``option``
    texts ``KEY=VALUE`` for the others. What is None is left to the core. Raises PlanError.
    """
    chosen = {**registry.own_options(option), **{key: value for key, value in own.items() if value is not None}}
    values = {**rest, **{key: serving.size(f"--{key}", text) for key, text in sizes.items() if text is not None}}
    return wire.encode({"own": chosen, **{key: value for key, value in values.items() if value is not None}})


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the proxy, as docs/reference/json.md describes them. What its kind does not have is None."""

    event: Literal["listening", "connection", "hole", "end", "stopped"]
    listen: str | None = None
    to: str | None = None
    masks: bool = False
    why: str | None = None
    # The hole map's place, or the number of holes of a connection.
    holes: str | int | None = None
    connection: int | None = None
    client: Annotated[str | None, Field(alias="from")] = None
    local: str | None = None
    bytes: int = 0
    missing: int = 0
    returned: int = 0
    error: str | None = None
    connections: int | None = None


def is_mapped(text: str) -> bool:
    """Return whether an event also goes to the hole map."""
    return wire.decode(Event, text).event in MAPPED


def words(text: str) -> str:
    """Return an event of the core as a line for people."""
    event = wire.decode(Event, text)
    kind = event.event
    if kind == "listening":
        return _listening(event)
    if kind == "stopped":
        return f"ended; connections: {event.connections}"
    who = f"connection {event.connection} from {event.client}"
    if kind == "connection":
        masked = "" if event.masks else ", nothing is masked"
        return f"{who}: to the server as {event.local}{masked}"
    holes = f"{format_bytes(event.missing)} of it in {event.holes} holes"
    error = "" if event.error is None else f"; broken off, {event.error}"
    return f"{who}: {format_bytes(event.bytes)}, {holes}; {format_bytes(event.returned)} back{error}"


def _listening(event: Event) -> str:
    way = f"listening at {event.listen} for {event.to}"
    if not event.masks:
        return f"{way}, as an ordinary TCP proxy: {event.why}"
    place = "standard output" if event.holes == STDOUT else event.holes
    return f"{way}; holes are told on {place}; Ctrl-C ends it"
