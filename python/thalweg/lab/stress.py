"""Puts load on parties during a run: on CPUs by stress-ng (FedComm section IV.B.1a), on links by a flood (IV.B.1b)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from thalweg import wire
from thalweg.errors import LabError, PlanError
from thalweg.lab import inside
from thalweg.lab.flood import Carried
from thalweg.machine.grace import within
from thalweg.sections.network import NODES
from thalweg.wire import table_of

if TYPE_CHECKING:
    from thalweg.sections.network import StressSection

PROGRAM: Final = "stress-ng"
METHOD: Final = "matrixprod"
BEGIN_SECONDS: Final = 20.0
END_SECONDS: Final = 10.0
# What stress-ng prints when its workers begin.
WORKING: Final = "dispatching hogs"
# Matches "[pid] cpu bogo-ops real user system ops/s of real time ops/s of CPU time". The prefix depends on the version.
_METRICS: Final = re.compile(r"\]\s+cpu((?:\s+[0-9.]+){6})")


class PartyPlaces(Protocol):
    """Where a run's parties are: their namespaces and addresses in a lab, if there is one, and their cgroups."""

    def namespace(self, party: str) -> str | None: ...
    def address(self, party: str) -> str: ...
    def cgroup(self, party: str) -> str | None: ...


class Stressor:
    """A running stress-ng. ``working`` is set once it loads the CPU, or has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.working = threading.Event()
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def end(self) -> str:
        """Wait until it ends after its SIGINT, kill it if it does not, and return its output."""
        try:
            self.process.wait(within(END_SECONDS))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        return "".join(self._lines)

    def _read(self) -> None:
        if self.process.stdout is None:
            return
        with self.process.stdout as lines:
            for line in lines:
                self._lines.append(line)
                if WORKING in line:
                    self.working.set()
        self.working.set()


@dataclass(frozen=True, slots=True)
class Flows:
    """What the flood prints at its end."""

    flows: tuple[Carried, ...]


# The measured load of a party: one table of facts for its CPU, and one for its network.
Load: TypeAlias = dict[str, dict[str, object]]


@dataclass
class Stress:
    """The load that a plan asks for. ``results`` has the measured load of each party after ``stop``."""

    section: StressSection
    clients: Sequence[str]
    place: PartyPlaces
    results: dict[str, Load] = field(default_factory=dict)
    _cpu: dict[str, Stressor] = field(default_factory=dict)
    _flood: subprocess.Popen[str] | None = None

    @property
    def parties(self) -> list[str]:
        """The parties under stress."""
        return parties_of(self.section, self.clients)

    def check(self, *, emulated: bool) -> None:
        """Raise LabError or PlanError if this machine or this run cannot have the load."""
        if self.section.cpu is not None and shutil.which(PROGRAM) is None:
            raise LabError(
                f"{PROGRAM} is not installed, and stress.cpu needs it",
                f"Install it (on Debian: apt install {PROGRAM}), or remove stress.cpu",
            )
        if self.section.network is not None and not emulated:
            raise PlanError(
                "stress.network floods emulated links, and there are none",
                "Give a [network] and start it as root, or remove stress.network",
            )

    def start(self) -> None:
        """Start the load, and wait until it has begun. Raises LabError."""
        if self.section.cpu is not None:
            for party in self.parties:
                self._cpu[party] = self._stress_cpu(party, self.section.cpu)
            for stressor in self._cpu.values():
                stressor.working.wait(BEGIN_SECONDS)
        if self.section.network is not None:
            self._flood = self._stress_network(self.section.network)

    def stop(self) -> dict[str, Load]:
        """End the load and return each party's measured load. Idempotent."""
        for stressor in self._cpu.values():
            stressor.process.send_signal(signal.SIGINT)
        for party, stressor in self._cpu.items():
            self.results.setdefault(party, {})["cpu"] = {
                "percent": self.section.cpu,
                "method": METHOD,
                **metrics(stressor.end()),
            }
        self._cpu = {}
        if self._flood is not None:
            self._keep_flows(_last_words(self._flood))
            self._flood = None
        return self.results

    def _stress_cpu(self, party: str, percent: float) -> Stressor:
        load = str(max(1, round(percent)))
        words = [PROGRAM, "--cpu", "1", "--cpu-load", load, "--cpu-method", METHOD, "--timeout", "0", "--metrics-brief"]
        command = inside.command(
            words, namespace=self.place.namespace(party), cgroup=self.place.cgroup(party), parent=os.getpid()
        )
        return Stressor(command)

    def _stress_network(self, rate: int) -> subprocess.Popen[str]:
        pairs = [
            {"source": self._end(source), "target": self._end(target)}
            for source, target in pairs_of(self.section, self.clients)
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "thalweg.lab.flood"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        place = inside.ProcessPlace(parent=os.getpid(), cgroup=self.place.cgroup(""))
        order = {"pairs": pairs, "bits_per_second": rate, "place": place}
        if process.stdin is None or process.stdout is None:
            raise LabError("the flood has no pipes", "Start again")
        with suppress(BrokenPipeError):
            process.stdin.write(wire.encode(order) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if "ready" not in line:
            process.kill()
            process.communicate()
            raise LabError(f"the network's stress did not begin: {line.strip() or 'it ended'}", "Start again")
        return process

    def _end(self, party: str) -> dict[str, str | None]:
        return {"name": party, "namespace": self.place.namespace(party), "address": self.place.address(party)}

    def _keep_flows(self, words: str) -> None:
        with suppress(ValueError, IndexError):
            for flow in wire.decode(Flows, words.strip().splitlines()[-1]).flows:
                settings = {"mode": self.section.network_mode, "asked_bits_per_second": self.section.network}
                kept = {**settings, **table_of(flow)}
                self.results.setdefault(flow.source, {})["network"] = kept
                if self.section.network_mode == "clients":
                    self.results.setdefault(flow.target, {})["network"] = kept


def with_nodes(section: StressSection | None, nodes: Sequence[str]) -> StressSection | None:
    """Return the section with the names of the nodes that are used in place of the word ``nodes``."""
    if section is None or NODES not in (section.parties or ()):
        return section
    parties = [name for party in section.parties or () for name in (nodes if party == NODES else [party])]
    return section.model_copy(update={"parties": list(dict.fromkeys(parties))})


def parties_of(section: StressSection, clients: Sequence[str]) -> list[str]:
    """Return the parties under stress: those of the plan, else all clients."""
    return list(clients) if section.parties is None else list(section.parties)


def pairs_of(section: StressSection, clients: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of source and target of the flood.

    In mode "server" each party floods the server. In mode "clients" every second client floods the one before it, as in
    FedComm's code. If the number of clients is odd, the last one floods nobody. Raises PlanError if there is no pair.
    """
    parties = [party for party in parties_of(section, clients) if party != "server"]
    if section.network_mode == "server":
        pairs = [(party, "server") for party in parties]
    else:
        pairs = list(zip(parties[1::2], parties[0::2], strict=False))
    if not pairs:
        raise PlanError(
            f"stress.network has nobody to flood with network_mode {section.network_mode!r}",
            "Name clients in stress.parties, two at least for pairs of clients",
        )
    return pairs


def metrics(words: str) -> dict[str, object]:
    """Return the counts in stress-ng's output: bogo operations, seconds, operations a second of real time.

    If the output has none, they are None, and ``failure`` is its last line.
    """
    match = _METRICS.search(words)
    if match is None:
        last = words.strip().splitlines()[-1:] or ["it said nothing"]
        return {"bogo_ops": None, "seconds": None, "bogo_ops_per_second": None, "failure": last[0]}
    numbers = [float(number) for number in match[1].split()]
    return {"bogo_ops": int(numbers[0]), "seconds": numbers[1], "bogo_ops_per_second": numbers[4]}


def _last_words(process: subprocess.Popen[str]) -> str:
    """Close a process's standard input, and return its output when it has ended; kill it if it does not end."""
    try:
        words, _ = process.communicate(timeout=within(END_SECONDS))
    except subprocess.TimeoutExpired:
        process.kill()
        words, _ = process.communicate()
    return words or ""
