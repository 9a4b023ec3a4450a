"""Shares this machine's cores among clients that are started separately: how many threads each trains with.

Each client holds a seat while it takes part: a locked file in a folder of its user on this machine, which lists the
cores that it may use. The kernel releases the lock when the process ends, so a seat without a lock is stale. A client's
share is the number of its cores, divided by the number of seats that list any of them. Without this, PyTorch starts a
thread for each core in every process, and several clients on one machine then slow each other down in every operation.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from thalweg.machine.private import open_private

if TYPE_CHECKING:
    from thalweg.job.parties import ClientParty, Metrics, PartyMaker

# A user who sets this variable has chosen the threads of all programs that use OpenMP, such as PyTorch.
CHOSEN: Final = "OMP_NUM_THREADS"
_PART: Final = ".part-"
_SEAT: Final = "seat-"
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def folder() -> Path:
    """Return the folder of this user's seats: in XDG_RUNTIME_DIR, else in the temporary folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) / "thalweg" if runtime else Path(tempfile.gettempdir()) / f"thalweg-{os.geteuid()}"
    return own / "seats"


class Seat:
    """A client's place among the clients that compute on this machine. Use it as a context manager, or close it."""

    def __init__(self, place: Path | None = None) -> None:
        """Take a seat in the folder ``place``, by default that of this user.

        If that fails, no other client is known, so this one gets all of its cores. ``why_alone`` then has the reason.
        """
        self._place = folder() if place is None else place
        # The descriptor of the checked folder. All files are opened through it, so replacing the folder has no effect.
        self._folder = -1
        self._name = ""
        self._lock = -1
        self.why_alone: str | None = None
        try:
            self._take()
        except OSError as error:
            self.why_alone = f"cannot see other clients on this machine: {self._place}: {error.strerror}"
            self.close()

    def threads(self) -> int:
        """Return this client's share of the cores, at least 1, among the clients that hold a seat now."""
        mine = _cores()
        others = sum(1 for cores in self._others() if cores & mine)
        return max(1, len(mine) // (1 + others))

    def close(self) -> None:
        """Give the seat back. Idempotent."""
        if self._lock >= 0:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
            os.close(self._lock)
        if self._folder >= 0:
            os.close(self._folder)
        self._lock = self._folder = -1

    def __enter__(self) -> Seat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> None:
        self._folder = open_private(self._place)
        # The file gets its final name only when it is locked, because others remove a seat without a lock.
        mark = secrets.token_hex(8)
        self._name = _PART + mark
        self._lock = os.open(self._name, _NEW, 0o600, dir_fd=self._folder)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._lock, " ".join(map(str, sorted(_cores()))).encode())
        os.rename(self._name, _SEAT + mark, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._name = _SEAT + mark

    def _others(self) -> list[set[int]]:
        """Return the cores of each other seat that is held, and remove seats whose client has ended."""
        if self._folder < 0:
            return []
        with os.scandir(self._folder) as there:
            names = [one.name for one in there if one.name.startswith(_SEAT) and one.name != self._name]
        found = (_held(self._folder, name) for name in names)
        return [cores for cores in found if cores is not None]


class Sharing:
    """A client's party that trains with its share of the cores, which is computed anew in each round."""

    def __init__(self, party: ClientParty, threads: Callable[[], int]) -> None:
        """Wrap ``party``. ``threads`` returns how many threads the next training may use."""
        self._party = party
        self._threads = threads

    def train(self, config: Mapping[str, Any]) -> tuple[int, Metrics]:
        """Limit PyTorch's threads and train."""
        limit(self._threads())
        return self._party.train(config)

    def evaluation(self, config: Mapping[str, Any]) -> Metrics:
        """Evaluate with the same threads."""
        return self._party.evaluation(config)


def limit(threads: int) -> None:
    """Set the number of PyTorch's threads, if this process has imported PyTorch."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def share_of(seat: Seat, threads: int | None, note: Callable[[str], None]) -> Callable[[], int] | None:
    """Return a function for the number of threads of the next training: ``threads`` if given, else the seat's share.

    None if the environment sets the number (``CHOSEN``).
    """
    if threads is not None:
        return lambda: threads
    if os.environ.get(CHOSEN):
        return None
    if seat.why_alone is not None:
        note(f"{seat.why_alone}; training with all cores, --threads says otherwise")
    return seat.threads


def sharing(maker: PartyMaker, seat: Seat, threads: int | None, note: Callable[[str], None]) -> PartyMaker:
    """Return a maker of parties whose number of threads is that of ``share_of``."""
    share = share_of(seat, threads, note)
    if share is None:
        return maker
    return lambda config, arena: Sharing(maker(config, arena), share)


def _held(folder: int, name: str) -> set[int] | None:
    """Return the cores that a seat lists; None if nobody holds it, and then it is removed."""
    try:
        # Without O_NONBLOCK, opening a FIFO of that name would block until there is a writer.
        seat = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        # A shared lock, so that two processes that check a seat at once do not take each other for its owner.
        fcntl.flock(seat, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named(seat)
    except OSError:
        return None
    else:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        return None
    finally:
        os.close(seat)


def _named(seat: int) -> set[int]:
    return {int(word) for word in os.read(seat, 1 << 16).decode(errors="replace").split() if word.isdecimal()}


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
