"""Time until a worker of a tree is ready: forked by its node's template or started as a program, also after a kill."""

from __future__ import annotations

import json
import os
import select
import signal
import statistics
import time
from pathlib import Path
from typing import Any, Final

from benches.common import MIB, Figure, note
from benches.rounds import counters, server
from thalweg import _core
from thalweg.plan import Plan
from thalweg.plan.options import CoreOptions
from thalweg.trees import live

KILLS: Final = 25
SIZE: Final = 8 * MIB
CLIENTS: Final = 4
# Limits in milliseconds: from the request for a worker until that is ready, and from a kill until its successor is
# ready.
START: Final = 5.0
RESUME: Final = 20.0
# Values of tree.start.
WAYS: Final = {"template": "template", "program": "always"}
TIMEOUT: Final = 60.0


def starting() -> list[Figure]:
    """Kill workers of two nodes alternately. One node starts new ones by its template, the other as a program."""
    note(f"start of a worker by template and by program, {KILLS} times each, pool for {CLIENTS} updates of 8 MiB")
    servers: dict[str, _core.Server] = {}
    workers: dict[str, Path] = {}
    lost: dict[str, list[float]] = {way: [] for way in WAYS}
    for way, start in WAYS.items():
        before = _children("self")
        servers[way] = server(SIZE, CLIENTS, **_options(start))
        _until_ready(servers[way], 1)
        (own,) = _children("self") - before
        # The parent of the workers: the node's template, or this process.
        workers[way] = Path(own) if way == "template" else Path("self")
    template = str(workers["template"])
    for number in range(KILLS):
        for way, one in servers.items():
            (worker,) = _children(str(workers[way])) - {template}
            lost[way].append(_kill(int(worker)))
            _until_ready(one, number + 2)
    facts = {way: counters(one) for way, one in servers.items()}
    for one in servers.values():
        one.close("done")
    return [_start(facts), _resume(facts["template"], lost["template"])]


def _options(start: str) -> CoreOptions:
    tree = {"workers": 1, "routes": "node", "start": start}
    return live.options(Plan.of({"aggregation": {"shape": "tree"}, "tree": tree}))


def _children(process: str) -> set[str]:
    """Return the children of a process that run a worker's program."""
    tasks = Path("/proc", process, "task").iterdir()
    children = {child for task in tasks for child in (task / "children").read_text().split()}
    return {child for child in children if b"aggregator.py" in Path("/proc", child, "cmdline").read_bytes()}


def _kill(process: int) -> float:
    """Kill a process and return the seconds until it has ended."""
    descriptor = os.pidfd_open(process)
    try:
        began = time.monotonic()
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [])
        return time.monotonic() - began
    finally:
        os.close(descriptor)


def _until_ready(one: _core.Server, count: int) -> None:
    """Wait until ``count`` workers of a server are ready."""
    deadline = time.monotonic() + TIMEOUT
    while json.loads(one.tree() or "{}")["now"]["ready"] < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"worker {count} was not ready within {TIMEOUT:.0f} s")
        time.sleep(0.002)


def _start(facts: dict[str, Any]) -> Figure:
    times = {way: counts["start_us"] for way, counts in facts.items()}
    forked = times["template"]["p50"] / 1e3
    texts = [f"{way} p50 {one['p50'] / 1e3:.1f} ms, p99 {one['p99'] / 1e3:.1f} ms" for way, one in times.items()]
    return Figure("start of a worker", "; ".join(texts), f"p50 {START:.0f} ms, template", forked <= START, facts)


def _resume(counts: dict[str, Any], lost: list[float]) -> Figure:
    ended, resumed = statistics.median(lost) * 1e3, counts["resume_us"]["p50"] / 1e3
    value = f"p50 {ended + resumed:.1f} ms: {ended:.1f} until it has ended, {resumed:.1f} until another one is ready"
    name = "killed worker's task goes on, before it folds again"
    return Figure(name, value, f"{RESUME:.0f} ms", ended + resumed <= RESUME, {**counts, "gone_seconds": lost})
