"""Takes a client's link down in the middle of an upload, and measures whether the upload goes on where it was.

There is one client. The first two rounds have no fault, and the second shows how many bytes a round needs on the way
up. In the third round the link goes down when half of these bytes have entered it, and comes back after ``seconds``.
With ``sleeps`` the client's processes are stopped meanwhile (SIGSTOP), as on a laptop that sleeps. With ``moves`` the
client has another address afterwards.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.edge.bench import Bench, Job, measured

# What is in the queue is lost with the link. 64 KiB are 1.6 % of an upload of 4 MiB.
NETWORK: Final = "rate=8mbit,rtt=40ms,queue=64KiB"
HIDDEN: Final = 14_000
LINK: Final = "client-1"
# Seconds that the round may take after the path is back.
SECONDS_AFTER: Final = 120.0
# Seconds that the two rounds before the outage may take.
SECONDS_BEFORE: Final = 150.0


@dataclass
class Measured:
    """What an outage of ``seconds`` led to. Shares are of the bytes that a round without a fault sends up."""

    seconds: float
    goes_on: bool = False
    # Seconds from the return of the path to the end of the round.
    after: float | None = None
    # The share of bytes that the client sent more than once.
    again: float | None = None
    # The share of bytes that reached the server more than once. It lacks bytes that were lost with the link.
    twice: float | None = None
    # The share of bytes that the client had sent when the link went down.
    sent: float | None = None
    # Why there was no outage, if the rounds before it did not end.
    note: str = ""


def job_for(seconds: float) -> Job:
    """Return the job for an outage of so many seconds. Its ``grace`` is longer, so the server waits for the client."""
    whole, grace = SECONDS_BEFORE + seconds + SECONDS_AFTER, 2 * seconds + SECONDS_AFTER
    return Job(rounds=3, clients=1, seconds=whole, grace=grace, hidden=HIDDEN)


class Outage:
    """Causes the outage while a system runs, and measures what follows."""

    def __init__(self, seconds: float, *, sleeps: bool = False, moves: bool = False) -> None:
        """Break the link for ``seconds``."""
        self.measured = Measured(seconds)
        self.sleeps, self.moves = sleeps, moves

    def __call__(self, bench: Bench, over: Callable[[], bool]) -> None:
        """Wait for the third round's upload, and break the link."""
        if not (_until(lambda: _ended(bench, 1), over)):
            self.measured.note = "the first round did not end"
            return
        first = bench.bytes_of(LINK, "ab")
        first_out = bench.bytes_of(LINK, "ab", out=True)
        if not (_until(lambda: _ended(bench, 2), over)):
            self.measured.note = "the second round did not end"
            return
        second = bench.bytes_of(LINK, "ab")
        usual = second - first
        second_out = bench.bytes_of(LINK, "ab", out=True)
        usual_out = second_out - first_out
        _until(lambda: bench.bytes_of(LINK, "ab") - second > usual / 2, over)
        bench.set(LINK, "down=true")
        if self.sleeps:
            bench.signal(LINK, signal.SIGSTOP)
        self.measured.sent = round((bench.bytes_of(LINK, "ab") - second) / usual, 3)
        time.sleep(self.measured.seconds)
        if self.moves:
            move(bench)
        bench.set(LINK, "down=false")
        if self.sleeps:
            bench.signal(LINK, signal.SIGCONT)
        back = time.monotonic()
        self.measured.goes_on = _until(lambda: _ended(bench, 3), lambda: over() and not _ended(bench, 3))
        self.measured.after = round(time.monotonic() - back, 1)
        self.measured.twice = round((bench.bytes_of(LINK, "ab", out=True) - second_out) / usual_out - 1, 3)
        self.measured.again = round((bench.bytes_of(LINK, "ab") - second) / usual - 1, 3)


def move(bench: Bench) -> None:
    """Give the client's host another address. The lab carries packets for two addresses of each host.

    The old address is removed first. Linux removes an address together with all that were added later in its subnet
    (``net.ipv4.conf.*.promote_secondaries``), so in the other order the host would have none.
    """
    host = bench.lab.host(LINK)
    other = host.ipv4.replace("10.77.", "10.76.", 1)
    inside = ["nsenter", f"--net={host.namespace}", "ip", "address"]
    for words in (["del", f"{host.ipv4}/15", "dev", host.device], ["add", f"{other}/15", "dev", host.device]):
        subprocess.run([*inside, *words], check=True)


def _ended(bench: Bench, number: int) -> bool:
    """Return whether round ``number`` has ended."""
    lines = bench.rounds()
    return bool(lines) and lines[-1]["round"] >= number


def _until(condition: Callable[[], bool], over: Callable[[], bool]) -> bool:
    """Wait until the condition is true; return False if the run is ``over`` before."""
    while not condition():
        if over():
            return False
        time.sleep(0.05)
    return True


def outage(system: str, seconds: float, how: Collection[str] = (), keep: Path | None = None) -> dict[str, Any]:
    """Measure one outage; return its row of the results. ``how`` may have ``sleeps`` and ``moves``."""
    fault = Outage(seconds, sleeps="sleeps" in how, moves="moves" in how)
    ended = measured(system, NETWORK, job_for(seconds), fault, keep)
    table = ended.table()
    changed = table["rounds"] >= 3
    fault.measured.goes_on &= changed
    return {
        "system": system,
        "how": sorted(how),
        **vars(fault.measured),
        "rounds": table["rounds"],
        "words": table["words"],
    }


if __name__ == "__main__":
    name, length, *flags = sys.argv[1:]
    print(json.dumps(outage(name, float(length), set(flags))), flush=True)
