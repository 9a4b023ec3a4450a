"""Updates over paths that lose packets, as the benchmarks of loss-tolerant transports send them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benches.common import MIB
from thalweg.report.source import Run, read_run

# Of a packet of 1500 bytes, what 20 bytes of IPv4, 20 of TCP and 12 of its timestamps leave.
PAYLOAD: Final = 1448 / 1500
PLAN: Final = """
[job]
clients = {clients}
rounds = {rounds}
seed = {seed}
[model]
name = "payload:{mib}MiB"
[transport]
url = "{transport}"
{congestion}
[transport.options]
{options}
[repair]
resend = {resend}
[network]
rate = "{megabits}mbit"
delay = {delay}
up = {{ loss = "{loss}%" }}
emulator = "packet"
{shared}
"""


@dataclass(frozen=True)
class Road:
    """A path: bits a second, time one way, and the share of packets lost on the way up, behind its queue."""

    rate: float = 100e6
    delay: str | tuple[str, str] = "20ms"
    loss: float = 0.0
    # With it all clients share a link of so many bits a second to the server.
    shared: float | None = None

    @property
    def ceiling(self) -> float:
        """Bits a second of full segments that are not lost."""
        return self.rate * PAYLOAD * (1 - self.loss)


@dataclass(frozen=True)
class Way:
    """How updates are sent. Without ``congestion`` it is no matter: both ends are ours."""

    transport: str
    congestion: str | None = None
    options: str = ""
    # What is missing at the end is asked for again, until nothing is.
    resend: bool = False


@dataclass(frozen=True)
class Sent:
    """An update that has come: bits a second from its first byte to its last, and the share that is missing."""

    goodput: float
    missing: float
    seconds: float


def send(way: Way, path: Road, mib: int, *, clients: int = 1, rounds: int = 1, seed: int = 0) -> Run:
    """Run a job over the path; return its record."""
    shared = "" if path.shared is None else f'topology = "bottleneck"\nbottleneck = {{ rate = {path.shared:.0f} }}'
    text = PLAN.format(
        clients=clients,
        rounds=rounds,
        seed=seed,
        mib=mib,
        transport=way.transport,
        congestion="" if way.congestion is None else f'congestion = "{way.congestion}"',
        options=way.options,
        resend=json.dumps(way.resend),
        megabits=path.rate / 1e6,
        # A string or a list of them is written in JSON as in TOML.
        delay=json.dumps(path.delay),
        loss=path.loss * 100,
        shared=shared,
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plan.toml").write_text(text)
        command = [sys.executable, "-m", "thalweg", "run", "plan.toml", "--json"]
        said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        return read_run(Path(folder) / json.loads(said)["record"])


def updates(run: Run, mib: int) -> list[Sent]:
    """Return what became of each update of a run, in the order of rounds."""
    return [_sent(way, mib * MIB) for way in run.transfers if way["direction"] == "up"]


def _sent(way: dict[str, Any], size: int) -> Sent:
    seconds = way["receive_end"] - way["receive_start"]
    return Sent(way["bytes"] * 8 / seconds, way["missing"] / size, seconds)
