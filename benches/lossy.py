"""Sends updates over paths that lose packets, for the benchmarks of loss-tolerant transports."""

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
from thalweg.record.rows import Transfer
from thalweg.report.source import Run, read_run

# A link's rate is averaged over this many samples, 10 ms apart; the share of its limit from which a link counts as
# full.
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
class NetworkPath:
    """A path: bits per second, one-way delay, and the share of packets lost on the way up, before the queue."""

    rate: float = 100e6
    delay: str | tuple[str, str] = "20ms"
    loss: float = 0.0
    # Rate of a link to the server that all clients share, in bits per second; None without one.
    shared: float | None = None
    # Congestion control of all connections, competing ones included. Without it these have the machine's default.
    everybody: str | None = None
    # Buffer of each sender. Default: four bandwidth-delay products, at least 6 MiB.
    send_buffer: str | None = None

    @property
    def ceiling(self) -> float:
        """The most goodput of one sender, in bits per second."""
        return carried([Stage(self.rate, self.loss)]) or math.inf

    @property
    def shared_ceiling(self) -> float:
        """The most goodput of all senders together over their shared link, in bits per second."""
        return carried([Stage(self.shared)]) or math.inf


@dataclass(frozen=True)
class Way:
    """How updates are sent. ``congestion`` is None for transports that have a sender of their own."""

    transport: str
    congestion: str | None = None
    options: str = ""
    # Whether missing ranges are resent until the update is whole.
    resend: bool = False
    # Further keys of the plan's section [repair].
    repair: str = ""


@dataclass(frozen=True)
class Sent:
    """A received update: goodput in bits per second from its first byte to its last, and the share that is missing.

    ``started`` is the time from its first byte until its link carried 90 % of its rate; infinite if it never did.
    """

    goodput: float
    missing: float
    seconds: float
    started: float


def send(
    way: Way, path: NetworkPath, mib: int, *, tensors: int = 1, clients: int = 1, rounds: int = 1, seed: int = 0
) -> Run:
    """Run a job over the path and return its record. An update has ``tensors`` tensors of the same size."""
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
        # A string, or a list of strings, is the same in JSON and TOML.
        delay=json.dumps(path.delay),
        loss=path.loss * 100,
        shared=shared,
        tcp=_table({"congestion": path.everybody, "send_buffer": path.send_buffer}),
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plan.toml").write_text(text)
        command = [sys.executable, "-m", "thalweg", "run", "plan.toml", "--json"]
        output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        return read_run(Path(folder) / json.loads(output)["record"])


def _table(settings: dict[str, str | None]) -> str:
    entries = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if value is not None]
    return f"{{ {', '.join(entries)} }}"


def updates(run: Run, mib: int) -> list[Sent]:
    """Return the received updates of a run, in the order of rounds."""
    return [_sent(run, way, mib * MIB) for way in run.transfers if way.direction == "up"]


def _sent(run: Run, way: Transfer, size: int) -> Sent:
    begin, end, arrived, missing = way.receive_start, way.receive_end, way.bytes, way.missing
    if begin is None or end is None or arrived is None or missing is None:
        raise ValueError(f"the record has no times or bytes of the update of {way.client} in round {way.round}")
    started = _full(run, way.client, begin) - begin
    return Sent(arrived * 8 / (end - begin), missing / size, end - begin, started)


def _full(run: Run, client: str, begin: float) -> float:
    """Return when the client's link first carried 90 % of its rate after ``begin``; infinity if it never did."""
    samples = [line for line in run.samples if (line.link, line.direction) == (client, "ab")]
    for line in samples:
        rate = (
            8 * (line.bytes_out[WINDOW:] - line.bytes_out[:-WINDOW]) / (line.seconds[WINDOW:] - line.seconds[:-WINDOW])
        )
        full = (rate >= FULL * line.rate[WINDOW:]) & (line.seconds[:-WINDOW] >= begin)
        if full.any():
            return float(line.seconds[WINDOW:][full][0])
    return math.inf
