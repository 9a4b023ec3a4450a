"""Shares of a core for parties: cgroup v1 or v2, whichever has the cpu controller.

A run's groups are below one folder named after the run's process, so that another run can tell what was left behind.
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
# The kernel takes no smaller quota, and no longer period.
LEAST_MICROSECONDS: Final = 1_000
LONGEST_MICROSECONDS: Final = 1_000_000
MOUNTS: Final = Path("/proc/self/mounts")
PROCS: Final = "cgroup.procs"
REMOVAL_SECONDS: Final = 2.0
_FOLDER: Final = re.compile(r"thalweg-([0-9]{1,10})-([0-9]{1,20})", re.ASCII)


@dataclass(frozen=True)
class Hierarchy:
    """Where groups with the cpu controller are made: the version of cgroup and the folder."""

    version: int
    root: Path

    def describe(self) -> str:
        """Return it in words."""
        return f"cgroup v{self.version} at {self.root}"


def detect(mounts: Path = MOUNTS) -> Hierarchy | None:
    """Return where the cpu controller is, or None. Looking changes nothing."""
    lines = [line.split() for line in (machine.read_text(mounts) or "").splitlines()]
    for _, place, kind, options, *_ in lines:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Hierarchy(1, Path(place))
    for _, place, kind, *_ in lines:
        if kind == "cgroup2" and "cpu" in (machine.read_text(Path(place) / "cgroup.controllers") or "").split():
            return Hierarchy(2, Path(place))
    return None


def quota_of(share: float) -> tuple[int, int]:
    """Return quota and period in microseconds: 10 ms periods, longer ones only for less than a tenth of a core."""
    period = PERIOD_MICROSECONDS
    if share * period < LEAST_MICROSECONDS:
        period = min(LONGEST_MICROSECONDS, ceil(LEAST_MICROSECONDS / share))
    return max(LEAST_MICROSECONDS, round(share * period)), period


class Groups:
    """The groups of this process's parties. Use it as a context manager: at the end they are gone."""

    def __init__(self, shares: Mapping[str, float], hierarchy: Hierarchy | None = None) -> None:
        """Make a group a party, with its share of a core; none where there are no shares. Raises LabError."""
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
        """The group that this process was in before ``enter``; None if it still is."""
        return None if self._before is None else str(self._before)

    @property
    def paths(self) -> list[str]:
        """All folders."""
        return [str(path) for path in self._paths.values()]

    def enter(self, party: str) -> None:
        """Put this process into a party's group until ``close``. Raises OSError."""
        path = self._paths.get(party)
        if path is not None:
            self._before = self._place.root / own_path(self._place.version).lstrip("/")
            join(path)

    def close(self) -> None:
        """End what is still inside and remove the groups. Idempotent."""
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
    """Limit a group to a share of a core. Raises OSError."""
    quota, period = quota_of(share)
    if v2:
        (path / "cpu.max").write_text(f"{quota} {period}")
    else:
        (path / "cpu.cfs_period_us").write_text(str(period))
        (path / "cpu.cfs_quota_us").write_text(str(quota))


def join(path: Path | str) -> None:
    """Put this process with all its threads into a group. Raises OSError."""
    (Path(path) / PROCS).write_text(str(os.getpid()))


def delegate(folder: Path) -> None:
    """Let the groups below a folder have the cpu controller (v2). Raises OSError."""
    file = folder / "cgroup.subtree_control"
    if "cpu" not in (machine.read_text(file) or "").split():
        file.write_text("+cpu")


def own_path(version: int) -> str:
    """Return this process's own group in the hierarchy with the cpu controller."""
    for line in (machine.read_text(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if (version == 1 and "cpu" in controllers.split(",")) or (version == 2 and not controllers):
            return path
    return "/"


def left() -> Iterator[Path]:
    """Yield the folders of processes that no longer run."""
    hierarchy = detect()
    if hierarchy is None:
        return
    for folder in hierarchy.root.glob("thalweg-*"):
        owner = _FOLDER.fullmatch(folder.name)
        if owner and not is_alive(int(owner[1]), int(owner[2])):
            yield folder


def remove(folder: Path) -> None:
    """Remove a folder of groups; processes still inside are ended."""
    groups = [path for path in (*folder.glob("*/"), folder) if path.is_dir()]
    for ask in (signal.SIGTERM, signal.SIGKILL):
        end([pid for group in groups for pid in _members(group)], ask, REMOVAL_SECONDS)
    for group in groups:
        _remove(group)


def _members(group: Path) -> list[int]:
    return [int(pid) for pid in (machine.read_text(group / PROCS) or "").split() if int(pid) != os.getpid()]


def _remove(group: Path) -> None:
    # A process that has ended leaves its group a moment later.
    deadline = time.monotonic() + REMOVAL_SECONDS
    while _is_busy(group) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_busy(group: Path) -> bool:
    """Remove a group; return whether it could not be because of processes inside."""
    try:
        group.rmdir()
    except OSError as error:
        return error.errno == errno.EBUSY
    return False
