"""Measures ``unifl`` with its server in this process: a thousand connections, and the CPU time of each thread."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benches.common import MIB, Figure, Spread, note, workers
from benches.lab import star
from thalweg import _core

PROCESSES: Final = 4
FLOWS: Final = 1000
FLOW_BYTES: Final = 256 << 10
REPEATS: Final = 5
LOSS: Final = 0.01
UPDATE_MIB: Final = 228
# Limit for a receiver's CPU time, in core seconds per gigabit.
MOST: Final = 0.2
# Seconds that a client waits between model and update; and the share of CPU time below which a thread counts as idle.
REST: Final = 2.0
IDLE: Final = 0.02
# Names of the core's threads.
DEVICE: Final = "thalweg-unifl"
SERVER: Final = "thalweg-server"
Outcome = dict[str, Any]


@contextmanager
def masked(size: int, clients: int, rate: int, rest: float = 0.0) -> Iterator[_core.Server]:
    """Yield a server whose clients send with the kernel's Cubic over one link of 40 ms that loses 1 % on the way up.

    ``rest``: the seconds that clients wait between model and update.
    """
    arena = _core.Arena(_core.Layout([("payload", "F32", [size // 4])]))
    np.asarray(arena).view(np.float32)[:] = 1.0
    token = _core.pki_secret()
    config = {
        "token": token,
        "expected": clients,
        "enough": clients,
        "repair": {"resend": False},
        "transport": {"own": {"budget": 0.05}},
    }
    with star({"rate": rate, "delay": 0.02, "loss": LOSS}) as net:
        url = f"unifl://{net.hosts['server']['ipv4']}:0"
        ours = net.inside("server", lambda: _core.Server(arena, url, json.dumps(config)))
        address = ours.address.replace("unifl://", "tcp://")
        each, namespace = clients // min(clients, PROCESSES), net.hosts["client-1"]["namespace"]
        commands = [
            ["thalweg", address, f"process-{n}", str(each), namespace, token, str(rest)] for n in range(clients // each)
        ]
        with workers(commands):
            joined = ours.wait(clients, 120.0)
            if joined != clients:
                raise RuntimeError(f"{joined} of {clients} clients joined")
            yield ours
            ours.close("done")


def updates(outcome: Outcome) -> list[Mapping[str, Any]]:
    """Return the transfers of a round's updates."""
    return [way for way in outcome["transfers"] if way["direction"] == "up"]


def thousand() -> list[Figure]:
    """Measure rounds of a thousand connections over one link."""
    name = f"{FLOWS} masked flows at once, {FLOW_BYTES >> 10} KiB each, 1 Gbit/s, 40 ms, loss {LOSS:.0%}"
    note(name)
    with masked(FLOW_BYTES, FLOWS, 10**9) as server:
        outcomes: list[Outcome] = [json.loads(server.round(number, "{}", None)) for number in range(1, REPEATS + 1)]
    whole = all(len(updates(outcome)) == FLOWS for outcome in outcomes)
    seconds = Spread.of([outcome["seconds"] for outcome in outcomes])
    missing = [sum(way["missing"] for way in updates(outcome)) / FLOWS / FLOW_BYTES for outcome in outcomes]
    value = f"round {seconds.text()} s, {Spread.of(missing).text(100, 2)} % missing"
    return [Figure(name, value, "every update comes", whole, {"seconds": vars(seconds), "missing": missing})]


def threads() -> dict[str, float]:
    """Return the CPU seconds of this process's threads so far, by the threads' names."""
    seconds: dict[str, float] = defaultdict(float)
    for task in Path("/proc/self/task").iterdir():
        nanoseconds = int((task / "schedstat").read_text().split()[0])
        seconds[(task / "comm").read_text().strip()] += nanoseconds / 1e9
    return seconds


def receiver() -> list[Figure]:
    """Measure the CPU time per gigabit of updates that TCP and masking use, and the time that the whole server uses."""
    name = f"{UPDATE_MIB} MiB, Cubic, 700 Mbit/s, 40 ms, loss {LOSS:.0%}"
    note(f"processor time of a masked update of {name}")
    gigabits = UPDATE_MIB * MIB * 8 / 1e9
    spent: list[dict[str, dict[str, float]]] = []
    with masked(UPDATE_MIB * MIB, 1, 700 * 10**6, REST) as server:
        server.round(1, "{}", None)
        for number in range(2, REPEATS + 2):
            began, between, ended = halves(server, number)
            ways = {"down": (began, between), "up": (between, ended)}
            spent.append({way: {thread: (after[thread] - before.get(thread, 0.0)) / gigabits for thread in after}
                          for way, (before, after) in ways.items()})  # fmt: skip
    figures = []
    for what, way, names, most in (
        ("TCP and masking of an update", "up", (DEVICE,), MOST),
        ("the same, and reading, checksums and the mean", "up", (DEVICE, SERVER), None),
        ("sending the model", "down", (DEVICE, SERVER), None),
    ):
        taken = Spread.of([sum(one[way][thread] for thread in names) for one in spent])
        figures.append(Figure(f"processor time of {what}: {name}", f"{taken.text(digits=3)} core s a gigabit",
                              "none" if most is None else f"{most}", None if most is None else taken.median <= most,
                              {"spent": [one[way] for one in spent]}))  # fmt: skip
    return figures


def halves(server: _core.Server, number: int) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Run a round and return the threads' CPU seconds before it, between model and update, and after it."""
    began = before = threads()
    between: dict[str, float] | None = None
    thread = threading.Thread(target=server.round, args=(number, "{}", None))
    thread.start()
    while thread.is_alive():
        time.sleep(REST / 4)
        now = threads()
        busy = now[DEVICE] - before[DEVICE] > IDLE * REST / 4
        # The model has arrived if the thread has worked in this round, but not since the last sample.
        if between is None and not busy and now[DEVICE] - began[DEVICE] > IDLE:
            between = now
        before = now
    thread.join()
    if between is None:
        raise RuntimeError("the device's thread was never idle between model and update")
    return began, between, threads()
