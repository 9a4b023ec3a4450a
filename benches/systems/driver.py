"""Measures the cells of the table, the systems by turns. Each run becomes a line of the data set."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from benches.common import Spread, note
from benches.systems import environments
from benches.systems.cell import Cell, Outcome, limit, measured
from benches.systems.dataset import Line, append, now, read
from benches.systems.events import with_event
from benches.systems.paths import PATHS, SYSCTLS
from benches.systems.registry import SYSTEMS, System
from thalweg import _core, machine, wire


def cells(
    systems: Sequence[str],
    *,
    works: Sequence[str],
    clients: Sequence[int],
    sizes: Sequence[int],
    paths: Sequence[str],
    events: Sequence[str | None] = (None,),
) -> Iterator[Cell]:
    """Yield the cells of a matrix. Cells that are compared with each other are neighbours."""
    for work, count, size, path, event in product(works, clients, sizes, paths, events):
        for name in systems:
            system = SYSTEMS[name]
            if not system.unusable and work in system.works and (system.paths is None or path in system.paths):
                yield Cell(name, work, count, size, path, event)


def version_of(system: System) -> tuple[str, bool]:
    """Return the version that runs, and whether it is a debug build, whose times mean little."""
    if system.environment is None:
        info = wire.plain(_core.build_info())
        return f"thalweg {info['version']} at {info['commit']}", bool(info["debug"])
    return f"{system.package} {environments.versions(system.environment).get(system.package or '', 'of the system')}", (
        False
    )


def run(chosen: Sequence[Cell], *, turns: int, rounds: int, path: Path, resume: bool) -> list[Line]:
    """Measure each cell in ``turns`` turns of ``rounds`` rounds, and return the new lines.

    With ``resume``, turns of cells that the data set already has are left out.
    """
    have = {(line.cell, line.turn) for line in read(path)} if resume else set()
    facts = machine.facts()
    here = {"kernel": facts.kernel, **wire.table_of(facts.machine)}
    lines = []
    for turn in range(1, turns + 1):
        for cell in chosen:
            if (cell, turn) in have:
                continue
            line = _one(cell, turn, rounds, here)
            append(path, line)
            lines.append(line)
    return lines


def _one(cell: Cell, turn: int, rounds: int, here: dict[str, object]) -> Line:
    system = SYSTEMS[cell.system]
    began, load, others = now(), os.getloadavg()[0], busy_cores()
    why = system.obstacle()
    if why:
        outcome = Outcome(failure=why)
    elif cell.event is not None:
        outcome = with_event(cell, system, seed=turn)
    else:
        count = min(rounds, system.most_rounds or rounds)
        outcome = measured(cell, system, count, limit(cell, count), seed=turn)
    text = f"{Spread.of(outcome.seconds).text(1, 3)} s" if outcome.seconds else ""
    note(f"turn {turn}: {cell.key}: {text} {outcome.failure or ''} {outcome.event or ''}")
    version, debug = version_of(system)
    # Read after the run, because somebody may lower the priority while it runs.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return Line(cell, turn, began, load, dict(here), version, debug, outcome, nice, congestion(cell), others)


def busy_cores(seconds: float = 1.0) -> float:
    """Return how many cores the programs of this machine use: the mean over the next ``seconds``."""
    before = _used_ticks()
    begin = time.monotonic()
    time.sleep(seconds)
    return (_used_ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begin)


def _used_ticks() -> int:
    """Return the clock ticks that all cores have spent working, the kernel's work included (proc_stat(5))."""
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return user + nice + system + irq + softirq + steal


def congestion(cell: Cell) -> str:
    """Return TCP's congestion control: the one of paths.py on emulated paths, the machine's default on loopback.

    If the machine does not let a namespace choose it, the lab sets it on the routes, and loopback has no route.
    """
    if PATHS[cell.path].emulated:
        return SYSCTLS["net.ipv4.tcp_congestion_control"]
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
