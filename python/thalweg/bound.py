"""The physical lower bound that a round's communication is held against.

On loopback it is what one raw TCP stream reached when the run began; with a throttle it is the bytes divided by
the rate of the links, down and then up; elsewhere it is not known.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from thalweg import links, registry

if TYPE_CHECKING:
    from thalweg.plan import Plan

LOOPBACK: Final = "one raw TCP stream over loopback when the run began (several links together may pass it)"
PROBE_BYTES: Final = 32 << 20
PROBE_SECONDS: Final = 30.0
# In a process of its own: the buffers it needs would count in the server's peak memory.
_PROBE: Final = "import sys; from thalweg import _core; print(_core.probe_loopback(int(sys.argv[1])))"


@dataclass(frozen=True)
class Bound:
    """What the links can carry, and how that is known."""

    source: str
    link_bits_per_second: float | None = None
    total_bytes_per_second: float | None = None

    def seconds(self, bytes_down: int, bytes_up: int, links_used: int) -> float | None:
        """Return the least seconds in which so many bytes can pass on ``links_used`` links, or None if unknown."""
        total = bytes_down + bytes_up
        if self.link_bits_per_second is not None:
            return total * 8 / max(1, links_used) / self.link_bits_per_second
        return None if self.total_bytes_per_second is None else total / self.total_bytes_per_second

    def facts(self) -> dict[str, Any]:
        """Return the bound for the manifest."""
        return asdict(self)


def bound_of(plan: Plan, url: str) -> Bound:
    """Return the bound of a job whose server is at ``url``; measures the loopback where that is the bound."""
    rate = plan.layers.throttle
    if rate is not None:
        return Bound(f"each link is throttled to {rate} bit/s in each direction", link_bits_per_second=rate)
    if not links.is_local(url) or not registry.can(plan.scheme)["remote"]:
        return Bound("not known for this transport or network")
    probe = loopback()
    if probe is None:
        return Bound("the probe of the loopback failed")
    return Bound(
        LOOPBACK,
        total_bytes_per_second=probe["raw"],
    )


def loopback() -> Mapping[str, float] | None:
    """Measure the loopback: ``raw`` and ``thalweg`` in bytes a second, ``round_trip`` in seconds; None on failure."""
    command = [sys.executable, "-c", _PROBE, str(PROBE_BYTES)]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    measured = json.loads(done.stdout)
    return {
        "raw": measured["raw_bytes_per_second"],
        "thalweg": measured["thalweg_bytes_per_second"],
        "round_trip": measured["control_round_trip_seconds"],
    }
