"""Tasks compared with rounds of the same bytes, and many tasks at once."""

from __future__ import annotations

import json
import time
from collections import deque

import numpy as np

from benches.common import MIB, Figure, Spread, note, workers
from benches.crowd import PROCESSES, resident
from benches.rounds import server
from thalweg import TaskServer, Tensors


def beside_rounds(size: int, clients: int, repetitions: int) -> list[Figure]:
    """Measure a task for all clients, collected and folded, alternately with a round of the same bytes."""
    note(f"tasks of {size // MIB} MiB to {clients} clients, beside rounds")
    star = server(size, clients)
    seconds: dict[str, list[float]] = {"round": [], "collected": [], "folded": []}
    with TaskServer() as tasks:
        commands = [["thalweg", star.address, f"client-{n}", "1"] for n in range(clients)]
        commands += [["tasks", tasks.address, f"client-{n}", "1"] for n in range(clients)]
        with workers(commands):
            star.wait(clients, 60.0)
            tasks.wait(clients, 60.0)
            for number in range(1, repetitions + 2):
                seconds["round"].append(json.loads(star.round(number, "{}", None))["seconds"])
                for name in ("collected", "folded"):
                    payload = Tensors({"payload": np.full(size // 4, number, np.float32)})
                    started = time.perf_counter()
                    with tasks.send(None, payload, reduce="mean" if name == "folded" else None) as task:
                        _ = task.mean() if name == "folded" else task.replies()
                        seconds[name].append(time.perf_counter() - started)
            star.close("done")
    spread = {name: Spread.of(values[1:]) for name, values in seconds.items()}
    figures = []
    for name, most in (("collected", 1.15), ("folded", 1.05)):
        ratio = spread[name].median / spread["round"].median
        value = f"{spread[name].text(1e3)} ms, a round {spread['round'].text(1e3)} ms, ratio {ratio:.2f}"
        label = f"task of {size // MIB} MiB to {clients} clients and back, {name}"
        details = {"seconds": vars(spread[name]), "round_seconds": vars(spread["round"]), "ratio": ratio}
        figures.append(Figure(label, value, f"at most {most} of a round", ratio <= most, details))
    return figures


def many_open(count: int, size: int, clients: int) -> Figure:
    """Measure many open tasks at once, each to all clients: seconds, and the growth of the server's process.

    Memory that is mapped from files is counted separately, because the kernel takes it back when it needs memory.
    """
    name = f"{count} open tasks of {size >> 10} KiB to {clients} clients"
    note(name)
    budget = 64 * MIB
    with TaskServer(memory=budget) as tasks:
        each = -(-clients // PROCESSES)
        counts = [min(each, clients - n * each) for n in range(PROCESSES)]
        with workers([["tasks", tasks.address, f"process-{n}", str(c)] for n, c in enumerate(counts)]):
            if tasks.wait(clients, 60.0) != clients:
                raise RuntimeError("not all clients joined")
            kinds = ("RssAnon", "RssFile")
            before = {kind: resident(kind) for kind in kinds}
            peak = dict.fromkeys(kinds, 0)
            started = time.perf_counter()
            payload = Tensors({"payload": np.ones(size // 4, np.float32)})
            opened = deque(tasks.send(number, payload) for number in range(count))
            done = 0
            while opened:
                task = opened.popleft()  # dropping the task frees its replies
                done += sum(reply.done for reply in task)
                task.close()
                peak = {kind: max(peak[kind], resident(kind) - before[kind]) for kind in kinds}
            seconds = time.perf_counter() - started
    if done != count * clients:
        raise RuntimeError(f"{done} of {count * clients} results came")
    memory, files = (peak[kind] / MIB for kind in kinds)
    value = (
        f"{seconds:.1f} s, {done / seconds:.0f} results a second; {memory:.0f} MiB more memory in the server, and "
        f"{files:.0f} MiB of files"
    )
    details = {"seconds": seconds, "peak_bytes": peak, "budget": budget}
    return Figure(name, value, f"finishes; results in memory within {budget // MIB} MiB", None, details)


def tasks() -> list[Figure]:
    """Measure all figures of tasks."""
    return [*beside_rounds(8 * MIB, 4, 15), many_open(1000, 64 << 10, 50)]
