"""Updates over paths that lose packets, as the benchmarks of loss-tolerant transports send them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benches.common import MIB
from thalweg.network.bound import Stage, carried
from thalweg.report.source import Row, Run, read_run

# Samples of a link, 10 ms apart, over which its rate is taken; the share of its limit at which it counts as full.
WINDOW: Final = 2
FULL: Final = 0.9
PLAN: Final = """
[job]
clients = {clients}
rounds = {rounds}
seed = {seed}
[model]
name = "payload:{size}"
[transport]
url = "{transport}"
{congestion}
[transport.options]
{options}
[repair]
resend = {resend}
{repair}
[network]
rate = "{megabits}mbit"
delay = {delay}
up = {{ loss = "{loss}%" }}
emulator = "packet"
tcp = {tcp}
{shared}
"""


@dataclass(frozen=True)
class Road:
    """A path: bits a second, time one way, and the share of packets lost on the way up, in front of its queue."""

    rate: float = 100e6
    delay: str | tuple[str, str] = "20ms"
    loss: float = 0.0
    # With it all clients share a link of so many bits a second to the server.
    shared: float | None = None
    # Congestion control of all connections, those of an update's rivals too: a machine's own may be any.
    everybody: str | None = None
    # Of each sender; without it four bandwidth-delay products, 6 MiB at least.
    send_buffer: str | None = None

    @property
    def ceiling(self) -> float:
        """Bits a second of data that one sender can have."""
        return carried([Stage(self.rate, self.loss)]) or math.inf

    @property
    def shared_ceiling(self) -> float:
        """Bits a second of data that all senders together can have of the link that they share."""
        return carried([Stage(self.shared)]) or math.inf


@dataclass(frozen=True)
class Way:
    """How updates are sent. Without ``congestion`` it is no matter: both ends are ours."""

    transport: str
    congestion: str | None = None
    options: str = ""
    # What is missing at the end is asked for again, until nothing is.
    resend: bool = False
    # More of the plan's section.
    repair: str = ""


@dataclass(frozen=True)
class Sent:
    """An update that has come: bits a second from its first byte to its last, and the share that is missing.

    ``started`` is the time from its first byte until its link carried 90 % of its rate; infinite if it never did.
    """

    goodput: float
    missing: float
    seconds: float
    started: float


def send(way: Way, path: Road, mib: int, *, tensors: int = 1, clients: int = 1, rounds: int = 1, seed: int = 0) -> Run:
    """Run a job over the path; return its record. An update has so many tensors of the same size."""
    shared = "" if path.shared is None else f'topology = "bottleneck"\nbottleneck = {{ rate = {path.shared:.0f} }}'
    text = PLAN.format(
        clients=clients,
        rounds=rounds,
        seed=seed,
        size=f"{mib}MiB" if tensors == 1 else f"{tensors}x{mib // tensors}MiB",
        transport=way.transport,
        congestion="" if way.congestion is None else f'congestion = "{way.congestion}"',
        options=way.options,
        resend=json.dumps(way.resend),
        repair=way.repair,
        megabits=path.rate / 1e6,
        # A string or a list of them is written in JSON as in TOML.
        delay=json.dumps(path.delay),
        loss=path.loss * 100,
        shared=shared,
        tcp=_table({"congestion": path.everybody, "send_buffer": path.send_buffer}),
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plan.toml").write_text(text)
        command = [sys.executable, "-m", "thalweg", "run", "plan.toml", "--json"]
        said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        return read_run(Path(folder) / json.loads(said)["record"])


def _table(settings: dict[str, str | None]) -> str:
    found = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None]
    return f"{{ {', '.join(found)} }}"


def updates(run: Run, mib: int) -> list[Sent]:
    """Return what became of each update of a run, in the order of rounds."""
    return [_sent(run, way, mib * MIB) for way in run.transfers if way["direction"] == "up"]


def _sent(run: Run, way: Row, size: int) -> Sent:
    seconds = way["receive_end"] - way["receive_start"]
    started = _full(run, way["client"], way["receive_start"]) - way["receive_start"]
    return Sent(way["bytes"] * 8 / seconds, way["missing"] / size, seconds, started)


def _full(run: Run, client: str, begin: float) -> float:
    """Return when the client's link had carried 90 % of its rate for a while, from ``begin`` on."""
    found = [line for line in run.samples if (line.link, line.direction) == (client, "ab")]
    for line in found:
        rate = (
            8 * (line.bytes_out[WINDOW:] - line.bytes_out[:-WINDOW]) / (line.seconds[WINDOW:] - line.seconds[:-WINDOW])
        )
        full = (rate >= FULL * line.rate[WINDOW:]) & (line.seconds[:-WINDOW] >= begin)
        if full.any():
            return float(line.seconds[WINDOW:][full][0])
    return math.inf
