"""Updates over a long path that loses packets: a Cubic client to a kernel's receiver and to ``unifl``, and ``ltp``,
whose both ends are ours; interleaved.

The path has 100 Mbit/s and a round trip of 40 ms; on the way up it loses packets at random, behind its queue. Goodput
is the bytes of an update that came over the time from its first byte to its last at the server, start-up included. The
ceiling is what the link carries of full segments that are not lost: rate x 1448/1500 x (1 - loss). The sender's buffer
is the system's own tuning.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from benches.common import MIB, Figure, Spread, note
from thalweg.record import Record

RATE: Final = 100e6
UPDATE: Final = 24 * MIB
REPEATS: Final = 5
LOSSES: Final = (0.0, 0.01)
# What a plan's [transport] says besides; ltp repairs all that is lost, as nobody closes it early.
OPTIONS: Final = {
    "tcp": 'congestion = "cubic"',
    "unifl": 'congestion = "cubic"\n[transport.options]\nbudget = 0.05',
    "ltp": "",
}
PLAN: Final = """
[job]
clients = 1
rounds = 1
[model]
name = "payload:24MiB"
[transport]
url = "{transport}"
{options}
[repair]
resend = false
[network]
rate = "100mbit"
delay = "20ms"
up = {{ loss = "{loss}%" }}
emulator = "packet"
"""


def update(transport: str, loss: float) -> dict[str, Any]:
    """Send one update; return its transfer as the record has it."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.toml"
        plan.write_text(PLAN.format(transport=transport, options=OPTIONS[transport], loss=loss * 100))
        command = [sys.executable, "-m", "thalweg", "run", "plan.toml", "--json"]
        said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        (entry,) = Record(Path(folder) / json.loads(said)["record"]).entries
    (way,) = (way for way in entry["transfers"] if way["direction"] == "up")
    return dict(way)


def masking() -> list[Figure]:
    """Goodput over the ceiling, of both receivers at each loss rate."""
    shares: dict[tuple[str, float], list[float]] = {}
    missing: dict[tuple[str, float], list[float]] = {}
    for repeat in range(REPEATS):
        for loss in LOSSES:
            ceiling = RATE * 1448 / 1500 * (1 - loss)
            for transport in OPTIONS:
                way = update(transport, loss)
                goodput = way["bytes"] * 8 / (way["receive_end"] - way["receive_start"])
                shares.setdefault((transport, loss), []).append(goodput / ceiling)
                missing.setdefault((transport, loss), []).append(way["missing"] / UPDATE)
                note(f"{repeat + 1}/{REPEATS} {transport} {loss:.0%}: {goodput / 1e6:.1f} Mbit/s")
    figures = []
    for loss in LOSSES:
        kernel, masked, ltp = (shares[transport, loss] for transport in OPTIONS)
        lost = statistics.median(missing["unifl", loss])
        limit, reached = "97 %", statistics.median(masked) >= 0.97
        value = (
            f"{Spread.of(masked).text(100)} % of the ceiling with {lost:.2%} missing, "
            f"a kernel's receiver {Spread.of(kernel).text(100)} %, ltp {Spread.of(ltp).text(100)} %"
        )
        name = f"masked update, Cubic, 100 Mbit/s, 40 ms, loss {loss:.0%}"
        details = {"unifl": masked, "kernel": kernel, "ltp": ltp, "missing": missing["unifl", loss]}
        figures.append(Figure(name, value, limit, reached, details))
    return figures
