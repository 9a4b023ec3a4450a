"""Runs the sweeps of delay, loss, dropout and outages over all systems. Each cell's row is written when it has ended.

A cell is one system with one fault. Cells run beside each other, because they mostly wait. In a row, ``load`` is the
machine's load average before and after the cell, and ``beside`` how many cells were run at the same time.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final

from experiments import measured as origins
from experiments.edge import outage
from experiments.edge.bench import Bench, Job, SystemRun, measured
from thalweg import machine

RATE: Final = "20mbit"
FLOWER: Final = "Flower 1.42"
SYSTEMS: Final = (
    FLOWER,
    "Flower app, tcp",
    "Flower app, grpc",
    "Flower app, ltp",
    "own rounds, tcp",
    "own rounds, quic",
    "own rounds, ltp",
)
# The systems at the scale "reduced", and those of the dropout sweep.
REDUCED: Final = (FLOWER, "Flower app, tcp", "own rounds, tcp", "own rounds, quic")
DROPOUT_SYSTEMS: Final = (FLOWER, "Flower app, tcp", "own rounds, tcp")
# The systems of the outages: own rounds, and apps.
OUTAGE_SYSTEMS: Final = (
    "own rounds, tcp",
    "own rounds, grpc",
    "own rounds, quic",
    "own rounds, ltp",
    "own rounds, udp",
)
OUTAGE_APPS: Final = ("Flower app, tcp", "Flower app, grpc", "Flower app, quic", "Flower app, ltp", FLOWER)
# Delays at which systems are slower than the limit of the delay sweep, and the limit with which they run again.
SLOW: Final = {
    FLOWER: (2.0, 5.0, 10.0),
    "Flower app, grpc": (5.0, 10.0),
    "Flower app, tcp": (10.0,),
    "own rounds, tcp": (10.0,),
    "own rounds, quic": (10.0,),
}
LONG_LIMIT: Final = 1500.0
# In the dropout sweep: seconds for which the same clients have a link, and the number of clients.
DROPOUT_PERIOD: Final = 15.0
DROPOUT_CLIENTS: Final = 10


@dataclass(frozen=True)
class Cell:
    """A system with a fault. ``fault``: seconds of delay one way, share of packets or clients, or seconds of an outage.

    ``seconds`` is the limit of the run; an outage sets its own. ``more`` has the outage's ``sleeps`` or ``moves``.
    """

    sweep: str
    system: str
    fault: float
    seconds: float
    more: tuple[str, ...] = ()

    @property
    def key(self) -> list[object]:
        """The values by which results find the cell."""
        return [self.sweep, self.system, self.fault, *self.more]


def cells(scale: str) -> list[Cell]:
    """Return the cells of a scale: ci, reduced or full."""
    if scale == "ci":
        return [
            Cell("delay", "own rounds, tcp", 0.1, 60),
            Cell("loss", "own rounds, quic", 0.2, 60),
            Cell("outage", "own rounds, tcp", 10, 0),
        ]
    few = scale == "reduced"
    systems, limit = (REDUCED, 420) if few else (SYSTEMS, 240)
    away = OUTAGE_SYSTEMS[:3] if few else (*OUTAGE_SYSTEMS, *OUTAGE_APPS)
    delays = (0.1, 1.0, 5.0) if few else (0.1, 1.0, 2.0, 5.0, 10.0)
    losses = (0.0, 0.2, 0.5) if few else (0.0, 0.2, 0.5, 0.7, 0.8)
    dropouts = (0.0, 0.9) if few else (0.0, 0.5, 0.9)
    return [
        *(Cell("delay", s, x, max(limit, 600 if x > 2 and not few else 0)) for x in delays for s in systems),
        *(Cell("long delay", s, x, LONG_LIMIT) for s, slow in SLOW.items() for x in slow if not few),
        *(Cell("loss", s, x, limit) for x in losses for s in systems),
        *(Cell("outage", s, x, 0) for x in (10.0, 60.0, 360.0) for s in away),
        *(Cell("outage", s, 60.0, 0, (how,)) for how in ("moves", "sleeps") for s in away if s in OUTAGE_SYSTEMS),
        *(Cell("dropout", s, x, limit) for x in dropouts for s in DROPOUT_SYSTEMS),
    ]


class Dropout:
    """In each period takes the links of other clients down, drawn at random. At least one client keeps its link."""

    def __init__(self, share: float, clients: int, seed: int = 0) -> None:
        """Take down the links of this share of the clients."""
        self.draws = random.Random(seed)
        self.clients = [f"client-{number + 1}" for number in range(clients)]
        self.there = max(1, round((1 - share) * clients))

    def __call__(self, bench: Bench, over: Callable[[], bool]) -> None:
        """Wait until a first round with all clients has ended, and then change links in each period."""
        while not over() and not any(line["round"] >= 1 for line in bench.rounds()):
            time.sleep(0.2)
        while not over():
            there = set(self.draws.sample(self.clients, self.there))
            for client in self.clients:
                bench.set(client, "down=false" if client in there else "down=true")
            until = time.monotonic() + DROPOUT_PERIOD
            while time.monotonic() < until and not over():
                time.sleep(0.2)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Measure a cell; return its row."""
    began, before = time.time(), os.getloadavg()[0]
    is_outage = cell.sweep == "outage"
    row: Mapping[str, object] = outage.outage(cell.system, cell.fault, cell.more) if is_outage else _swept(cell).table()
    core = None if cell.system == FLOWER else machine.build().commit
    load = [round(before, 1), round(os.getloadavg()[0], 1)]
    return {"key": cell.key, **row, "limit": cell.seconds, "began": round(began), "load": load, "core": core}


