"""The folders of labs. A supervisor makes one for its lab, and removes it when it ends.

``lab.json`` names the supervisor by its process id and start time, because a later process may get the same id. It
names each host's namespace by inode and cookie. ``socket`` is the supervisor's Unix socket, and ``hosts`` the
/etc/hosts of programs inside.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from thalweg import machine, wire
from thalweg.errors import LabError
from thalweg.lab.values import Host
from thalweg.machine.private import open_private

FILE: Final = "lab.json"
SOCKET: Final = "socket"
HOSTS: Final = "hosts"
LOOK_SECONDS: Final = 0.02
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_CLAIM: Final = re.compile(r"\.([0-9]{1,10})-([0-9]{1,20})", re.ASCII)
_HEAD: Final = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


@dataclass(frozen=True)
class State:
    """What ``lab.json`` holds. ``hosts`` are by name.

    ``pid`` and ``started`` are the supervisor's process id and start time, in ticks since boot.
    """

    name: str
    pid: int
    started: int
    hosts: Mapping[str, Host] = field(default_factory=dict)
    links: tuple[Mapping[str, str], ...] = ()
    cgroups: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The lab's folder."""
        return labs_folder() / self.name

    @property
    def alive(self) -> bool:
        """Whether the lab's supervisor runs."""
        return is_alive(self.pid, self.started)

    def write(self) -> None:
        """Write ``lab.json`` atomically to the lab's folder. Raises OSError."""
        _write(self.folder, self)

    def write_hosts(self) -> Path:
        """Write the hosts file for programs inside and return its path. Raises OSError."""
        path = self.folder / HOSTS
        path.write_text(hosts_file(self.hosts))
        return path

    def host(self, name: str) -> Host:
        """Return the host called ``name``, such as client1 or client-1. Raises LabError, which lists the hosts."""
        by_name = {alias: host for host in self.hosts for alias in (alias_of(host), host)}
        if name not in by_name:
            raise LabError(
                f"the lab {self.name} has no host {name!r}", f"Give one of {', '.join(self.hosts)} with --host"
            )
        return self.hosts[by_name[name]]


def labs_folder() -> Path:
    """Return the folder that holds this user's labs."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime or "/run") / "thalweg" / "labs"


def claim(wanted: str, *, unique: bool) -> State:
    """Claim a name for a lab of this process. With ``unique`` a number is added to a name that is taken.

    The lab's folder appears by a rename with its ``lab.json`` inside. So a reaper never sees a folder without its
    ``lab.json``, which it would take for the remains of a crash. Raises LabError.
    """
    check_name(wanted)
    pid = os.getpid()
    state = State(wanted, pid, start_time(pid) or 0)
    root = labs_folder()
    try:
        os.close(open_private(root))
        part = root / f".{state.pid}-{state.started}"
        part.mkdir(mode=0o700, exist_ok=True)
        _write(part, state)
        name = _take(part, wanted, unique=unique)
        state = State(name, state.pid, state.started)
        state.write()
    except OSError as error:
        needs = "" if os.geteuid() == 0 else "emulated networks need root: "
        raise LabError(
            f"{needs}cannot write {root}: {error.strerror}",
            "Start it as root, or set XDG_RUNTIME_DIR to a folder of yours",
            "permission" if isinstance(error, PermissionError) else "lab",
        ) from error
    return state


def check_name(name: str) -> None:
    """Raise LabError if ``name`` is not allowed as a lab's name."""
    if not _NAME.fullmatch(name):
        raise LabError(f"{name!r} cannot name a lab", "Take up to 64 letters, digits, dots, dashes and underscores")


def release(state: State) -> None:
    """Remove a lab's folder. It is renamed first, so that nobody sees a half-removed lab."""
    doomed = state.folder.with_name(f".{state.pid}-{state.started}")
    with suppress(OSError):
        state.folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def live() -> list[State]:
    """Return the running labs, sorted by name."""
    return [state for state in _states() if state.alive and state.hosts and not _CLAIM.fullmatch(state.name)]


