"""Shares this machine's cores among clients that are started separately: how many threads each trains with.

While a client takes part, it keeps a locked file in a folder of its user on this machine. The file names the cores that
the client may use. The kernel ends the lock when the process ends for whatever reason, so a file without a lock belongs
to no client. A client's share is the number of its cores divided by the number of clients that may use any of them.

PyTorch's own default is a thread for each core in every process. Several clients on one machine would then wait for
each other's threads in every operation.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from thalweg.apps.received_config import ReceivedConfig
from thalweg.machine.private import open_private

if TYPE_CHECKING:
    from thalweg.job.common.parties import ClientParty, Metrics, PartyMaker

# A user who sets this variable has chosen the threads of all programs that use OpenMP, such as PyTorch.
CHOSEN: Final = "OMP_NUM_THREADS"
# Prefix of a client's file until it is locked.
_PART: Final = ".part-"
# Prefix of a client's locked file. It is the same in all versions of thalweg.
_FILE: Final = "seat-"
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def folder() -> Path:
    """Return the folder with the files of this user's clients. All versions of thalweg use the same folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) / "thalweg" if runtime else Path(tempfile.gettempdir()) / f"thalweg-{os.geteuid()}"
    return own / "seats"


class CoreShare:
    """A client's share of this machine's cores. Use it as a context manager, or close it."""

    def __init__(self, directory: Path | None = None) -> None:
        """Tell other clients that this one computes here, by a file in ``directory`` (default: this user's folder).

        If that fails, ``why_alone`` says why, and the client takes all its cores, because it cannot see other clients.
        """
        self._path = folder() if directory is None else directory
        # The descriptor of the checked folder. All files are opened through it, so replacing the folder has no effect.
        self._folder = -1
        self._name = ""
        self._lock = -1
        self.why_alone: str | None = None
        try:
            self._take()
        except OSError as error:
            self.why_alone = f"cannot see other clients on this machine: {self._path}: {error.strerror}"
            self.close()

    def threads(self) -> int:
        """Return this client's share of the cores, at least 1, among the clients that compute here now."""
        mine = _cores()
        others = sum(1 for cores in self._others() if cores & mine)
        return max(1, len(mine) // (1 + others))

    def close(self) -> None:
        """Give the share back. Idempotent."""
        if self._lock >= 0:
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
            os.close(self._lock)
        if self._folder >= 0:
            os.close(self._folder)
        self._lock = self._folder = -1

    def __enter__(self) -> CoreShare:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> None:
        self._folder = open_private(self._path)
        # The file gets its final name only when it is locked, because others remove a file without a lock.
        mark = secrets.token_hex(8)
        self._name = _PART + mark
        self._lock = os.open(self._name, _NEW, 0o600, dir_fd=self._folder)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(self._lock, " ".join(map(str, sorted(_cores()))).encode())
        os.rename(self._name, _FILE + mark, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._name = _FILE + mark

    def _others(self) -> list[set[int]]:
        """Return the cores of each other client that is here; files of clients that have ended are removed."""
        if self._folder < 0:
            return []
        with os.scandir(self._folder) as there:
            names = [one.name for one in there if one.name.startswith(_FILE) and one.name != self._name]
        shares = (_held(self._folder, name) for name in names)
        return [cores for cores in shares if cores is not None]


class ThreadLimited:
    """A client's party that trains with the client's present share of the cores, which may change between rounds."""

    def __init__(self, party: ClientParty, threads: Callable[[], int]) -> None:
        """Wrap ``party``. ``threads`` returns how many threads the next training may use."""
        self._party = party
        self._threads = threads

    def train(self, config: ReceivedConfig) -> tuple[float, Metrics]:
        """Limit PyTorch's threads and train."""
        limit(self._threads())
        return self._party.train(config)

    def evaluation(self, config: ReceivedConfig) -> Metrics:
        """Evaluate with as many threads as the training before."""
        return self._party.evaluation(config)

    def finish(self, samples: float, metrics: Metrics) -> tuple[float, Metrics]:
        """Make the update of the trained model."""
        return self._party.finish(samples, metrics)


def limit(threads: int) -> None:
    """Set the number of PyTorch's threads, if this process has imported PyTorch."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def threads_of(share: CoreShare, threads: int | None, note: Callable[[str], None]) -> Callable[[], int] | None:
    """Return a function that gives the number of threads for the next training: ``threads``, or the client's share.

    Returns None if the user has chosen the number by ``OMP_NUM_THREADS``.
    """
    if threads is not None:
        return lambda: threads
    if os.environ.get(CHOSEN):
        return None
    if share.why_alone is not None:
        note(f"{share.why_alone}; training with all cores (--threads sets another number)")
    return share.threads


def limited(maker: PartyMaker, share: CoreShare, threads: int | None, note: Callable[[str], None]) -> PartyMaker:
    """Return a maker of parties that train with the number of threads that ``threads_of`` gives."""
    limit_of = threads_of(share, threads, note)
    if limit_of is None:
        return maker
    return lambda config, arena: ThreadLimited(maker(config, arena), limit_of)


def _held(folder: int, name: str) -> set[int] | None:
    """Return the cores that a client's file names; None if that client has ended, and then the file is removed."""
    try:
        # With O_NONBLOCK, because opening a pipe of that name would wait for a writer.
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        # A shared lock, so that two clients that check a file at the same time do not take each other for its owner.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _named(file)
    except OSError:
        return None
    else:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        return None
    finally:
        os.close(file)


def _named(file: int) -> set[int]:
    return {int(word) for word in os.read(file, 1 << 16).decode(errors="replace").split() if word.isdecimal()}


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
