"""Runs a plan's rounds by another system, over the same emulated network, and records them as those of thalweg.

The first round does not count, because the system connects in it; the record has ``job.rounds`` rounds after it. Only
whole rounds are known: when the model began to move, and when the server had the mean.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg.bench.system_parties import CHECK_SECONDS, PartyRound, SystemParties
from thalweg.errors import LabError, PlanError, RecordError, RoundError
from thalweg.job.common.session import SERVER, Session, session
from thalweg.plan.bound import bound_of
from thalweg.plan.run_facts import RunFacts
from thalweg.record import RunRecord, tables
from thalweg.ui.phrases import number_of
from thalweg.ui.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from thalweg.bench.systems import System
    from thalweg.outcome import Entry
    from thalweg.plan import Plan
    from thalweg.record.columns import Row
    from thalweg.ui.progress import Progress

#: A mean may differ from the right one by this much, because systems add in different orders.
TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class SystemResult:
    """What a worker prints: the system, the seconds of each round, and the path of the record."""

    system: str
    seconds: Sequence[float]
    record: str


def run(plan: Plan, system: System, progress: Progress) -> SystemResult:
    """Run ``job.rounds`` rounds of a payload by a system. All its processes have ended when it returns or raises.

    Raises PlanError if its program is missing, LabError if the network cannot be emulated at packet level, RoundError
    if a party fails or a mean is wrong, and RecordError.
    """
    size = plan.payload
    if size is None:
        raise PlanError(f"{system.name} moves bytes, and {plan.label} is no payload", "Take one, as payload:8MiB")
    if system.program is None:
        raise PlanError(
            f"{system.name} cannot be started: there is no program {system.command[0]!r}",
            "Install it, or give its path from the folder in which thalweg bench runs",
        )
    with session(plan, plan.members, progress.note) as network:
        if network.layers is not None:
            raise LabError(
                f"the links of {system.name} can be emulated at packet level only: {network.reason}",
                "Run the bench as root, or leave the network out",
            )
        with (
            _recorded(plan, system, network, size) as record,
            tempfile.TemporaryDirectory(prefix="thalweg-bench-") as folder,
        ):
            progress.note(f"record: {record.path}")
            parties = SystemParties(system, network, Path(folder), size=size, rounds=plan.job.rounds + 1)
            seconds = _rounds(plan, parties, network, record, progress)
    return SystemResult(system.name, seconds, str(record.path))


def _rounds(plan: Plan, parties: SystemParties, network: Session, record: RunRecord, progress: Progress) -> list[float]:
    """Run the rounds and return the seconds of each, without the first."""
    made: list[float] = []
    try:
        with parties:
            progress.note(f"starting {parties.system.name}: a server and {number_of(len(network.names), 'client')}")
            parties.start()
            for one in _reported(parties, network, plan.job.rounds + 1):
                _check(parties.system, one, len(network.names))
                if one.round == 1:
                    network.begin(record)
                    network.count_from_now()
                    parties.go_on("first")
                    continue
                parties.look()
                made.append(one.seconds)
                record.append(_entry(one, network, parties.size))
                progress.note(f"round {one.round - 1}/{plan.job.rounds}: {format_seconds(one.seconds)}")
            network.read_counters()
            parties.go_on("last")
    finally:
        for number, name in enumerate(parties.names):
            for line in parties.words(number).splitlines():
                record.log(f"{name}: {line}")
        network.finish(record, parties.usage())
    return made


def _reported(parties: SystemParties, network: Session, count: int) -> Iterator[PartyRound]:
    """Yield the rounds as the server reports them. Raises RoundError if a party fails, LabError if the network does."""
    done = 0
    while done < count:
        rounds = parties.rounds()
        yield from rounds[done:]
        if len(rounds) == done:
            parties.check()
            network.check()
            time.sleep(CHECK_SECONDS)
        done = len(rounds)


def _check(system: System, one: PartyRound, clients: int) -> None:
    """Check the mean: the model's values are the round's number, to which client n adds n."""
    right = one.round + (clients + 1) / 2
    if one.value is None or abs(one.value - right) > TOLERANCE:
        raise RoundError(
            f"round {one.round} of {system.name} has the mean {one.value}, and {right} is correct",
            "Correct its program; None stands for values that differ or lack some",
        )


def _entry(one: PartyRound, network: Session, size: int) -> Entry:
    """Return the journal's entry of a round. Times of transfers are unknown, and what crossed links is in ``links``."""
    names = network.names
    row: Row = {
        "round": one.round - 1,
        "accuracy": None,
        "loss": None,
        "seconds": one.seconds,
        "communication_seconds": None,
        "compute_seconds": None,
        "fedcomm_seconds": None,
        "fedcomm_communication_seconds": None,
        "evaluation_seconds": None,
        "bytes_down": None,
        "bytes_up": None,
        "participants": len(names),
        "expected": len(names),
        "complete": True,
        "fold": None,
        "clients": [],
        "transfers": [
            {
                "client": name,
                "direction": direction,
                "bytes": size,
                "missing": 0,
                "losses": [],
                "congestion_control": network.congestion,
                "complete": True,
            }
            for name in names
            for direction in ("down", "up")
        ],
    }
    return tables.restored(row)


@contextmanager
def _recorded(plan: Plan, system: System, network: Session, size: int) -> Iterator[RunRecord]:
    """Open the record of a run; when the block ends, record how the run ended. Raises RecordError."""
    facts: RunFacts = {
        "address": f"tcp://{network.address(SERVER)}",
        "tls": False,
        "bound": bound_of(plan, plan.url, size, network.spec),
        "update_bytes": size,
        "tensors": 1,
        "system": {"name": system.name, "command": system.command, "options": system.options},
        **network.facts(),
    }
    record = RunRecord.create(plan, facts)
    try:
        yield record
        record.finish("complete")
    except BaseException as error:
        status = "failed" if isinstance(error, Exception) else "interrupted"
        with suppress(RecordError):
            record.log(f"{status}: {error}" if isinstance(error, Exception) else status)
            record.note(reason=str(error) if isinstance(error, Exception) else None)
            record.finish(status)
        raise
