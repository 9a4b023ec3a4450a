"""Rounds over shared memory, alternately with rounds over TCP on loopback."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np

from benches.common import MIB, Figure, Spread, note, workers
from thalweg import _core

URLS = {name: f"{name}://127.0.0.1:0" for name in ("shm", "tcp")}


def rounds(size: int, clients: int, repetitions: int, times: float) -> Figure:
    """Measure how many times faster a round is over shared memory."""
    name = f"round of payload:{size // MIB}MiB, {clients} clients, shm against tcp"
    note(name)
    servers = {way: _server(way, size, clients) for way in URLS}
    commands = [["thalweg", servers[way].address, f"{way}-{n}", "1"] for way in URLS for n in range(clients)]
    seconds: dict[str, list[float]] = {way: [] for way in URLS}
    copied = 0
    with closing(_Closing(servers)), workers(commands):
        for server in servers.values():
            server.wait(clients, 60.0)
        for number in range(1, repetitions + 2):
            for way, server in servers.items():
                outcome = json.loads(server.round(number, "{}", None))
                copied += sum(transfer["copied"] for transfer in outcome["transfers"])
                seconds[way].append(outcome["seconds"])
        for server in servers.values():
            server.close("done")
    spreads = {way: Spread.of(each[1:]) for way, each in seconds.items()}
    ratio = spreads["tcp"].median / spreads["shm"].median
    value = ", ".join(f"{way} {spread.text(1e3)} ms" for way, spread in spreads.items())
    details = {**{way: vars(spread) for way, spread in spreads.items()}, "ratio": ratio, "copied": copied}
    reached = ratio >= times and copied == 0
    return Figure(
        name, f"{value}, {ratio:.2f} times, copied {copied}", f"{times} times, nothing copied", reached, details
    )


class _Closing:
    """Close the servers at the end, also after an error."""

    def __init__(self, servers: dict[str, _core.Server]) -> None:
        self.servers = servers

    def close(self) -> None:
        for server in self.servers.values():
            server.close("the bench ends")


def _server(way: str, size: int, clients: int) -> _core.Server:
    arena = _core.Arena(_core.Layout([("payload", "F32", [size // 4])]), shared=way == "shm")
    np.asarray(arena).view(np.float32)[:] = 1.0
    return _core.Server(arena, URLS[way], json.dumps({"expected": clients, "enough": clients}))
