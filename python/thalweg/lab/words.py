"""A lab's links as text for the terminal: direction, whether the link is up, and its shape with units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from thalweg.ui.phrases import shape
from thalweg.ui.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from thalweg.lab.changing import Change
    from thalweg.lab.status import LinkStatus
    from thalweg.network.shape import Shape

# The core's directions, with their names in `thalweg lab set --direction`.
WAYS: Final = {"ab": "up", "ba": "down"}


def way(direction: str) -> str:
    """Return a direction's name for the user: on a client's link up is from client to server."""
    return WAYS.get(direction, direction)


def state(now: Shape) -> str:
    """Return the shape of a direction as text, and whether the link is down."""
    rest = {key: value for key, value in now.table().items() if key != "down"}
    return f"not connected; else {shape(rest)}" if now.down else shape(rest)


def changed(entry: Change) -> str:
    """Return a changed direction in one line."""
    return f"{entry.link} {way(entry.direction)}: {state(entry.shape)}"


def row(link: LinkStatus) -> list[str]:
    """Return a direction's row in the table of a lab's links. ``HEAD`` has the headings."""
    delays = (link.delay.p50, link.delay.p99, link.delay.max)
    dropped = link.queue_drops + link.down_drops + link.overflow_drops
    return [
        f"{link.link} {way(link.direction)}",
        state(link.shape),
        f"{link.packets_in:,}",
        f"{link.lost:,}",
        f"{dropped:,}",
        format_bytes(link.queue_bytes),
        *("-" if delay is None else format_seconds(delay) for delay in delays),
    ]


HEAD: Final = ("link", "what it is like", "packets", "lost", "dropped", "waiting", "delay p50", "p99", "max")
