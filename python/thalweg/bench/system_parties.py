"""The processes of another system: starts them where thalweg's parties would run, watches them, and ends them.

They keep the contract of ``thalweg/bench/contract/contract.py``: a folder has their job, and each writes a line there
after each round. Processes that they start and leave behind are ended too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from thalweg import wire
from thalweg.errors import RoundError
from thalweg.job.common.session import SERVER
from thalweg.lab import inside
from thalweg.lab.inside import ProcessPlace
from thalweg.machine import Usage
from thalweg.machine.grace import within
from thalweg.machine.parent import adopt_orphans, children

if TYPE_CHECKING:
    from types import TracebackType

    from thalweg.bench.systems import System
    from thalweg.job.common.session import Session

#: The folder with the module ``contract``, which programs import.
CONTRACT: Final = Path(__file__).parent / "contract"
#: The server's port in an emulated network, where nobody else listens.
PORT: Final = 7000
#: Seconds that parties may take to end by themselves after the last round, and between two looks at them.
END_SECONDS: Final = 10.0
CHECK_SECONDS: Final = 0.02
#: How much of a party's output is in an error, in characters.
LAST_WORDS: Final = 600


@dataclass(frozen=True, slots=True)
class PartyRound:
    """A round as the server reports it. ``value`` is that of all values of the mean; None if they differ.

    ``begin`` and ``end`` are seconds of a clock of its own.
    """

    round: int
    begin: float
    end: float
    value: float | None = None

    @property
    def seconds(self) -> float:
        """How long the round took."""
        return self.end - self.begin


class SystemParties:
    """The parties of a system: the server, number 0, and the clients. Use it as a context manager.

    A party's usage includes all processes that its process has started. CPU time counts from the end of the first
    round on, and peak memory from the party's start.
    """

    def __init__(self, system: System, network: Session, folder: Path, *, size: int, rounds: int) -> None:
        """Write the job to ``folder``: ``rounds`` rounds with ``size`` bytes of float32."""
        self.names = [SERVER, *network.names]
        self.system, self.size = system, size
        self._network, self._folder = network, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._before: list[_Used] = []
        self._used: list[_Used] = []
        self._peaks: list[int] = []
        lab = network.lab
        job = {
            "work": "star",
            "clients": len(network.names),
            "size": size,
            "rounds": rounds,
            "addresses": [network.address(name) for name in self.names],
            "device": "lo" if lab is None else lab.hosts[SERVER].device,
            "options": system.options,
            "port": PORT if lab is not None else _free_port(),
        }
        (folder / "job.json").write_text(json.dumps(job))
        adopt_orphans()
        self._own = set(children())

    def __enter__(self) -> SystemParties:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End all parties. Those that have finished all rounds get time to end by themselves."""
        deadline = time.monotonic() + (within(END_SECONDS) if kind is None else 0.0)
        while self._running() and time.monotonic() < deadline:
            time.sleep(CHECK_SECONDS)
        # Processes that left their party's group are this one's children by now, or become so when their parent ends.
        while left := set(children()) - self._own:
            for pid in left:
                _kill(pid)
            self._running()
            for pid in left - {process.pid for process in self._processes}:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(CHECK_SECONDS)

    def start(self) -> None:
        """Start the server, and the clients when it accepts connections. Raises RoundError if a party fails."""
        self._start(0)
        while not (self._folder / "0.ready").exists():
            self.check()
            time.sleep(CHECK_SECONDS)
        for number in range(1, len(self.names)):
            self._start(number)

    def _start(self, number: int) -> None:
        """Start a party in its namespace and cgroup, with an environment that has nothing of this process's Python."""
        name, system, lab = self.names[number], self.system, self._network.lab
        place = self._network.place(name) or ProcessPlace()
        variables = {
            "PATH": f"{Path(system.program or '').parent}:{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self._folder),
            "PYTHONPATH": str(CONTRACT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **system.environ,
        }
        program = [*system.command, str(self._folder), str(number)]
        command = inside.command(
            ["env", "-i", *(f"{key}={value}" for key, value in variables.items()), *program],
            namespace=place.namespace,
            hosts_file=None if lab is None else lab.hosts_file,
            cgroup=place.cgroup,
            parent=os.getpid(),
        )
        with (self._folder / f"{number}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            )

    def rounds(self) -> list[PartyRound]:
        """Return the rounds that the server has reported. A line that is still being written does not count."""
        path = self._folder / "0.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [wire.decode(PartyRound, line) for line in lines if line.endswith("\n")]

    def go_on(self, word: str) -> None:
        """Let the server go on. It waits after the ``first`` round, and after the ``last``."""
        self.look()
        if word == "first":
            self._before = self._used
        (self._folder / word).touch()

    def look(self) -> None:
        """Read what each party has used so far."""
        self._used = [_used(process.pid) for process in self._processes]
        peaks = zip(self._used, self._peaks or [0] * len(self._used), strict=True)
        self._peaks = [max(used.peak_bytes, peak) for used, peak in peaks]

    def usage(self) -> dict[str, Usage]:
        """Return each party's CPU time, from the end of the first round to the last look, and peak memory, by name."""
        each = zip(self.names, self._before, self._used, self._peaks, strict=False)
        return {name: Usage(now.cpu_seconds - before.cpu_seconds, peak) for name, before, now, peak in each}

    def check(self) -> None:
        """Raise RoundError if a party has failed, or if the server has ended."""
        self._running()
        parties = list(enumerate(zip(self.names, self._processes, strict=False)))
        # The server last: it may have failed because a client did.
        for number, (name, process) in [*parties[1:], *parties[:1]]:
            code = process.returncode
            if code or (code is not None and number == 0):
                words = self.words(number)[-LAST_WORDS:]
                raise RoundError(
                    f"{name} of {self.system.name} ended with exit code {code}: {words or 'it said nothing'}",
                    "See the record's log for all that it said",
                )

    def words(self, number: int) -> str:
        """Return what a party has said."""
        path = self._folder / f"{number}.log"
        return path.read_text(errors="replace").strip() if path.exists() else ""

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self._processes if process.poll() is None]


@dataclass(frozen=True, slots=True)
class _Used:
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


def _used(pid: int) -> _Used:
    """Return what a process and those below it have used. A process below that has ended counts if it was waited for.

    ``peak_bytes`` is the sum of the peak resident memory of each living process since its last exec.
    """
    cpu, peak = 0.0, 0
    left = [pid]
    while left:
        here = Path(f"/proc/{left.pop()}")
        with suppress(OSError):  # it has ended
            ticks = (here / "stat").read_text(errors="replace").rpartition(")")[2].split()[11:15]
            lines = (here / "status").read_text(errors="replace").splitlines()
            cpu += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
            peak += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
            left += [int(one) for path in here.glob("task/*/children") for one in path.read_text().split()]
    return _Used(cpu, peak)


def _kill(pid: int) -> None:
    """End a process, and its group if it leads one."""
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    with suppress(OSError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
