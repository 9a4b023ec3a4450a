"""Measures nodes of a graph: exchanges beside plain TCP and gloo, memory by degree, and many nodes in one process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import pairwise
from typing import Any

from benches.common import FOLDER, MIB, Figure, Spread, note
from benches.neighbour import name
from benches.threads import driven, gathered, iterations

LENET = 359_336  # bytes: 89,834 values
NODES = 16


def exchange(kind: str, url: str, work: tuple[int, int, int], config: str = "{}") -> list[dict[str, Any]]:
    """Run each node in a process and return their results. ``work``: degree, bytes of a model, exchanges."""
    command = [sys.executable, "-m", "benches.neighbour", kind, url]
    numbers = [str(n) for n in (NODES, *work)]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen([*command, str(place), *numbers, config], cwd=FOLDER, stdin=pipe, stdout=pipe, text=True)
        for place in range(NODES)
    ]
    try:
        addresses = [json.loads(process.stdout.readline()) for process in processes if process.stdout]
        for process in processes:
            if process.stdin:
                process.stdin.write(json.dumps(addresses) + "\n")
                process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in processes if process.stdout]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def all_seconds(results: list[dict[str, Any]]) -> list[float]:
    return [seconds for one in results for seconds in one["seconds"]]


def beside_others(turns: int = 3, rounds: int = 30) -> list[Figure]:
    """Exchange LeNet with three neighbours, by turns with plain TCP and NumPy, and with torch.distributed over gloo."""
    note(f"{NODES} processes exchange {LENET} bytes with 3 neighbours, beside plain TCP and gloo")
    kinds = {
        "raw": ("raw", "-", "{}"),
        "gloo": ("gloo", "-", "{}"),
        "tcp": ("thalweg", "tcp://127.0.0.1:0", "{}"),
        "udp": ("thalweg", "udp://127.0.0.1:0", '{"wait": "deadline", "deadline": 1.0}'),
        "shm": ("thalweg", "shm://localhost:0", "{}"),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    last: dict[str, list[dict[str, Any]]] = {}
    for _ in range(turns):
        for kind, (how, url, config) in kinds.items():
            last[kind] = exchange(how, url, (3, LENET, rounds), config)
            seconds[kind] += all_seconds(last[kind])
    spread = {kind: Spread.of(values) for kind, values in seconds.items()}
    gloo = spread["gloo"].median
    figures = []
    for kind, most in (("tcp", 1.0), ("udp", 1.2), ("shm", 0.7)):
        ratio = spread[kind].median / gloo
        used = min(one["used"] for one in last[kind])
        sent = max(one["sent"] for one in last[kind])
        value = f"{spread[kind].text(1e3)} ms, gloo {spread['gloo'].text(1e3)} ms, ratio {ratio:.2f}"
        value += f"; plain TCP {spread['raw'].text(1e3)} ms"
        value += f"; {used:.3f} of the chunks used, {sent:.3f} bytes sent for one of a model"
        details = {
            "seconds": vars(spread[kind]),
            "gloo_seconds": vars(spread["gloo"]),
            "raw_seconds": vars(spread["raw"]),
            "used": used,
            "sent": sent,
        }
        label = f"LeNet, {NODES} processes, 3-regular, {kind}, one exchange"
        figures.append(Figure(label, value, f"{most} times gloo", ratio <= most, details))
    return figures


def memory(size: int = 32 * MIB) -> list[Figure]:
    """Measure the memory that exchanges add to a node's process."""
    figures = []
    for degree in (3, 15):
        note(f"memory of nodes with {degree} neighbours, {size // MIB} MiB a model")
        results = exchange("thalweg", "tcp://127.0.0.1:0", (degree, size, 3))
        taken = [one["more_bytes"] for one in results]
        if None in taken:
            raise RuntimeError("the system does not report the memory of a process")
        most = max(taken)
        # The limit includes the arena: its pages take memory only when the first exchange writes to them.
        limit = 4 * size + 4 * MIB
        label = f"memory of a node, {degree} neighbours, model of {size // MIB} MiB"
        value, limit_text = f"{most / MIB:.0f} MiB", f"{limit // MIB} MiB (4 models + 4 MiB)"
        figures.append(Figure(label, value, limit_text, most <= limit, {"more_bytes": most, "limit": limit}))
    return figures