def _swept(cell: Cell) -> SystemRun:
    job = Job(rounds=3, seconds=cell.seconds)
    if cell.sweep in ("delay", "long delay"):
        # On a long path a client needs several round trips to come back after its link has broken.
        return measured(cell.system, f"rate={RATE},delay={cell.fault}s", replace(job, grace=max(10.0, 12 * cell.fault)))
    if cell.sweep == "loss":
        loss = f",loss={100 * cell.fault:g}%" if cell.fault else ""
        return measured(cell.system, f"rate={RATE},rtt=40ms{loss}", replace(job, grace=60.0))
    job = replace(job, rounds=5, clients=DROPOUT_CLIENTS, deadline=30.0)
    return measured(cell.system, f"rate={RATE},rtt=40ms", job, Dropout(cell.fault, DROPOUT_CLIENTS))


def run(
    scale: str,
    file: Path,
    note: Callable[[str], None],
    *,
    beside: int = 4,
    sweeps: Collection[str] = (),
    systems: Collection[str] = (),
) -> None:
    """Run the cells of a scale that ``file`` does not have yet; write each row to it when its cell has ended.

    ``beside``: how many cells run at the same time. ``sweeps`` and ``systems`` choose some of the cells.
    """
    content: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"rows": []}
    content |= {"scale": scale, "commit": origins.checkout()}
    content |= {"command": f"python -m experiments run edge --scale {scale}", "beside": beside}
    known = [row["key"] for row in content["rows"]]
    missing = [c for c in cells(scale) if c.key not in known]
    missing = [c for c in missing if (not sweeps or c.sweep in sweeps) and (not systems or c.system in systems)]
    lock = Lock()

    def one(cell: Cell) -> None:
        try:
            row = run_cell(cell) | {"beside": beside}
        except Exception as error:  # noqa: BLE001 - one cell must not end the others
            note(f"{cell.key}: {type(error).__name__}: {error}")
            return
        with lock:
            content["rows"].append(row)
            part = file.with_suffix(".part")
            part.write_text(json.dumps(content, indent=1) + "\n")
            part.replace(file)
        shown = {key: row[key] for key in ("rounds", "seconds_to_target", "goes_on", "after", "again") if key in row}
        note(f"{cell.key}: {json.dumps(shown)}")

    file.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(beside) as pool:
        list(pool.map(one, missing))


def main() -> None:
    """Run the cells that are named: ``python -m experiments.edge.sweep FILE SCALE BESIDE [SWEEPS [SYSTEMS]]``."""
    file, scale, beside, *chosen = sys.argv[1:]
    sweeps, systems = [[*filter(None, words.split(";"))] for words in [*chosen, "", ""][:2]]
    run(scale, Path(file), lambda text: print(text, flush=True), beside=int(beside), sweeps=sweeps, systems=systems)


if __name__ == "__main__":
    main()
