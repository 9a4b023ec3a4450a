"""A control group for each party. It counts the CPU time and the memory of all processes that the party starts."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

#: Where control groups are mounted. Version 1 has a folder for each controller here, version 2 one folder for all.
ROOT: Final = Path("/sys/fs/cgroup")
END_SECONDS: Final = 20.0
_NUMBERS: Final = count()


class Group:
    """One party's control group. ``close`` ends its processes and removes it."""

    def __init__(self, name: str) -> None:
        old = (ROOT / "memory").is_dir()
        self._old = old
        # The number makes the label unique: the kernel may keep the folder of an ended group for a while.
        label = f"benches-{os.getpid()}-{next(_NUMBERS)}-{name}"
        self._cpu, self._memory = (ROOT / "cpuacct" / label, ROOT / "memory" / label) if old else (ROOT / label,) * 2
        self.peak = 0
        for folder in {self._cpu, self._memory}:
            folder.mkdir()

    @property
    def files(self) -> list[str]:
        """Return the files to which a process writes its id to join."""
        return sorted({str(folder / "cgroup.procs") for folder in (self._cpu, self._memory)})

    def cpu_seconds(self) -> float:
        if self._old:
            return int((self._cpu / "cpuacct.usage").read_text()) / 1e9
        return _table(self._cpu / "cpu.stat")["usage_usec"] / 1e6

    def sample(self) -> int:
        """Return the memory that the party has allocated, and keep the largest value in ``peak``.

        Pages of files, such as the code of libraries, do not count: the kernel charges them to their first reader.
        """
        table = _table(self._memory / "memory.stat")
        now = table["total_rss"] + table["total_shmem"] if self._old else table["anon"] + table["shmem"]
        self.peak = max(self.peak, now)
        return now

    def kill(self) -> None:
        """Send SIGKILL to all processes of the party at once."""
        for pid in self._members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        until = time.monotonic() + END_SECONDS
        while self._members() and time.monotonic() < until:
            self.kill()
            time.sleep(0.02)
        for folder in {self._cpu, self._memory}:
            while folder.exists() and time.monotonic() < until:
                # This fails until the kernel has ended the last process.
                with suppress(OSError):
                    folder.rmdir()
                time.sleep(0.02)

    def _members(self) -> list[int]:
        with suppress(OSError):
            return [int(line) for line in (self._cpu / "cgroup.procs").read_text().split()]
        return []


def _table(path: Path) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split()[:2] for line in path.read_text().splitlines())}
