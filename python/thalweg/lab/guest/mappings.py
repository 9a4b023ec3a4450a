"""The host's limit of memory mappings, which a guest with large updates exceeds.

The guest's memory is mapped into the host's processes page by page. Linux allows a process 65,530 mappings
(``vm.max_map_count``), and kills a process inside that needs more. The limit is of the whole machine, so only root may
raise it. Guests that run at the same time share the raised limit; the last one puts it back.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from thalweg.machine.private import open_private

SYSCTL: Final = "vm.max_map_count"
#: Mappings that a guest may need: one for each page of 8 GiB.
NEEDED: Final = 2_097_152
_LIMIT: Final = Path("/proc/sys/vm/max_map_count")
# The folder of two files. `USERS` holds the limit as it was before it was raised, and each running guest has a shared
# lock on it. `GATE` is locked for the moment in which a guest begins or ends.
_STATE: Final = Path("/run/thalweg/guests")
_USERS: Final = "max_map_count"
_GATE: Final = "gate"


def limit() -> int | None:
    """Return the host's limit of mappings of a process; None if it cannot be read."""
    try:
        return int(_LIMIT.read_text())
    except (OSError, ValueError):
        return None


def may_raise() -> bool:
    """Return whether this user may raise the limit."""
    return os.access(_LIMIT, os.W_OK)


@contextmanager
def raised(note: Callable[[str], None]) -> Iterator[None]:
    """Raise the limit to ``NEEDED`` while the block runs, and put it back after it.

    ``note`` is told so. Where the limit cannot be raised it stays: most updates do with it.
    """
    now = limit()
    # A limit that root has raised for good needs no state, unless another guest has raised it.
    if now is None or not may_raise() or (now >= NEEDED and not (_STATE / _USERS).exists()):
        yield
        return
    try:
        folder = open_private(_STATE)
    except OSError as error:
        note(f"{SYSCTL} stays {now}: {_STATE}: {error.strerror}")
        yield
        return
    try:
        with _file(folder, _USERS) as users:
            with _locked(folder):
                before = _raise(users)
            if before is not None:
                note(f"{SYSCTL} of this machine is {NEEDED} until the guest ends; it was {before}")
            try:
                yield
            finally:
                with _locked(folder):
                    _put_back(users)
    finally:
        os.close(folder)


@contextmanager
def _file(folder: int, name: str) -> Iterator[int]:
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _locked(folder: int) -> Iterator[None]:
    """Let no other guest begin or end meanwhile."""
    with _file(folder, _GATE) as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield


def _raise(users: int) -> int | None:
    """Raise the limit if it is lower, and become one of its users. Return the limit before if this call raised it."""
    fcntl.flock(users, fcntl.LOCK_SH)
    now = limit()
    if now is None or now >= NEEDED:
        return None
    os.ftruncate(users, 0)
    os.pwrite(users, str(now).encode(), 0)
    _LIMIT.write_text(str(NEEDED))
    return now


def _put_back(users: int) -> None:
    """Put the limit back if no other guest runs."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    before = os.pread(users, 32, 0)
    # Another value than ours: somebody else has changed it meanwhile.
    if before.isdigit() and limit() == NEEDED:
        _LIMIT.write_text(before.decode())
    os.ftruncate(users, 0)
