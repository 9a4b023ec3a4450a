"""Measures how a system bears a fault: a client is killed in the middle of a round, or its link is down for 20 s."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from benches.systems.cell import (
    CHECK_SECONDS,
    TOLERANCE,
    Cell,
    Event,
    Outcome,
    Parties,
    limit,
    reported,
    right_value,
    started,
)
from benches.systems.registry import System

#: Seconds for which a link is down.
AWAY: Final = 20.0
#: Seconds for which the parties are watched after the fault.
WATCH: Final = 60.0
KILL: Final = "kill"


def with_event(cell: Cell, system: System, seed: int = 1, watch: float = WATCH) -> Outcome:
    """Run a cell. In the middle of its third round cause the fault, and then watch the parties for ``watch`` seconds.

    For a kill, the scripts get the option ``enough``, so that a round can end without the killed client.
    """
    more = {"enough": cell.clients - 1} if cell.event == KILL else {}
    system = replace(system, options={**system.options, **more})
    outcome = Outcome()
    try:
        with started(cell, system, 4, seed) as parties:
            until = time.monotonic() + limit(cell, 3) + system.slack
            reported(parties, 1, until)
            (parties.folder / "first").touch()
            reported(parties, 2, until)
            last = parties.lines(0)[1]
            outcome.seconds = [last["end"] - last["begin"]]
            _sleep(parties, outcome.seconds[0] / 2)
            outcome.event = _kill(parties, cell, watch) if cell.event == KILL else _away(parties, cell, watch)
    except RuntimeError as error:
        outcome.failure = str(error)
    return outcome


def _sleep(parties: Parties, seconds: float) -> None:
    """Sleep, and sample the parties' memory meanwhile."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        parties.sample()
        time.sleep(min(CHECK_SECONDS, max(0.0, until - time.monotonic())))


def _kill(parties: Parties, cell: Cell, watch: float) -> Event:
    parties.groups[-1].kill()
    return _watched(parties, cell, watch, time.monotonic(), dead=cell.clients)


def _away(parties: Parties, cell: Cell, watch: float) -> Event:
    parties.net.set_link(1, down=True)
    lost = time.monotonic()
    failed: list[str] = []
    while time.monotonic() < lost + AWAY:
        _sleep(parties, CHECK_SECONDS)
        failed = _failures(parties)
        if failed:
            break
    parties.net.set_link(1, down=False)
    if failed:
        return {"result": "ended", "seconds": time.monotonic() - lost, "words": failed[0]}
    return _watched(parties, cell, watch, lost, dead=None)


def _failures(parties: Parties, dead: int | None = None) -> list[str]:
    """Return how parties other than ``dead`` have failed."""
    return [
        f"party {index} ended with {process.returncode}: {parties.log(index)}"
        for index, process in enumerate(parties.processes)
        if index != dead and process.poll()
    ]


def _watched(parties: Parties, cell: Cell, seconds: float, fault: float, dead: int | None) -> Event:
    """Return what became of the third round.

    It ``went on`` to a correct result, or to a ``wrong`` one, and ``seconds`` are those of the round. Or a party failed
    (``ended``), and ``seconds`` are those since ``fault``, the time of the kill or of the link's loss. Or nothing
    happened (``hung``) for ``seconds`` from now on. ``dead`` is the index of the killed party.
    """
    begin = time.monotonic()
    while len(parties.lines(0)) < 3:
        _sleep(parties, CHECK_SECONDS)
        failed = _failures(parties, dead)
        if failed:
            return {"result": "ended", "seconds": time.monotonic() - fault, "words": failed[0]}
        if time.monotonic() - begin > seconds:
            return {"result": "hung", "seconds": seconds}
    line = parties.lines(0)[2]
    right = [right_value(cell.work, len(parties.groups), 3)]
    if dead is not None:
        right.append(3 + sum(range(1, cell.clients)) / (cell.clients - 1))
    good = line["value"] is not None and min(abs(line["value"] - one) for one in right) <= TOLERANCE
    return {"result": "went on" if good else "wrong", "seconds": line["end"] - line["begin"], "value": line["value"]}
