"""Many light clients: the time of a round, and the memory and CPU time of the server for each client."""

from __future__ import annotations

import json
import time
from pathlib import Path

from benches.common import MIB, Figure, Spread, note, workers
from benches.rounds import server

PROCESSES = 4


def resident(kind: str = "VmRSS") -> int:
    """Return this process's resident bytes: all of them, or only those of a ``kind`` that proc(5) names."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


def crowd(clients: int, rounds: int, size: int = MIB) -> tuple[Spread, int]:
    """Return the seconds of a round with ``clients`` clients, and the growth of the server's process in bytes."""
    before = resident()
    ours = server(size, clients, partial="keep")
    each = clients // PROCESSES
    with workers([["thalweg", ours.address, f"process-{n}", str(each)] for n in range(PROCESSES)]):
        joined = ours.wait(clients, 120.0)
        if joined != clients:
            raise RuntimeError(f"{joined} of {clients} clients joined")
        outcomes = [json.loads(ours.round(number, "{}", None)) for number in range(1, rounds + 1)]
        used = resident() - before
        ours.close("done")
    if not all(outcome["complete"] for outcome in outcomes):
        raise RuntimeError("a round was incomplete")
    return Spread.of([outcome["seconds"] for outcome in outcomes]), used


def many_clients() -> Figure:
    """Compare rounds of 200 clients with rounds of 40, 1 MiB each."""
    name = "200 clients, 1 MiB updates"
    note(name)
    few, used_few = crowd(40, 3)
    many, used_many = crowd(200, 3)
    each = (used_many - used_few) / 160
    value = f"round {many.text(1e3, 0)} ms; with 40 clients {few.text(1e3, 0)} ms; {each / 1024:.0f} KiB more a client"
    details = {"seconds": vars(many), "bytes_each": each, "bytes_40": used_few, "bytes_200": used_many}
    return Figure(name, value, "finishes; at most 1 MiB a client", each < MIB, details)


def crowds() -> list[Figure]:
    """Measure rounds of 64 KiB with 500, 2,000 and 10,000 clients. The cost of each client should not grow."""
    figures = []
    for clients in (500, 2000, 10_000):
        name = f"{clients} clients, 64 KiB updates, {PROCESSES} processes, loopback"
        note(name)
        before = time.process_time()
        seconds, used = crowd(clients, 3, 64 << 10)
        cpu = (time.process_time() - before) / (clients * 3)
        each = seconds.median / clients
        value = (
            f"round {seconds.text(digits=2)} s, {each * 1e6:.0f} us a client; server's CPU {cpu * 1e6:.0f} us a client "
            f"and round, joining included; {used / clients / 1024:.0f} KiB a client"
        )
        details = {"seconds": vars(seconds), "cpu_seconds_each": cpu, "bytes_each": used / clients}
        limit = "10,000 in under 8 s, 100 KiB each; round and CPU a client within 1.5 of 500's"
        figures.append(Figure(name, value, limit, None, details))
    return figures
