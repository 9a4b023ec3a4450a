"""Measures ltp and udp beside tcp and quic with BBR and Cubic, by turns, on bad paths: jitter, reordering, much loss.

One client receives a model and sends an update over a path that loses packets only on the way up. A run counts as
failed if it has not ended in time. Run it as root: the network is emulated at packet level.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from benches.common import Figure, note
from thalweg.report.numbers import rounds
from thalweg.report.source import read_run

REPEATS: Final = 5
PLAN: Final = """
[job]
clients = 1
rounds = 1
seed = {seed}
[model]
name = "payload:{size}"
[transport]
{transport}
[network]
emulator = "packet"
{network}
"""
BESIDE: Final = "tcp bbr"
WAYS: Final = {
    BESIDE: 'url = "tcp"\ncongestion = "bbr"',
    "ltp": 'url = "ltp"',
    "udp": 'url = "udp"',
    "quic bbr": 'url = "quic"\ncongestion = "bbr"',
    "tcp cubic": 'url = "tcp"\ncongestion = "cubic"',
    "quic cubic": 'url = "quic"\ncongestion = "cubic"',
}
# What ltp and udp are compared with. Such ways have no goal of their own: with Cubic they may fail where much is lost.
COMPARED: Final = ("quic bbr", "tcp cubic", "quic cubic")
# Goals of ltp: a share of the goodput of tcp with BBR; and, if 10 % or more is lost, a share of the bound.
OF_BBR: Final = 0.95
LOSSY: Final = 0.75


@dataclass(frozen=True)
class NetworkPath:
    """A path: the keys of a plan's [network], the size of the model, and the seconds after which a run has failed.

    ``least`` is ltp's goal, as a share of the bound.
    """

    network: str
    size: str
    seconds: float
    least: float | None = None
    # The transports to measure; without tcp there is no comparison.
    ways: tuple[str, ...] = field(default=tuple(WAYS))


PATHS: Final = {
    "20 Mbit/s, 200 ms, jitter 50 ms, order kept": NetworkPath(
        'rate = "20mbit"\nrtt = "200ms"\njitter = "50ms"\nkeep_order = true', "4MiB", 60, 0.8
    ),
    "20 Mbit/s, 200 ms, jitter 50 ms": NetworkPath('rate = "20mbit"\nrtt = "200ms"\njitter = "50ms"', "4MiB", 60),
    "20 Mbit/s, 200 ms, 20 %": NetworkPath('rate = "20mbit"\nrtt = "200ms"\nup = { loss = "20%" }', "4MiB", 60, LOSSY),
    "20 Mbit/s, 400 ms, 40 %": NetworkPath('rate = "20mbit"\nrtt = "400ms"\nup = { loss = "40%" }', "4MiB", 60, 0.6),
    "20 Mbit/s, 400 ms, 70 %": NetworkPath(
        'rate = "20mbit"\nrtt = "400ms"\nup = { loss = "70%" }', "4MiB", 60, ways=("ltp", "udp")
    ),
    "50 Mbit/s, 40 ms, 10 %": NetworkPath('rate = "50mbit"\nrtt = "40ms"\nup = { loss = "10%" }', "8MiB", 60, LOSSY),
    "100 Mbit/s, 40 ms, 1 % overtake": NetworkPath('rate = "100mbit"\nrtt = "40ms"\nreorder = "1%"', "8MiB", 60),
    "100 Mbit/s, 40 ms, bursts, queue of a quarter BDP": NetworkPath(
        'rate = "100mbit"\nrtt = "40ms"\nqueue = "125kB"\nup = { burst = { enter = "0.1%", leave = "10%" } }',
        "8MiB",
        60,
    ),
    "250 Mbit/s, 80 ms, 0.3 %": NetworkPath('rate = "250mbit"\nrtt = "80ms"\nup = { loss = "0.3%" }', "32MiB", 60),
}


def paths(repeats: int = REPEATS) -> list[Figure]:
    """Measure each path: the share of the bound that each transport reaches."""
    return [figure for name, path in PATHS.items() for figure in _figures(name, path, repeats)]


def _figures(name: str, path: NetworkPath, repeats: int) -> list[Figure]:
    shares: dict[str, list[float]] = {way: [] for way in path.ways}
    for repeat in range(repeats):
        for way in path.ways:
            share = _share(way, path, repeat)
            shares[way].append(share)
            note(
                f"{repeat + 1}/{repeats} {name}, {way}: {share:.2f} of the bound" if share else f"{name}, {way}: failed"
            )
    return [_figure(name, way, path, shares) for way in path.ways if way != BESIDE]


def _figure(name: str, way: str, path: NetworkPath, shares: dict[str, list[float]]) -> Figure:
    """Return a transport's figure. A share of 0 is a failed run."""
    ones, beside = shares[way], shares.get(BESIDE)
    reached, limits, kept = median(ones), ["no failure"], min(ones) > 0
    value = f"{reached:.2f} of the bound; {ones.count(0.0)} of {len(ones)} failed"
    if way in COMPARED:
        return Figure(f"{way}, {name}", value, "", None, {"shares": shares})
    if beside is not None:
        other = median(beside)
        value += f"; {BESIDE} {other:.2f}, {beside.count(0.0)} failed"
        limits.append(f"{OF_BBR} of {BESIDE}")
        kept &= reached >= OF_BBR * other
    if path.least is not None and way == "ltp":
        limits.append(f"{path.least} of the bound")
        kept &= reached >= path.least
    return Figure(f"{way}, {name}", value, ", ".join(limits), kept, {"shares": shares})


def _share(way: str, path: NetworkPath, seed: int) -> float:
    """Return the share of the bound that a round's communication reaches; 0 if it does not end in time."""
    text = PLAN.format(seed=seed, size=path.size, transport=WAYS[way], network=path.network)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "plan.toml").write_text(text)
        command = [sys.executable, "-m", "thalweg", "run", "plan.toml", "--json"]
        running = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            said, complaint = running.communicate(timeout=path.seconds)
        except subprocess.TimeoutExpired:
            running.terminate()
            running.communicate()
            return 0.0
        if running.returncode:
            note(complaint.strip().splitlines()[-1] if complaint.strip() else "it said nothing")
            return 0.0
        done = rounds(read_run(Path(folder) / json.loads(said)["record"]))
        return done[0].share_of_bound or 0.0 if done else 0.0
