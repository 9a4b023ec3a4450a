"""Turns errors into words: the cause, the hint, and the exit code."""

from __future__ import annotations

from typing import Final

from thalweg.errors import DataError, MetricsError, ModelError, PlanError, ThalwegError
from thalweg.ui import system

USER: Final = 2
FAILED: Final = 1
# Exit code if some of several jobs failed.
SOME_FAILED: Final = 3

# Kinds of the core's errors, each with a hint for errors that have none of their own.
_HINTS: Final = {
    "unreachable": "Start the server first, or check the address",
    "timeout": "Check the network between the machines, or whether the peer is overloaded",
    "security": "Check the certificates and tokens; `thalweg pki` makes new ones",
    "refused": "See the server's log for what it expects",
    "memory": "Take a smaller model, or fewer staged updates (aggregation.staging)",
    "round": "Ask for fewer updates (job.enough), or see the record's log for why clients went away",
    "inuse": "Choose another port, or end the program that has it",
}
_USER_KINDS: Final = ("address", "options", "unsupported", "layout")


def explain(error: Exception) -> tuple[str, str]:
    """Return the cause and the hint of a ThalwegError, a CoreError or an error of the system."""
    if isinstance(error, ThalwegError):
        return error.cause, error.hint
    if isinstance(error, system.ERRORS):
        return system.explain(error)
    kind = getattr(error, "kind", "")
    cause, _, hint = str(error).rpartition("; ")
    # Clients write the reason why a round fails, and could put a false hint into it.
    if cause and kind != "round":
        return cause, hint
    return str(error), _HINTS.get(kind, "See `thalweg doctor` for what this machine can do")


def exit_code(error: Exception) -> int:
    """Return 2 for an error that the user can fix in a plan or an argument, 1 for a job that cannot go on."""
    by_user = (
        isinstance(error, (PlanError, DataError, ModelError, MetricsError)) or getattr(error, "kind", "") in _USER_KINDS
    )
    return USER if by_user else FAILED
