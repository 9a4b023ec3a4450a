"""An honest job with a known exact mean, in a process of its own: ``python -m tests.hostile.job URL``.

It prints its address, and starts its clients when it reads a line. It prints a line of JSON for each round, and ends
with its standard input. Client ``i`` sends a constant. Weights and constants are small whole numbers, so the mean is
exact in any order.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from thalweg import _core, wire
from thalweg.sections import SecuritySection
from thalweg.transports.links import local_trust

Tls: TypeAlias = Literal["on", "off"]
CLIENTS: Final = 2
ELEMENTS: Final = 1 << 18
BYTES: Final = 4 * ELEMENTS
# A round that takes longer than this many seconds counts as one that never ends.
DEADLINE: Final = 120.0


def layout() -> _core.Layout:
    """Return the layout of the model: one tensor of a MiB."""
    return _core.Layout([("weight", "F32", [ELEMENTS])])


def expected(number: int) -> float:
    """Return the value of every element of a round's mean."""
    return float(number + 1)


def constant(number: int, place: int) -> float:
    """Return a client's value in a round. Values differ by 2, so that their mean with equal weights is an integer."""
    return float(number + 2 * place)


def rss() -> int:
    """Return this process's resident memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Party:
    """A client that trains by writing its constant, and checks the model that it is given."""

    def __init__(self, url: str, place: int, options: dict[str, Any]) -> None:
        self.arena = _core.Arena(layout())
        self.model = np.asarray(self.arena).view(np.float32)
        self.place, self.wrong = place, 0
        self.client = _core.Client(url, f"client-{place}", json.dumps(options), self.arena)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.client.join()
        while (task := self.client.next()) is not None:
            number = task[0]
            self.wrong += int(not is_all(self.model, expected(number - 1)))
            self.model[:] = constant(number, self.place)
            self.client.submit(number, 1, "{}")


def is_all(values: np.ndarray[Any, Any], value: float) -> bool:
    """Return whether every element has that value, bit for bit."""
    return bool((values.view(np.uint32) == np.float32(value).view(np.uint32)).all())


class Job:
    """A server and its clients. ``more`` are options of both ends' transport; ``tls`` is on or off."""

    def __init__(self, url: str, more: dict[str, Any], tls: Tls = "off") -> None:
        self.arena = _core.Arena(layout())
        self.model = np.asarray(self.arena).view(np.float32)
        self.model[:] = expected(0)
        own, member = (
            {"token": trust.token, "transport": {**more, "tls": wire.values_of(trust.tls)}}
            for trust in local_trust(SecuritySection(tls=tls), url)
        )
        job = {"expected": CLIENTS, "enough": CLIENTS, "deadline": DEADLINE}
        self.server = _core.Server(self.arena, url, json.dumps({**own, **job}))
        self.options = member
        self.parties: list[Party] = []

    def join(self) -> None:
        """Start the clients, and wait until they are there."""
        self.parties = [Party(self.server.address, place, self.options) for place in range(CLIENTS)]
        here = self.server.wait(CLIENTS, DEADLINE)
        if here < CLIENTS:
            raise TimeoutError(f"{here} of {CLIENTS} clients got in; the server says {self.server.notes()}")

    def round(self, number: int) -> dict[str, Any]:
        """Run a round, and return whether its result was right."""
        began = time.perf_counter()
        outcome = json.loads(self.server.round(number, "{}", None))
        seconds = time.perf_counter() - began
        exact = is_all(self.model, expected(number)) and not any(party.wrong for party in self.parties)
        whole = bool(outcome["complete"])
        return {"round": number, "seconds": seconds, "exact": exact, "complete": whole, "rss": rss()}

    def close(self) -> None:
        """End the job."""
        self.server.close("the job is over")
        for party in self.parties:
            party.thread.join(timeout=30)


def say(**facts: object) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(url: str, more: str = "{}", tls: Tls = "off") -> None:
    """Run rounds until the standard input ends."""
    job = Job(url, json.loads(more), tls)
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    try:
        say(address=job.server.address)
        sys.stdin.readline()
        threading.Thread(target=listen, daemon=True).start()
        job.join()
        number, notes = 0, 0
        while not over.is_set():
            number += 1
            fact = job.round(number)
            notes += len(job.server.notes())
            say(**fact, notes=notes)
    finally:
        job.close()


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
