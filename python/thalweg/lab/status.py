"""The status of a lab, as the core reports it. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thalweg.network.shape import Shape


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of times; None before the first packet."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
    """A direction of a link: its shape now, and its counters, which docs/reference/record.md explains."""

    link: str
    direction: str
    source: str = ""
    target: str = ""
    shape: Shape = field(default_factory=Shape)
    packets_in: int = 0
    bytes_in: int = 0
    packets_out: int = 0
    bytes_out: int = 0
    lost: int = 0
    queue_drops: int = 0
    down_drops: int = 0
    overflow_drops: int = 0
    duplicated: int = 0
    reordered: int = 0
    queue_bytes_max: int = 0
    queue_bytes: int = 0
    queue_packets: int = 0
    delay: Percentiles = Percentiles()
    lateness: Percentiles = Percentiles()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCounters:
    """What the kernel of a host has counted."""

    retransmitted_segments: int | None = None
    spurious_retransmissions: int | None = None
    receive_buffer_drops: int | None = None
    rx_packets: int | None = None
    tx_packets: int | None = None
    tx_dropped: int | None = None
    limiter_drops: int | None = None


@dataclass(frozen=True, slots=True)
class Relay:
    """The process that emulates the links. ``failure`` says why it has ended; ``strays`` are packets for no host."""

    cpu_seconds: float | None = None
    realtime: bool | None = None
    strays: int | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A lab's status. ``elapsed`` is the time since the lab's clock was started; None if it was not."""

    elapsed: float | None = None
    relay: Relay = Relay()
    links: Sequence[LinkStatus] = ()
    hosts: Mapping[str, HostCounters] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notice:
    """A line that the supervisor of an attached lab prints: why the relay failed, or the last status."""

    failed: str | None = None
    status: Status | None = None
