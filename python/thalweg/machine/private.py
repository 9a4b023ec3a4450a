"""Opens a folder of this user at a well-known path, as below /tmp, so that no other user can redirect the path.

Any user who may write to a folder of the path could put a symbolic link there. Root would then remove files of the
link's target. Therefore each part of the path is opened relative to its parent, never through a link, and its owner and
mode are checked once it is open. The caller then works by the folder's descriptor, not by its path.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def open_private(path: Path, *, make: bool = True) -> int:
    """Return a descriptor of a folder that only this user can write; with ``make`` a missing folder is created.

    The folders above it must belong to this user or to root, and no other user may replace their content: others cannot
    write them, or they are sticky as /tmp is. Raises PermissionError if one of these conditions is not met, and
    OSError.
    """
    whole = path.absolute()
    # Follow links in the existing part: they are the system's, such as /var/run. The folders behind are checked too.
    existing = next(part for part in (whole, *whole.parents) if part.exists() or part.is_symlink())
    if existing == whole:
        existing = whole.parent
    real = Path(os.path.realpath(existing))
    steps = [*real.parts[1:], *whole.relative_to(existing).parts]
    here = os.open("/", _OPEN)
    try:
        for number, name in enumerate(steps, 1):
            there = _step(here, name, make=make and number > len(real.parts) - 1)
            os.close(here)
            here = there
            _check(here, Path("/", *steps[:number]), is_last=number == len(steps))
    except OSError:
        os.close(here)
        raise
    return here


def _step(parent: int, name: str, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _OPEN, dir_fd=parent)


def _check(folder: int, path: Path, *, is_last: bool) -> None:
    status = os.fstat(folder)
    if status.st_uid not in ((os.geteuid(),) if is_last else (0, os.geteuid())):
        raise PermissionError(errno.EPERM, f"{path} is another user's")
    if status.st_mode & _OTHERS and (is_last or not status.st_mode & stat.S_ISVTX):
        raise PermissionError(errno.EPERM, f"others can write to {path}")
