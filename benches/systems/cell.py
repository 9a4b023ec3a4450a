"""Measures one cell of the table: starts the parties of a system on a path, and times their rounds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypedDict

from typing_extensions import NotRequired

from benches.common import FOLDER
from benches.systems import environments
from benches.systems.groups import Group
from benches.systems.paths import PATHS, Network, bound, network
from benches.systems.registry import ALLREDUCE, STAR, System
from thalweg.bench.system_parties import CONTRACT
from thalweg.lab.inside import command
from thalweg.machine import memory_bytes

#: Seconds between two checks of the parties: their memory, and the lines that they have written.
CHECK_SECONDS: Final = 0.05
#: A run ends when the machine has less memory left than this: the parties do not fit, and the kernel would end one.
LEAST_MEMORY: Final = 1 << 30
#: A result may differ from the correct mean by this much, because systems add in different orders.
TOLERANCE: Final = 1e-3


class PartyLine(TypedDict):
    """What a party reports of a round. ``value`` is that of all values of the result; None if they differ."""

    round: int
    begin: float
    end: float
    value: float | None


class Event(TypedDict):
    """What a fault led to. ``result`` is ``went on``, ``wrong``, ``ended`` or ``hung`` (``events``)."""

    result: str
    seconds: float
    words: NotRequired[str]
    value: NotRequired[float | None]


@dataclass(frozen=True)
class Cell:
    """What is measured: a system, its work, the number of clients, the model's bytes, the path, and the fault."""

    system: str
    work: str
    clients: int
    size: int
    path: str
    event: str | None = None  # the fault: "kill" or "away"

    @property
    def parties(self) -> int:
        """The number of parties; an all-reduce has no server, so all of its parties are clients."""
        return self.clients if self.work == ALLREDUCE else self.clients + 1

    @property
    def key(self) -> str:
        return " | ".join(str(value) for value in asdict(self).values())


@dataclass
class Outcome:
    """The result of one run of a cell. ``seconds`` has the time of each round that counts."""

    seconds: list[float] = field(default_factory=list)
    first_seconds: float | None = None
    failure: str | None = None
    wire_bytes: float | None = None  # in a round
    cpu_seconds: dict[str, float] = field(default_factory=dict)  # in a round, by party
    peak_bytes: dict[str, int] = field(default_factory=dict)
    event: Event | None = None


class Parties:
    """The running parties of a cell, and what they have written."""

    def __init__(self, folder: Path, job: dict[str, Any], net: Network, system: System, stack: ExitStack) -> None:
        self.folder, self.job, self.net, self.system, self._stack = folder, job, net, system, stack
        self.groups: list[Group] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "job.json").write_text(json.dumps(job))
        names = zip(net.addresses, net.names, strict=True)
        (folder / "hosts").write_text(
            "".join(f"{host} {name}\n" for host, name in (("127.0.0.1", "localhost"), *names))
        )

    def start(self, index: int) -> None:
        """Start a party in its host and its control group, to which all processes that it starts belong too."""
        group = Group(str(index))
        # The stack calls these two in reverse order: ``close`` ends all processes of the party, then ``_reap`` waits
        # for the first of them.
        self._stack.callback(self._reap, index)
        self._stack.callback(group.close)
        self.groups.append(group)
        python = (
            sys.executable if self.system.environment is None else str(environments.python(self.system.environment))
        )
        join = "".join(f"echo $$ > {file}; " for file in group.files)
        script = [python, str(self.system.folder / "party.py"), str(self.folder), str(index)]
        inside = command(
            ["sh", "-c", f'{join}exec "$@"', "sh", *script],
            namespace=self.net.hosts[index]["namespace"],
            hosts_file=str(self.folder / "hosts"),
        )
        log = self._stack.enter_context((self.folder / f"{index}.log").open("wb"))
        environment = {
            "PATH": f"{Path(python).parent}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "PYTHONPATH": str(CONTRACT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.system.environ,
        }
        self.processes.append(
            subprocess.Popen(
                ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in environment.items()), *inside],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=FOLDER, start_new_session=True,
            )
        )  # fmt: skip

    def _reap(self, index: int) -> None:
        """Wait for a party's first process. It is ended before, as it may not have joined its control group yet."""
        if index >= len(self.processes):
            return
        process = self.processes[index]
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def lines(self, index: int) -> list[PartyLine]:
        """Return what a party has reported so far. A line that is still being written does not count."""
        path = self.folder / f"{index}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def log(self, index: int) -> str:
        """Return the end of a party's log, without the names of this machine's folders."""
        text = (self.folder / f"{index}.log").read_text(errors="replace").strip()
        for folder in (FOLDER, self.folder, sys.base_prefix):
            text = text.replace(f"{folder}/", "")
        return text[-600:]

    def sample(self) -> None:
        """Sample the parties' memory. Raises RuntimeError if hardly any memory is left."""
        used = sum(group.sample() for group in self.groups)
        left = memory_bytes().get("available")
        if left is not None and left < LEAST_MEMORY:
            raise RuntimeError(f"this machine has too little memory: the parties had {used / 2**30:.1f} GiB")

    def ended_badly(self) -> str | None:
        """Return which party has failed, and how; None if none has."""
        for index, process in enumerate(self.processes):
            if process.poll():
                return f"party {index} ended with {process.returncode}: {self.log(index)}"
        return None


