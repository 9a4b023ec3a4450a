"""The physical lower bound of a round's communication time.

On loopback it follows from the best rate of raw TCP streams, which is measured at the start of the run: one stream for
each client, all at the same time, each of an update's size. With a throttle it is the bytes divided by the rate of the
links, down and then up. On an emulated network it is the time that its links need for all updates
(``thalweg.network.bound``). Elsewhere it is unknown.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from thalweg import wire
from thalweg.transports import links, registry
from thalweg.ui.phrases import exactly
from thalweg.ui.units import format_rate

if TYPE_CHECKING:
    from thalweg.network.spec import Spec
    from thalweg.plan import Plan

LOOPBACK: Final = "raw TCP over loopback when the run began, a stream for each client at once, best of five"
PROBE_BYTES: Final = 32 << 20
PROBE_SECONDS: Final = 30.0
# It runs in a process of its own. Otherwise its buffers would count in the server's peak memory.
_PROBE: Final = "import sys; from thalweg import _core; print(_core.probe_loopback(*map(int, sys.argv[1:])))"


@dataclass(frozen=True)
class Bound:
    """The lower bound, and in ``source`` what it was computed from."""

    source: str
    link_bits_per_second: float | None = None
    total_bytes_per_second: float | None = None
    # The minimum seconds, and the bytes, of a round in which every participant receives and sends the whole update.
    round_seconds: float | None = None
    round_bytes: int | None = None

    def seconds(self, bytes_down: int, bytes_up: int, links_used: int) -> float | None:
        """Return the minimum seconds in which these bytes can cross ``links_used`` links, or None if unknown."""
        total = bytes_down + bytes_up
        if self.round_seconds is not None:
            return self.round_seconds if total == self.round_bytes else None
        if self.link_bits_per_second is not None:
            return total * 8 / max(1, links_used) / self.link_bits_per_second
        return None if self.total_bytes_per_second is None else total / self.total_bytes_per_second


def bound_of(plan: Plan, url: str, update_bytes: int, spec: Spec | None = None) -> Bound:
    """Return the bound of a job whose server is at ``url``. Measures the loopback if the job uses it.

    ``spec`` is the emulated network.
    """
    # It holds at message level too, because the emulating layer counts the headers that packets would have.
    if spec is not None:
        return _emulated(spec, plan, update_bytes)
    rate = plan.layers.throttle
    if rate is not None:
        source = f"each link is throttled to {exactly(format_rate(rate))} in each direction"
        return Bound(source, link_bits_per_second=rate)
    if not links.is_local(url) or not registry.can(plan.scheme).remote:
        return Bound("not known for this transport or network")
    probe = loopback(update_bytes, plan.participants)
    if probe is None:
        return Bound("the probe of the loopback failed")
    return Bound(LOOPBACK, total_bytes_per_second=probe.best_bytes_per_second_together)


def _emulated(spec: Spec, plan: Plan, update_bytes: int) -> Bound:
    from thalweg.network import bound

    can, clients, chunk = registry.can(plan.scheme), plan.participants, plan.transport.chunk
    # Transports that do not use the kernel's TCP send datagrams; those larger than a packet are fragmented.
    fragments = not can.sender_unmodified and min(chunk or 0, can.max_chunk) > spec.mtu
    seconds = bound.seconds(spec, update_bytes, clients, broker=can.broker, fragments=fragments)
    return Bound(bound.SOURCE, round_seconds=seconds, round_bytes=2 * clients * update_bytes)


@dataclass(frozen=True)
class Loopback:
    """Rates of the loopback in bytes a second: of a raw stream, of one for each client at once, and of thalweg.

    The round trip of a control message is in seconds.
    """

    raw_bytes_per_second: float
    best_bytes_per_second_together: float
    thalweg_bytes_per_second: float
    control_round_trip_seconds: float


def loopback(update_bytes: int, clients: int) -> Loopback | None:
    """Measure transfers over loopback, each at most 32 MiB, and at most 16 at once. None if the probe fails."""
    command = [sys.executable, "-c", _PROBE, str(min(update_bytes, PROBE_BYTES)), str(clients)]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return wire.decode(Loopback, done.stdout)
