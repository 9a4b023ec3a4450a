"""Rounds without training, alternately with a minimal TCP program that moves the same bytes.

The reference has a thread for each client, which sends the model and receives the update into a buffer of its own. It
uses blocking calls, with reads and writes of the same sizes. Then NumPy takes the mean of the updates in place.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from benches.common import MIB, Figure, Spread, note, workers
from benches.worker import receive_exactly
from thalweg import _core, wire

Outcome = dict[str, Any]


class Raw:
    """The reference server."""

    def __init__(self, clients: int, size: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.model = np.ones(size // 4, np.float32)
        self.updates: list[npt.NDArray[np.float32]] = [np.ones(size // 4, np.float32) for _ in range(clients)]
        self.peers: list[socket.socket] = []

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def accept(self) -> None:
        for _ in self.updates:
            peer, _ = self.listener.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peers.append(peer)

    def round(self) -> float:
        """Run one round and return its seconds."""
        started = time.perf_counter()

        def exchange(peer: socket.socket, update: npt.NDArray[np.float32]) -> None:
            peer.sendall(self.model.data.cast("B"))
            receive_exactly(peer, update.data.cast("B"))

        threads = [threading.Thread(target=exchange, args=pair) for pair in zip(self.peers, self.updates, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.copyto(self.model, self.updates[0])
        for update in self.updates[1:]:
            self.model += update
        self.model /= len(self.updates)
        return time.perf_counter() - started

    def stream(self) -> float:
        """Return the bytes per second of one update, received into a buffer whose pages are mapped already."""
        received = self.updates[0].data.cast("B")
        self.peers[0].sendall(self.model.data.cast("B"))
        first = self.peers[0].recv_into(received[:1])
        started = time.perf_counter()
        receive_exactly(self.peers[0], received[first:])
        return (len(received) - first) / (time.perf_counter() - started)

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
        self.listener.close()


def server(size: int, clients: int, **options: Any) -> _core.Server:
    """Return a thalweg server whose model is a block of ``size`` bytes."""
    arena = _core.Arena(_core.Layout([("payload", "F32", [size // 4])]))
    np.asarray(arena).view(np.float32)[:] = 1.0
    config = {"expected": clients, "enough": clients, **options}
    return _core.Server(arena, "tcp://127.0.0.1:0", wire.encode(config))


def counters(one: _core.Server) -> dict[str, Any]:
    """Return the counters of a server's workers, by their names in the manifest's table ``tree``."""
    counts: dict[str, Any] = json.loads(one.tree() or "{}")
    return counts


def interleaved(size: int, clients: int, repetitions: int, **options: Any) -> tuple[list[Outcome], list[float]]:
    """Run rounds of thalweg and the reference alternately. Returns outcomes and seconds, without the first of each."""
    ours, raw = server(size, clients, **options), Raw(clients, size)
    commands = [["thalweg", ours.address, f"client-{n}", "1"] for n in range(clients)]
    commands += [["raw", "127.0.0.1", str(raw.port), str(size)] for _ in range(clients)]
    outcomes: list[Outcome] = []
    seconds: list[float] = []
    with workers(commands):
        raw.accept()
        ours.wait(clients, 60.0)
        for number in range(1, repetitions + 2):
            outcomes.append(json.loads(ours.round(number, "{}", None)))
            seconds.append(raw.round())
        ours.close("done")
        raw.close()
    return outcomes[1:], seconds[1:]


def rounds(size: int, clients: int, repetitions: int, limit: float) -> Figure:
    """Return the figure of a round's seconds."""
    name = f"round of payload:{size // MIB}MiB, {clients} clients, loopback"
    note(name)
    outcomes, raw = interleaved(size, clients, repetitions)
    ours, reference = Spread.of([o["seconds"] for o in outcomes]), Spread.of(raw)
    value = (
        f"{ours.text(1e3)} ms, plain TCP + NumPy {reference.text(1e3)} ms, ratio {ours.median / reference.median:.2f}"
    )
    details = {"seconds": vars(ours), "reference_seconds": vars(reference)}
    return Figure(name, value, f"median under {limit * 1e3:.0f} ms", ours.median < limit, details)


def one_update(size: int, repetitions: int) -> list[Figure]:
    """Compare the goodput of one update, received in place and folded on arrival, with a raw TCP stream."""
    note(f"one update of {size // MIB} MiB, received in place, and received and folded")
    outcomes, streams = update_and_streams(size, repetitions)
    stream = Spread.of(streams)
    figures = []
    for direction, name, limit in (("down", "received in place", 0.85), ("up", "received and folded", 0.7)):
        spans = [t for o in outcomes for t in o["transfers"] if t["direction"] == direction]
        rates = Spread.of([size / (t["receive_end"] - t["send_start"]) for t in spans])
        ratio = rates.median / stream.median
        value = f"{rates.text(1e-9, 2)} GB/s, raw TCP {stream.text(1e-9, 2)} GB/s, ratio {ratio:.2f}"
        details = {"bytes_per_second": vars(rates), "raw_bytes_per_second": vars(stream), "ratio": ratio}
        label = f"one update of {size // MIB} MiB over loopback TCP, {name}"
        figures.append(Figure(label, value, f"{limit} of raw TCP", ratio >= limit, details))
    return figures


def update_and_streams(size: int, repetitions: int) -> tuple[list[Outcome], list[float]]:
    """Run rounds of one client and raw streams alternately. Returns outcomes, and bytes per second of the streams."""
    ours, raw = server(size, 1, partial="keep"), Raw(1, size)
    outcomes: list[Outcome] = []
    rates: list[float] = []
    with workers([["thalweg", ours.address, "client", "1"], ["raw", "127.0.0.1", str(raw.port), str(size)]]):
        raw.accept()
        ours.wait(1, 60.0)
        for number in range(1, repetitions + 2):
            outcomes.append(json.loads(ours.round(number, "{}", None)))
            rates.append(raw.stream())
        ours.close("done")
        raw.close()
    return outcomes[1:], rates[1:]
