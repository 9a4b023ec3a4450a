"""Each transport: rounds over loopback, the share of the bound over emulated links, memory, and lost datagrams."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benches.common import FOLDER, MIB, Figure, Spread, note
from thalweg.bench import BenchPlan, Matrix
from thalweg.bench.driver import Bench
from thalweg.bench.folder import Folder
from thalweg.bench.show import progress_on_stderr
from thalweg.bench.values import CellNumbers
from thalweg.report.source import read_run
from thalweg.transports import registry
from thalweg.wire import table_of

# Limits in seconds of a round of 8 MiB with 4 clients over loopback.
LIMITS: Final = {"tcp": 0.150, "quic": 0.300, "udp": 0.150, "zmq": 0.150, "mqtt": 0.400, "grpc": 0.400, "amqp": 0.800}
NETWORKS: Final = ("wifi", "4g", "3g")
# Limit of a round's time, as a multiple of its bound.
OVER: Final = 1.10
# Python clients of a transport's protocol, with options that match the transport's defaults. The first is the goal.
PEERS: Final = {
    "zmq": (("pyzmq", "--pattern", "router"), ("pyzmq", "--pattern", "router", "--own")),
    "mqtt": (("paho",),),
    "amqp": (("pika",),),
}


def with_limit() -> list[str]:
    """Return the transports of this build that have a limit."""
    names = [entry.name for entry in registry.transports() if entry.available]
    return [name for name in LIMITS if name in names]


@contextmanager
def benched(
    base: Mapping[str, Any], matrix: Mapping[str, Sequence[Any]], repetitions: int
) -> Iterator[tuple[Folder, Sequence[CellNumbers]]]:
    """Run a matrix and yield its folder and its cells. The folder is removed afterwards."""
    plan = BenchPlan.of({"repetitions": repetitions, "base": base, "matrix": matrix})
    with tempfile.TemporaryDirectory() as place:
        folder = Folder.create(Path(place), "bench", plan)
        results = Bench(folder, Matrix.of(plan)).run(progress_on_stderr())
        yield folder, results.cells


def payload(size: int, rounds: int) -> dict[str, Any]:
    return {"job": {"clients": 4, "rounds": rounds}, "model": {"name": f"payload:{size}"}}


def loopback() -> list[Figure]:
    """Measure the seconds of a round of 8 MiB with 4 clients. All transports take turns."""
    note("rounds of payload:8MiB over loopback, each transport")
    figures = []
    with benched(payload(8 * MIB, 10), {"transport": with_limit()}, 5) as (_, rows):
        for row in rows:
            name = row.settings["transport"]
            label, limit = f"round of payload:8MiB, 4 clients, loopback, {name}", LIMITS[name]
            figures.append(timed(label, row, f"median under {limit * 1e3:.0f} ms", limit))
    return figures


def timed(label: str, row: CellNumbers, asked: str, limit: float) -> Figure:
    """Return the figure of the seconds of a round."""
    if row.round_seconds is None:
        return Figure(label, f"failed: {'; '.join(row.reasons)}", asked, reached=False)
    spread = row.round_seconds
    cpu = " + ".join(f"{kind} {value:.2f}" for kind, value in table_of(row.cpu_seconds).items() if value is not None)
    value = f"{spread.median * 1e3:.1f} ({spread.min * 1e3:.1f}..{spread.max * 1e3:.1f}) ms; CPU s a run: {cpu}"
    return Figure(label, value, asked, spread.median < limit, table_of(spread))


def bounds() -> list[Figure]:
    """Measure communication over emulated links, as a multiple of its bound. All transports take turns."""
    note("payload:2MiB over wifi, 4g and 3g, each transport")
    figures = []
    axes = {"transport": with_limit(), "network": list(NETWORKS)}
    with benched(payload(2 * MIB, 3), axes, 3) as (folder, rows):
        for row in rows:
            label = f"communication over {row.settings['network']}, 4 clients, {row.settings['transport']}"
            share = row.share_of_bound
            if share is None:
                figures.append(Figure(label, f"failed: {'; '.join(row.reasons)}", f"{OVER} of the bound", False))
                continue
            value = f"{1 / share:.3f} of the bound, {row.retransmissions} resent, wire/update {row.wire_ratio:.3f}"
            figures.append(Figure(label, value, f"at most {OVER}", share >= 1 / OVER, {"share": share}))
            if row.settings["transport"] == "udp":
                figures.append(lost(row, folder))
    return figures


def lost(row: CellNumbers, folder: Folder) -> Figure:
    """Return how many packets queues and buffers dropped while udp ran over links that lose nothing."""
    runs = [read_run(folder.path / record) for record in row.records]
    links, parties = [link for run in runs for link in run.links], [party for run in runs for party in run.parties]
    drops = {
        "queue_drops": sum(link.queue_drops or 0 for link in links),
        "overflow_drops": sum(link.overflow_drops or 0 for link in links),
        "receive_buffer_drops": sum(party.receive_buffer_drops or 0 for party in parties),
    }
    label = f"packets dropped over {row.settings['network']}, loss-free, udp"
    return Figure(label, ", ".join(f"{key} {count}" for key, count in drops.items()), "none", not any(drops.values()))


def peers() -> list[Figure]:
    """Compare rounds of 8 MiB with rounds by Python clients of the same protocol, with the same kind of broker."""
    figures = []
    for name, references in PEERS.items():
        note(f"rounds of payload:8MiB, {name} beside {references[0][0]}")
        ours: list[float] = []
        theirs: dict[tuple[str, ...], list[float]] = {reference: [] for reference in references}
        for _ in range(3):
            command = ["thalweg", "run", "--transport", name, "--model", "payload:8MiB", "--rounds", "10", "--json"]
            with tempfile.TemporaryDirectory() as place:
                printed = said([*command, "--record", place])
            ours += [row["seconds"] for row in printed["rounds"]][1:]
            for reference in references:
                theirs[reference] += said([f"benches.clients.{reference[0]}", "--rounds", "10", *reference[1:]])[
                    "seconds"
                ][1:]
        figures += [beside(name, ours, reference, theirs[reference], references[0]) for reference in references]
    return figures


def beside(
    name: str, ours: list[float], reference: tuple[str, ...], theirs: list[float], first: tuple[str, ...]
) -> Figure:
    """Return the figure that compares our rounds with the rounds of a reference."""
    mine, other = Spread.of(ours), Spread.of(theirs)
    ratio = mine.median / other.median
    value = f"{mine.text(1e3)} ms, {' '.join(reference)} {other.text(1e3)} ms, ratio {ratio:.2f}"
    details = {"seconds": vars(mine), "reference_seconds": vars(other)}
    label = f"round of payload:8MiB, 4 clients, loopback, {name} beside {' '.join(reference)}"
    reached = ratio <= 1.0 if reference == first else None
    return Figure(label, value, "never slower", reached, details)


def said(command: Sequence[str]) -> Any:
    """Run a module in a process of its own and return the JSON that it prints."""
    done = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, check=True, cwd=FOLDER)
    return json.loads(done.stdout.splitlines()[-1])


def _peaks(row: CellNumbers) -> dict[str, float]:
    """Return the peak memory in bytes of the server, and of the clients if they are not threads of its process."""
    peaks = {"server": row.peak_rss_bytes.server, "clients": row.peak_rss_bytes.clients}
    return {kind: peak for kind, peak in peaks.items() if peak}


def memory() -> list[Figure]:
    """Compare the peak memory of server and clients with tcp's, for an update of 64 MiB."""
    note("memory of payload:64MiB, each transport")
    figures = []
    with benched(payload(64 * MIB, 3), {"transport": with_limit()}, 3) as (_, rows):
        peaks = {row.settings["transport"]: _peaks(row) for row in rows}
        for name, peak in peaks.items():
            if name == "tcp":
                continue
            over = {kind: (peak[kind] - peaks["tcp"][kind]) / MIB for kind in peak}
            value = ", ".join(
                f"{kind} {peak[kind] / MIB:.0f} MiB ({more:+.0f} of tcp's)" for kind, more in over.items()
            )
            # A transport may buffer a window for each link, but not an update.
            reached = bool(over) and all(more <= 64 for more in over.values())
            figures.append(
                Figure(f"peak memory, payload:64MiB, 4 clients, {name}", value, "64 MiB over tcp's", reached)
            )
    return figures