@contextmanager
def started(cell: Cell, system: System, rounds: int, seed: int) -> Iterator[Parties]:
    """Start the parties of a cell, the server first; the clients start when the server is ready."""
    count = cell.parties
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benches-")))
        net = stack.enter_context(network(PATHS[cell.path], cell.work, count - 1, seed))
        job = {
            "work": cell.work, "clients": count - 1, "size": cell.size, "rounds": rounds,
            "addresses": net.addresses, "device": net.device, "options": dict(system.options),
        }  # fmt: skip
        parties = Parties(folder, job, net, system, stack)
        parties.start(0)
        wait(parties, folder / "0.ready", time.monotonic() + system.slack)
        for index in range(1, count):
            parties.start(index)
        yield parties


def wait(parties: Parties, path: Path, until: float) -> None:
    """Wait until a party has made a file. Raises RuntimeError if a party fails or the time is over."""
    while not path.exists():
        parties.sample()
        failure = parties.ended_badly()
        if failure is not None:
            raise RuntimeError(failure)
        if time.monotonic() > until:
            raise RuntimeError(f"no {path.name} in time; party 0 wrote: {parties.log(0)}")
        time.sleep(CHECK_SECONDS)


def reported(parties: Parties, number: int, until: float) -> None:
    """Wait until a round is reported: in a star by the server, otherwise by each party.

    Raises RuntimeError if a party fails or the time is over.
    """
    count = 1 if parties.job["work"] == STAR else len(parties.groups)
    while any(len(parties.lines(index)) < number for index in range(count)):
        parties.sample()
        failure = parties.ended_badly()
        if failure is not None and any(len(parties.lines(index)) < number for index in range(count)):
            raise RuntimeError(failure)
        if time.monotonic() > until:
            done = min(len(parties.lines(index)) for index in range(count))
            raise RuntimeError(f"not over in time, after {done} of {number} rounds; party 0 wrote: {parties.log(0)}")
        time.sleep(CHECK_SECONDS)


def measured(cell: Cell, system: System, rounds: int, seconds: float, seed: int = 1) -> Outcome:
    """Measure a cell: one round that does not count, and then ``rounds`` that do. They may take ``seconds`` in all."""
    outcome = Outcome()
    try:
        with started(cell, system, rounds + 1, seed) as parties:
            _measure(parties, outcome, rounds + 1, seconds + system.slack)
    except RuntimeError as error:
        outcome.failure = str(error)
    return outcome


def _measure(parties: Parties, outcome: Outcome, rounds: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    reported(parties, 1, until)
    net, groups, pid = parties.net, parties.groups, parties.processes[0].pid
    before = net.wire_bytes(pid), [group.cpu_seconds() for group in groups]
    (parties.folder / "first").touch()
    try:
        reported(parties, rounds, until)
    finally:
        parties.sample()
        lines = [parties.lines(index) for index in range(len(groups))]
        outcome.first_seconds, *outcome.seconds = seconds_of(parties.job["work"], lines)
        outcome.peak_bytes = {name: group.peak for name, group in zip(net.names, groups, strict=True)}
    after = net.wire_bytes(pid), [group.cpu_seconds() for group in groups]
    outcome.wire_bytes = (after[0] - before[0]) / (rounds - 1)
    used = zip(net.names, before[1], after[1], strict=True)
    outcome.cpu_seconds = {name: (end - begin) / (rounds - 1) for name, begin, end in used}
    (parties.folder / "last").touch()
    for line in (line for of in lines for line in of):
        right = right_value(parties.job["work"], len(groups), line["round"])
        if line["value"] is None or abs(line["value"] - right) > TOLERANCE:
            raise RuntimeError(f"round {line['round']} has the result {line['value']}, and {right} is correct")


def right_value(work: str, parties: int, number: int) -> float:
    """Return a round's correct result: the mean of the clients' or all parties' updates; in a tree the model itself."""
    if work == STAR:
        return number + parties / 2
    return number + (parties + 1) / 2 if work == ALLREDUCE else number


def seconds_of(work: str, lines: Sequence[Sequence[PartyLine]]) -> list[float]:
    """Return the seconds of each round that all reporting parties have finished.

    A round of a star lasts from the server's begin to its end, an all-reduce from the last party's begin to the last
    party's end, and a tree from the root's begin to the last party's end. All parties read the same monotonic clock.
    """
    if work == STAR:
        return [line["end"] - line["begin"] for line in lines[0]]
    begin = max if work == ALLREDUCE else lambda begins: next(iter(begins))
    return [
        max(line["end"] for line in row) - begin(line["begin"] for line in row) for row in zip(*lines, strict=False)
    ]


def limit(cell: Cell, rounds: int) -> float:
    """Return how many seconds a cell's rounds may take: 60 times the path's bound for each, plus a minute."""
    least = bound(PATHS[cell.path], cell.work, cell.parties, cell.size) or 1.0
    return min(900.0, 60.0 * (1 + (rounds + 1) * least))
