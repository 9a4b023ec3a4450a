"""``thalweg unifl proxy``: the settings for its core, and its events in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from thalweg.transports import registry, serving
from thalweg.ui.units import format_bytes

STDOUT: Final = "-"
# Events that are also written to the hole map.
MAPPED: Final = ("connection", "end")


def configure(*, sizes: Mapping[str, str | None], own: Mapping[str, Any], option: Iterable[str], **rest: Any) -> str:
    """Return the core's settings.

    ``sizes`` are texts as ``64KiB``, ``own`` the transport's options that have a name on the command line, ``option``
    texts ``KEY=VALUE`` for the others. What is None is left to the core. Raises PlanError.
    """
    chosen = {**registry.own_options(option), **{key: value for key, value in own.items() if value is not None}}
    given = {**rest, **{key: serving.size(f"--{key}", text) for key, text in sizes.items() if text is not None}}
    return json.dumps({"own": chosen, **{key: value for key, value in given.items() if value is not None}})


def words(event: Mapping[str, Any]) -> str:
    """Return an event as a line for people."""
    kind = event["event"]
    if kind == "listening":
        return _listening(event)
    if kind == "stopped":
        return f"ended; connections: {event['connections']}"
    who = f"connection {event['connection']} from {event['from']}"
    if kind == "connection":
        masked = "" if event["masks"] else ", nothing is masked"
        return f"{who}: to the server as {event['local']}{masked}"
    holes = f"{format_bytes(event['missing'])} of it in {event['holes']} holes"
    error = "" if event["error"] is None else f"; broken off, {event['error']}"
    return f"{who}: {format_bytes(event['bytes'])}, {holes}; {format_bytes(event['returned'])} back{error}"


def _listening(event: Mapping[str, Any]) -> str:
    way = f"listening at {event['listen']} for {event['to']}"
    if not event["masks"]:
        return f"{way}, as an ordinary TCP proxy: {event['why']}"
    place = "standard output" if event["holes"] == STDOUT else event["holes"]
    return f"{way}; holes are told on {place}; Ctrl-C ends it"
