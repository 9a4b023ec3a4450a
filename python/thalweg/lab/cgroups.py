"""CPU quotas of parties, by cgroup v1 or v2, whichever has the cpu controller.

A run's groups are below one folder with the process id and the start time of the run in its name. So a later run can
recognise the folders that a crash has left.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

from thalweg import machine
from thalweg.errors import LabError
from thalweg.lab.namespaces import end
from thalweg.lab.state import is_alive, start_time

PERIOD_MICROSECONDS: Final = 10_000
# The kernel's least quota and longest period.
LEAST_MICROSECONDS: Final = 1_000
LONGEST_MICROSECONDS: Final = 1_000_000
MOUNTS: Final = Path("/proc/self/mounts")
PROCS: Final = "cgroup.procs"
REMOVAL_SECONDS: Final = 2.0
_FOLDER: Final = re.compile(r"thalweg-([0-9]{1,10})-([0-9]{1,20})", re.ASCII)


@dataclass(frozen=True)
class Hierarchy:
    """The cgroup hierarchy with the cpu controller: its version and its root folder."""

    version: int
    root: Path

    def describe(self) -> str:
        """Return it as text for error messages."""
        return f"cgroup v{self.version} at {self.root}"


def detect(mounts: Path = MOUNTS) -> Hierarchy | None:
    """Return the hierarchy that has the cpu controller, or None. This only reads."""
    lines = [line.split() for line in (machine.read_text(mounts) or "").splitlines()]
    for _, place, kind, options, *_ in lines:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Hierarchy(1, Path(place))
    for _, place, kind, *_ in lines:
        if kind == "cgroup2" and "cpu" in (machine.read_text(Path(place) / "cgroup.controllers") or "").split():
            return Hierarchy(2, Path(place))
    return None


def quota_of(share: float) -> tuple[int, int]:
    """Return quota and period in microseconds for a share of a core.

    The period is 10 ms. A share below a tenth of a core gets a longer period, because the kernel accepts no quota below
    1 ms.
    """
    period = PERIOD_MICROSECONDS
    if share * period < LEAST_MICROSECONDS:
        period = min(LONGEST_MICROSECONDS, ceil(LEAST_MICROSECONDS / share))
    return max(LEAST_MICROSECONDS, round(share * period)), period


class Groups:
    """The cgroups of this process's parties. Use it as a context manager: at the end it removes them."""

    def __init__(self, shares: Mapping[str, float], hierarchy: Hierarchy | None = None) -> None:
        """Make one group for each party in ``shares``, limited to its share of a core. Raises LabError."""
        self._before: Path | None = None
        self._folder: Path | None = None
        self._paths: dict[str, Path] = {}
        if not shares:
            return
        place = hierarchy or detect()
        if place is None:
            raise LabError("no cgroup with the cpu controller is mounted", "Remove stress.cpu_quota")
        self._place = place
        pid = os.getpid()
        self._folder = place.root / f"thalweg-{pid}-{start_time(pid)}"
        try:
            self._make(self._folder, shares)
        except OSError as error:
            self.close()
            raise LabError(
                f"cannot make groups in {place.describe()}: {error.strerror}",
                "Start it as root, or remove stress.cpu_quota",
            ) from error

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def path(self, party: str) -> str | None:
        """Return the folder of a party's group, or None if its share is not limited."""
        path = self._paths.get(party)
        return None if path is None else str(path)

    @property
    def outside(self) -> str | None:
        """The group that this process was in before it called ``enter``; None if it has not called it."""
        return None if self._before is None else str(self._before)

    @property
    def paths(self) -> list[str]:
        """The folders of all groups."""
        return [str(path) for path in self._paths.values()]

    def enter(self, party: str) -> None:
        """Put this process into a party's group until ``close``. Raises OSError."""
        path = self._paths.get(party)
        if path is not None:
            self._before = self._place.root / own_path(self._place.version).lstrip("/")
            join(path)

    def close(self) -> None:
        """Move this process back, end all processes still inside, and remove the groups. Idempotent."""
        if self._before is not None:
            with suppress(OSError):
                join(self._before)
            self._before = None
        if self._folder is not None:
            remove(self._folder)
            self._folder = None
        self._paths = {}

    def _make(self, folder: Path, shares: Mapping[str, float]) -> None:
        v2 = self._place.version == 2
        if v2:
            delegate(self._place.root)
        folder.mkdir(exist_ok=True)
        if v2:
            delegate(folder)
        for party, share in shares.items():
            path = folder / party
            path.mkdir(exist_ok=True)
            limit(path, share, v2=v2)
            self._paths[party] = path


def limit(path: Path, share: float, *, v2: bool) -> None:
    """Limit a group to a share of a core. ``v2``: it is a cgroup v2. Raises OSError."""
    quota, period = quota_of(share)
    if v2:
        (path / "cpu.max").write_text(f"{quota} {period}")
    else:
        (path / "cpu.cfs_period_us").write_text(str(period))
        (path / "cpu.cfs_quota_us").write_text(str(quota))


def join(path: Path | str) -> None:
    """Move this process with all its threads into a group. Raises OSError."""
    (Path(path) / PROCS).write_text(str(os.getpid()))


def delegate(folder: Path) -> None:
    """Enable the cpu controller for the groups below a folder (cgroup v2). Raises OSError."""
    file = folder / "cgroup.subtree_control"
    if "cpu" not in (machine.read_text(file) or "").split():
        file.write_text("+cpu")


def own_path(version: int) -> str:
    """Return the path of this process's own group in the hierarchy with the cpu controller."""
    for line in (machine.read_text(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if (version == 1 and "cpu" in controllers.split(",")) or (version == 2 and not controllers):
            return path
    return "/"


def left() -> Iterator[Path]:
    """Yield the folders of runs whose process no longer runs."""
    hierarchy = detect()
    if hierarchy is None:
        return
    for folder in hierarchy.root.glob("thalweg-*"):
        owner = _FOLDER.fullmatch(folder.name)
        if owner and not is_alive(int(owner[1]), int(owner[2])):
            yield folder


def remove(folder: Path) -> None:
    """End the processes in a folder's groups, and remove the groups and the folder."""
    groups = [path for path in (*folder.glob("*/"), folder) if path.is_dir()]
    for ask in (signal.SIGTERM, signal.SIGKILL):
        end([pid for group in groups for pid in _members(group)], ask, REMOVAL_SECONDS)
    for group in groups:
        _remove(group)


def _members(group: Path) -> list[int]:
    return [int(pid) for pid in (machine.read_text(group / PROCS) or "").split() if int(pid) != os.getpid()]


def _remove(group: Path) -> None:
    # The kernel removes an ended process from its group a moment later; until then rmdir fails with EBUSY.
    deadline = time.monotonic() + REMOVAL_SECONDS
    while _is_busy(group) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_busy(group: Path) -> bool:
    """Try to remove a group; return whether that failed because of processes inside."""
    try:
        group.rmdir()
    except OSError as error:
        return error.errno == errno.EBUSY
    return False