def soak(url: str = "tcp://127.0.0.1:0", size: int = 64 << 10, rounds: int = 10_000) -> Figure:
    """Check that a node's memory does not grow between the second tenth and the last tenth of ``rounds`` exchanges."""
    note(f"{rounds} exchanges of {NODES} nodes with 3 neighbours, {size >> 10} KiB, {url}")
    config = "{}" if url.startswith("tcp") else '{"wait": "deadline"}'
    results = exchange("thalweg", url, (3, size, rounds), config)
    grown = [one["resident"][-1] - one["resident"][1] for one in results]
    seconds = Spread.of(all_seconds(results))
    value = f"{max(grown) / MIB:.2f} MiB more at the end than at {rounds // 5}; {seconds.text(1e3)} ms an exchange"
    label = f"memory over {rounds} exchanges, {NODES} processes, {url.partition(':')[0]}"
    details = {"resident": [one["resident"] for one in results], "seconds": vars(seconds)}
    return Figure(label, value, "1 MiB", max(grown) <= MIB, details)


def soaks() -> list[Figure]:
    """Check memory over ten thousand exchanges over tcp, and as many over udp."""
    return [soak(), soak("udp://127.0.0.1:0")]


def in_one_process(nodes: int = 256, size: int = 64 << 10, rounds: int = 5) -> Figure:
    """Measure iterations of a ring of nodes, each driven by a thread of this process."""
    label = f"{nodes} nodes in one process, {size >> 10} KiB, ring, one iteration"
    note(label)
    made = gathered(nodes, 2, size, "{}")
    started = time.perf_counter()
    marks = driven([partial(iterations, node, rounds) for node in made])
    for node in made:
        node.core.close("done")
    ends = [started, *(max(mark[number] for mark in marks) for number in range(rounds))]
    seconds = Spread.of([after - before for before, after in pairwise(ends)])
    return Figure(label, f"{seconds.text(1.0, 2)} s", "1 s", seconds.median <= 1.0, {"seconds": vars(seconds)})


def one_slow(turns: int = 3, rounds: int = 40, train: float = 0.05, times: int = 20) -> Figure:
    """Measure how much a node that trains 20 times as long delays the others, which wait until an adaptive deadline."""
    label = f"one node of 8 trains {times} times as long, 3-regular, deadline: an iteration of the others"
    note(label)
    waits: dict[int, list[float]] = {1: [], times: []}
    models_used = 0
    for _ in range(turns):
        for factor, seconds in waits.items():
            made = gathered(8, 3, 64 << 10, '{"wait": "deadline"}')
            over = threading.Event()
            slow, *others = made
            work = [partial(iterations, node, rounds, partial(time.sleep, train)) for node in others]
            beside = threading.Thread(target=iterations, args=(slow, None, partial(over.wait, factor * train)))
            beside.start()
            marks = driven(work)
            over.set()
            # Leave out the first iterations, in which the deadline has not adapted yet.
            seconds += [after - before for mark in marks for before, after in pairwise(mark[rounds // 4 :])]
            if factor == times:
                models_used += sum(name(0) in report["heard"] for node in others for report in node.reports)
            for node in others:
                node.core.close("done")
            beside.join()
            slow.core.close("done")
    alike, beside_slow = Spread.of(waits[1]), Spread.of(waits[times])
    ratio = beside_slow.median / alike.median
    value = f"{beside_slow.text(1e3)} ms, among nodes alike {alike.text(1e3)} ms, ratio {ratio:.2f}"
    value += f"; its models were used {models_used} times"
    details = {"seconds": vars(beside_slow), "alike_seconds": vars(alike), "heard": models_used}
    return Figure(label, value, "2 times", ratio <= 2.0 and models_used > 0, details)


def graph() -> list[Figure]:
    """Measure all figures of nodes on a graph."""
    return [*beside_others(), *memory(), in_one_process(), one_slow()]
