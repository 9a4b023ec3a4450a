"""Turns errors into what commands print: the cause, the hint, and the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from thalweg import extras
from thalweg.errors import DataError, MetricsError, ModelError, PackageError, PlanError, ThalwegError
from thalweg.ui import system

USER: Final = 2
FAILED: Final = 1
# The exit code of a command of which some, but not all, jobs failed.
SOME_FAILED: Final = 3

_USER_KINDS: Final = ("address", "options", "unsupported", "layout")


@dataclass(frozen=True, slots=True)
class Explained:
    """An error as ``--json`` prints it. The fields are the attributes of ThalwegError."""

    cause: str
    hint: str
    kind: str
    operation: str = ""
    retry: bool = False

    @property
    def line(self) -> str:
        """The cause on one line, after the operation if there is one."""
        return f"{self.operation}: {self.cause}" if self.operation else self.cause


def explained(error: Exception) -> Explained:
    """Return the fields of a ThalwegError, of an error of the system, or of a failed import of an extra's package."""
    error = extras.of_import(error) or error
    if isinstance(error, system.ERRORS):
        return Explained(*system.explain(error), kind="system")
    if isinstance(error, ThalwegError):
        return Explained(error.cause, error.hint, error.kind, error.operation, error.retry)
    return Explained(str(error) or type(error).__name__, "See `thalweg doctor` for what this machine can do", "other")


def explain(error: Exception) -> tuple[str, str]:
    """Return the cause and the hint of an error, each on one line."""
    fields = explained(error)
    return fields.line, fields.hint


def exit_code(error: Exception) -> int:
    """Return 2 for an error that the user can fix in a plan or an argument, 1 for a job that cannot go on."""
    error = extras.of_import(error) or error
    by_user = isinstance(error, (PlanError, DataError, ModelError, MetricsError, PackageError)) or (
        isinstance(error, ThalwegError) and error.kind in _USER_KINDS
    )
    return USER if by_user else FAILED
