"""One node of a measurement: a thalweg node, or a program that does the same by plain TCP or by gloo.

python -m benches.neighbour thalweg|raw|gloo URL PLACE NODES DEGREE BYTES ROUNDS [CONFIG]

It prints its address and reads all addresses as a JSON list. It exchanges a model of BYTES with its neighbours ROUNDS
times. At the end it prints a JSON object with the seconds of each exchange and the memory of its process: the peak and
ten samples.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benches.worker import receive_exactly
from thalweg import _core
from thalweg.machine import peak_rss_bytes

LIMIT = 60.0
# Samples of a process's memory.
SAMPLES = 10


def neighbours(place: int, nodes: int, degree: int) -> list[int]:
    """Return the nearest ``degree`` nodes on a ring. For an odd degree the opposite node is one of them."""
    near = [(place + sign * step) % nodes for step in range(1, degree // 2 + 1) for sign in (-1, 1)]
    return sorted({*near, *([(place + nodes // 2) % nodes] if degree % 2 else [])})


def name(place: int) -> str:
    return f"n{place:03}"


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


def timed(rounds: int, exchange: Callable[[int], int]) -> list[float]:
    """Return the seconds of each exchange after the first. ``exchange`` takes its number and returns the next one."""
    seconds, number = array("d"), 1
    while number <= rounds + 1:
        started = time.perf_counter()
        number = exchange(number)
        seconds.append(time.perf_counter() - started)
    return seconds[1:].tolist()


def thalweg(url: str, config: str, place: int, others: list[int], work: tuple[int, int]) -> dict[str, object]:
    size, rounds = work
    arena = _core.Arena(_core.Layout([("w", "F32", [size // 4])]))
    node = _core.Node(arena, name(place), url, config)
    say(node.address)
    urls = json.loads(sys.stdin.readline())
    node.meet(json.dumps({name(n): urls[n] for n in others}))
    if node.gather(len(others), LIMIT) != len(others):
        raise RuntimeError("not all neighbours are there")
    before = peak_rss_bytes()
    weights = json.dumps({name(n): 1 / (len(others) + 1) for n in others})
    total: Counter[str] = Counter()
    resident: list[int] = []
    every = max(1, rounds // SAMPLES)

    def exchange(number: int) -> int:
        node.begin(number, weights, None)
        report = node.wait(node.ready(number), LIMIT)
        if report is None:
            raise RuntimeError("waited in vain")
        said = json.loads(report)
        total.update({key: said[key] for key in ("bytes_used", "bytes_expected", "bytes_sent")}, iterations=1)
        if number % every == 0:
            resident.append(resident_bytes())
        following: int = said["next"]
        return following

    seconds = timed(rounds, exchange)
    node.close("done")
    used = total["bytes_used"] / total["bytes_expected"]
    sent = total["bytes_sent"] / total["iterations"] / (len(others) * size)
    after = peak_rss_bytes()
    more = None if before is None or after is None else after - before
    return {"seconds": seconds, "used": used, "sent": sent, "more_bytes": more, "resident": resident}


def raw(place: int, others: list[int], size: int, rounds: int) -> dict[str, object]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=len(others))
    say(listener.getsockname()[1])
    ports = json.loads(sys.stdin.readline())
    peers = [socket.create_connection(("127.0.0.1", ports[n])) for n in others if n > place]
    peers += [listener.accept()[0] for n in others if n < place]
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own, weight = np.zeros(size // 4, np.float32), np.float32(1 / (len(others) + 1))
    came = [np.empty_like(own) for _ in peers]
    lock = threading.Lock()

    def exchange(number: int) -> int:
        total = own * weight

        def take(peer: socket.socket, into: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
            receive_exactly(peer, into.data.cast("B"))
            with lock:
                np.add(total, into * weight, out=total)

        threads = [threading.Thread(target=take, args=pair) for pair in zip(peers, came, strict=True)]
        threads += [threading.Thread(target=peer.sendall, args=(own.tobytes(),)) for peer in peers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        own[:] = total
        return number + 1

    return {"seconds": timed(rounds, exchange), "used": 1.0, "sent": 1.0, "more_bytes": 0}


def gloo(place: int, others: list[int], work: tuple[int, int, int]) -> dict[str, object]:
    """Exchange by ``torch.distributed``'s isend and irecv over gloo, and average in PyTorch."""
    import torch
    from torch import distributed

    nodes, size, rounds = work
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        say(chosen.getsockname()[1])
        port = json.loads(sys.stdin.readline())[0]
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=place, world_size=nodes)
    torch.set_num_threads(1)
    own, weight = torch.zeros(size // 4), 1 / (len(others) + 1)
    came = [torch.empty_like(own) for _ in others]

    def exchange(number: int) -> int:
        under_way = [distributed.irecv(into, peer) for into, peer in zip(came, others, strict=True)]
        under_way += [distributed.isend(own, peer) for peer in others]
        for transfer in filter(None, under_way):
            transfer.wait()
        own.mul_(weight)
        for into in came:
            own.add_(into, alpha=weight)
        return number + 1

    return {"seconds": timed(rounds, exchange), "used": 1.0, "sent": 1.0, "more_bytes": 0}


def main() -> None:
    kind, url = sys.argv[1:3]
    place, nodes, degree, size, rounds = map(int, sys.argv[3:8])
    others = neighbours(place, nodes, degree)
    if kind == "raw":
        say(raw(place, others, size, rounds))
    elif kind == "gloo":
        say(gloo(place, others, (nodes, size, rounds)))
    else:
        say(thalweg(url, sys.argv[8], place, others, (size, rounds)))


if __name__ == "__main__":
    main()