def dead() -> Iterator[tuple[Path, State]]:
    """Yield the folders that dead supervisors have left, each with its state."""
    for folder in _folders():
        claimed = _CLAIM.fullmatch(folder.name)
        if claimed:
            state = State(folder.name, int(claimed[1]), int(claimed[2]))
        else:
            state = _read(folder) or State(folder.name, 0, 0)
        # A supervisor that ended properly since the folders were listed has removed its folder.
        if not state.alive and folder.exists():
            yield folder, state


def has_ended(state: State, seconds: float) -> bool:
    """Wait at most ``seconds`` for a lab to end; return whether its folder or its supervisor is gone."""
    deadline = time.monotonic() + seconds
    while state.folder.exists() and state.alive:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def find(name: str | None) -> State:
    """Return the running lab called ``name``, or the only one if ``name`` is None. Raises LabError."""
    running = {state.name: state for state in live()}
    if name is None and len(running) == 1:
        return next(iter(running.values()))
    if not running:
        what = "no lab runs" if name is None else f"there is no lab {name}; none runs"
        raise LabError(what, "Start one, as: thalweg lab up --network wan")
    if name is None:
        raise LabError(f"several labs run: {', '.join(running)}", "Name one of them")
    if name not in running:
        raise LabError(f"there is no lab {name}", f"Running: {', '.join(running)}")
    return running[name]


def start_time(pid: int) -> int | None:
    """Return when a process was started, in ticks since boot; None if there is none, or it is a zombie."""
    stat = machine.read_text(Path(f"/proc/{pid}/stat"))
    if stat is None:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(pid: int, started: int) -> bool:
    """Return whether a process with this id and this start time runs."""
    return pid > 0 and start_time(pid) == started


def alias_of(host: str) -> str:
    """Return a host's second name: client1 for client-1."""
    return re.sub(r"-(?=[0-9]+$)", "", host)


def hosts_file(hosts: Mapping[str, Host]) -> str:
    """Return the text of an /etc/hosts with each host's name and alias, such as client-1 and client1."""
    lines = []
    for name, host in hosts.items():
        names = " ".join(dict.fromkeys((name, alias_of(name))))
        lines += [f"{address} {names}\n" for address in (host.ipv4, host.ipv6) if address]
    return _HEAD + "".join(lines)


def _take(part: Path, wanted: str, *, unique: bool) -> str:
    for number in count(1):
        name = wanted if number == 1 else f"{wanted}-{number}"
        try:
            part.rename(part.with_name(name))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if not unique:
                shutil.rmtree(part, ignore_errors=True)
                raise LabError(
                    f"a lab named {name} runs already", f"Take another name, or end it: thalweg lab down {name}"
                ) from error
        else:
            return name
    raise AssertionError("numbers do not end")


def _write(folder: Path, state: State) -> None:
    part = folder / f".{FILE}.part"
    part.write_text(wire.encode(state))
    part.replace(folder / FILE)


def _states() -> list[State]:
    return [state for folder in _folders() if (state := _read(folder)) is not None]


def _folders() -> list[Path]:
    root = labs_folder()
    with suppress(OSError):
        # Do not trust another user's files: the reaper ends the processes that they name.
        os.close(open_private(root, make=False))
        return sorted(path for path in root.iterdir() if path.is_dir() and _is_own(path))
    return []


def _is_own(folder: Path) -> bool:
    """Return whether a folder belongs to this user; False if it is gone."""
    try:
        return folder.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _read(folder: Path) -> State | None:
    """Return the state in a folder, under the folder's name; None if ``lab.json`` is missing or damaged."""
    try:
        content = wire.plain((folder / FILE).read_text())
        hosts = {str(name): Host(**host) for name, host in content["hosts"].items()}
        return State(
            folder.name,
            int(content["pid"]),
            int(content["started"]),
            hosts,
            tuple(content["links"]),
            tuple(content["cgroups"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
