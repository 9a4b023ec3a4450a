"""Turns errors of the operating system into a cause and a hint for the user."""

from __future__ import annotations

import errno
import subprocess
from typing import Final

# Errors that this module explains. A command that gets one ends with a cause and a hint, never with a traceback.
ERRORS: Final = (OSError, subprocess.SubprocessError)

_ROOM: Final = "Make room on that disk, or give another folder"
_RIGHTS: Final = "Start it as root, or correct the permissions"
_PEER: Final = "Check the address and the network, and whether the other side runs"
_FILES: Final = "Raise the limit of open files (ulimit -n), or take fewer clients"
_PATH: Final = "Give another path"
_AGAIN: Final = "Try again; `thalweg doctor` says what this machine can do"

_HINTS: Final = {
    errno.ENOENT: "Check the path; if it is a program, install it",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "Give a folder that can be written",
    errno.EEXIST: "Remove it, or give another path",
    errno.ENOTEMPTY: "Empty it, or give another path",
    errno.ENOTDIR: _PATH,
    errno.EISDIR: _PATH,
    errno.ENAMETOOLONG: "Give a shorter path",
    errno.ELOOP: _PATH,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EIO: "Check the disk or device; the kernel's log (dmesg) says more",
    errno.EMFILE: _FILES,
    errno.ENFILE: "End other programs, or raise the system's limit of open files (fs.file-max)",
    errno.ENOMEM: "End other programs, or take a smaller model or fewer clients",
    errno.EAGAIN: "Raise the limit of processes (ulimit -u), or take fewer clients",
    errno.EADDRINUSE: "Choose another port, or end the program that has it",
    errno.EADDRNOTAVAIL: "Give an address that this machine has",
    errno.ECONNREFUSED: _PEER,
    errno.ECONNRESET: _PEER,
    errno.EHOSTUNREACH: _PEER,
    errno.ENETUNREACH: _PEER,
    errno.ETIMEDOUT: _PEER,
}


def explain(error: OSError | subprocess.SubprocessError) -> tuple[str, str]:
    """Return the cause and the hint of an error of the operating system, or of a program that was started."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{_program(error.cmd)} did not end within {error.timeout:g} s", _AGAIN
    if isinstance(error, subprocess.CalledProcessError):
        how = f"was killed by signal {-error.returncode}" if error.returncode < 0 else f"ended with {error.returncode}"
        return f"{_program(error.cmd)} {how}", _AGAIN
    if isinstance(error, OSError):
        return _cause(error), _HINTS.get(error.errno or 0, _AGAIN)
    return _plain(error), _AGAIN


def _cause(error: OSError) -> str:
    """Return the cause: the refused operation, with its paths if the error names them."""
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    return f"{' to '.join(paths)}: {error.strerror or _plain(error)}" if paths else error.strerror or _plain(error)


def _plain(error: Exception) -> str:
    return str(error) or type(error).__name__


def _program(command: object) -> str:
    return str(command[0] if isinstance(command, (list, tuple)) and command else command)
