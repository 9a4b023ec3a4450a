"""Attacks every transport with hostile peers (``make attack SECONDS=60``), or runs a soak (``make soak``)."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from tests.hostile import admitted
from tests.hostile.storm import MEMORY, Account, missing, place, running, storm, transports

HOUR: Final = 3600.0
# The share of the time for the attack by admitted members that lie.
LIES: Final = 0.2
# Number of rounds of a soak, and the round with whose memory the last round's is compared.
SOAK: Final = 3000
SETTLED: Final = 100
# By how many bytes the memory of these two rounds may differ: the allocator's variation.
SLACK: Final = 4 << 20
# How many times as long a round may take under attack as before it.
SLOWER: Final = 2.0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _attack(names: list[str], seconds: float, seed: int) -> bool:
    good = True
    for name in names:
        if why := missing(name):
            _say(f"skipped: {why}")
            continue
        share = seconds / len(names)
        account = storm(name, seed, lambda _, passed, share=share: passed < (1 - LIES) * share)  # type: ignore[misc]
        _say(account.line())
        try:
            counts = admitted.run(name, seed, lambda _, passed, share=share: passed < LIES * share)  # type: ignore[misc]
            _say(f"{name}: {counts['tasks']} tasks beside {admitted.LIARS} admitted liars, all means exact")
        except AssertionError as error:
            _say(f"FAILED: {name}: admitted liars: {error}")
            good = False
        for complaint in _complaints(account):
            _say(f"FAILED: {name}: {complaint}")
            good = False
    return good


def _complaints(account: Account) -> list[str]:
    wrong = [fact["round"] for fact in account.rounds if not (fact["exact"] and fact["complete"])]
    complaints = [f"rounds {wrong} have not the exact mean of all"] if wrong else []
    if account.growth > MEMORY:
        complaints.append(f"{account.growth >> 20} MiB of memory; {MEMORY >> 20} are the bound")
    if account.slower > SLOWER:
        complaints.append(f"rounds take {account.slower:.2f} times as long; {SLOWER} are the bound")
    return complaints


def _soak(names: list[str], rounds: int) -> bool:
    good = True
    for name in names:
        if why := missing(name):
            _say(f"skipped: {why}")
            continue
        with place(name) as (url, options), running("job", url, json.dumps(options)) as job:
            job.next()
            job.go()
            facts = [job.next() for _ in range(rounds)]
            job.end()
        settled, last = facts[SETTLED - 1]["rss"], facts[-1]["rss"]
        exact = all(fact["exact"] and fact["complete"] for fact in facts)
        fine = exact and last - settled <= SLACK
        _say(
            f"{'' if fine else 'FAILED: '}{name}: round {SETTLED} with {settled / 2**20:.1f} MiB, "
            f"round {rounds} with {last / 2**20:.1f} MiB{'' if exact else ', and not all rounds exact'}"
        )
        good &= fine
    return good


def main() -> int:
    """Return 0 if all went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("attack", "soak"))
    parser.add_argument("--seconds", type=float, default=HOUR, help="of all transports together")
    parser.add_argument("--rounds", type=int, default=SOAK)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transport", action="append", help="this one alone; may be repeated")
    arguments = parser.parse_args()
    names = arguments.transport or transports()
    if arguments.what == "attack":
        return 0 if _attack(names, arguments.seconds, arguments.seed) else 1
    return 0 if _soak(names, arguments.rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
