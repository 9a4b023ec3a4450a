"""RDMA over long paths with the kernel's software driver, in virtual time (FedRDMA section 4).

Results do not depend on the machine or its load, so there are no repetitions. One client receives a model and sends an
update. It needs `make guest` and libibverbs. A packet takes 0.2 ms of real time and more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benches.common import MIB, Figure, note
from thalweg.record.rows import Transfer
from thalweg.report.source import read_run
from thalweg.wire import table_of

RTT: Final = 0.020
GBIT: Final = 1e9
#: The MTU at which packets have 4096 bytes of payload.
MTU: Final = 4200
PIECE: Final = 4 * MIB
DRIVER: Final = "RDMA device"
PLAN: Final = """
[job]
clients = 1
rounds = {rounds}
[model]
name = "payload:{mib}MiB"
[transport]
url = "{transport}"
chunk = {chunk}
{options}
[network]
emulator = "packet"
clock = "virtual"
rtt = "{rtt}ms"
mtu = {mtu}
{network}
"""
#: The rate and queue of a path in which a sender's own link is followed by a slower link with a short queue.
SHORT_BUFFER: Final = 'topology = "bottleneck"\nrate = "10gbit"\nbottleneck = { rate = "5gbit", queue = "512 packets" }'


@dataclass(frozen=True)
class Way:
    """How updates are sent: a transport, its own options as TOML, and the largest chunk."""

    transport: str = "rdma"
    options: str = ""
    chunk: int = PIECE

    @staticmethod
    def mode(name: str, more: str = "") -> Way:
        """Return the way to send with a mode of rdma."""
        return Way(options=f'options = {{ mode = "{name}"{more} }}')


WINDOW: Final = Way.mode("window")
# A piece is a chunk with its header of 64 bytes.
PIECES: Final = Way.mode("fedrdma-e", f", piece = {PIECE + 64}, link_enable = 0")
WHOLE: Final = Way.mode("whole")
CUBIC: Final = Way("tcp", 'congestion = "cubic"')


class RunError(Exception):
    """A job did not end, or did not use RDMA."""


def rdma() -> list[Figure]:
    """Measure all figures, with missed goals and failed jobs."""
    figures = [_large(), *(_at_rate(gbit, mib) for gbit, mib in ((1, 64), (10, 256), (40, 512), (100, 1024)))]
    figures += [_one_at_a_time(gbit) for gbit in (1, 10, 100)]
    return [*figures, _short_buffer(), _loss(), _twice()]


def _large() -> Figure:
    name = "rdma, window, 1 GiB at 10 Gbit/s and 20 ms"
    return _figure(name, WINDOW, 1024, 'rate = "10gbit"', 1.2)


def _at_rate(gbit: int, mib: int) -> Figure:
    most = mib * MIB * 8 / (0.9 * gbit * GBIT) + 3 * RTT
    name = f"rdma, window, {mib} MiB at {gbit} Gbit/s, once the path is known"
    return _figure(name, WINDOW, mib, f'rate = "{gbit}gbit"', most)


def _one_at_a_time(gbit: int, mib: int = 64) -> Figure:
    pieces = mib * MIB // PIECE
    formula = pieces * (RTT + PIECE * 8 / (gbit * GBIT))
    name = f"rdma, fedrdma-e, {pieces} pieces of 4 MiB at {gbit} Gbit/s"
    try:
        took = _last(PIECES, mib, f'rate = "{gbit}gbit"')
    except RunError as error:
        return Figure(name, str(error), "no failure", reached=False)
    off = took / formula - 1
    limit = f"n(RTT + s/B) = {formula:.4f} s, within 2 %"
    return Figure(name, f"{took:.4f} s, {off:+.2%}", limit, abs(off) <= 0.02, {"seconds": took, "formula": formula})


def _short_buffer() -> Figure:
    return _times("64 MiB through a buffer of 512 packets", SHORT_BUFFER, 64, ("whole", WHOLE), 4)


def _loss() -> Figure:
    return _times("32 MiB at 10 Gbit/s, 1 % loss", 'rate = "10gbit"\nloss = "1%"', 32, ("tcp, Cubic", CUBIC), 10)


def _times(what: str, network: str, mib: int, other: tuple[str, Way], least: float) -> Figure:
    """Return the figure that says how many times faster the window is than another way."""
    name = f"rdma, window, {what}, beside {other[0]}"
    try:
        ours, theirs = _last(WINDOW, mib, network, rounds=1), _last(other[1], mib, network, rounds=1)
    except RunError as error:
        return Figure(name, str(error), f"{least:g} times", reached=False)
    value = f"{theirs / ours:.1f} times: {ours:.3f} s, {theirs:.3f} s"
    return Figure(name, value, f"{least:g} times", theirs >= least * ours, {"window": ours, other[0]: theirs})


def _twice() -> Figure:
    name = "rdma, the same job twice, 1 % loss"
    try:
        one, two = (_transfers(WINDOW, 4, 'rate = "1gbit"\nloss = "1%"', 2) for _ in range(2))
    except RunError as error:
        return Figure(name, str(error), "the same times", reached=False)
    same = one == two
    return Figure(
        name,
        "the same" if same else "different",
        "the same times",
        same,
        {"one": [*map(table_of, one)], "two": [*map(table_of, two)]},
    )


def _figure(name: str, way: Way, mib: int, network: str, most: float) -> Figure:
    try:
        took = _last(way, mib, network)
    except RunError as error:
        return Figure(name, str(error), f"{most:.3f} s", reached=False)
    return Figure(name, f"{took:.3f} s", f"{most:.3f} s", took <= most, {"seconds": took})


def _last(way: Way, mib: int, network: str, rounds: int = 2) -> float:
    """Return the seconds of the last round's update, from the first byte that is sent to the last received."""
    return _seconds(_transfers(way, mib, network, rounds)[-1])


def _seconds(transfer: Transfer) -> float:
    if transfer.receive_end is None or transfer.send_start is None:
        raise RunError("the record does not say how long the update took")
    return transfer.receive_end - transfer.send_start


def _transfers(way: Way, mib: int, network: str, rounds: int) -> list[Transfer]:
    """Run a job and return its transfers. Raises RunError."""
    plan = PLAN.format(
        rounds=rounds,
        mib=mib,
        transport=way.transport,
        options=way.options,
        chunk=way.chunk,
        rtt=RTT * 1e3,
        mtu=MTU,
        network=network,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan.toml").write_text(plan)
        command = [sys.executable, "-m", "thalweg", "run", "plan.toml", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RunError(done.stdout.strip() or done.stderr.strip() or "it said nothing")
        record = folder / json.loads(done.stdout)["record"]
        if way.transport == "rdma" and DRIVER not in (record / "log.txt").read_text():
            raise RunError("its links were tcp: see `thalweg doctor`")
        transfers = list(read_run(record).transfers)
    note(f"{way.transport} {way.options}, {mib} MiB, {network!r}: {[round(_seconds(row), 4) for row in transfers]} s")
    return transfers
