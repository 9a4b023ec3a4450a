"""Errors in words: the cause and the hint, and what exit code they mean."""

from __future__ import annotations

from typing import Final

from thalweg.errors import DataError, MetricsError, ModelError, PlanError, ThalwegError
from thalweg.ui import system

USER: Final = 2
FAILED: Final = 1
# Of several jobs.
SOME_FAILED: Final = 3

# Kinds of the core's errors -> what can be done where the core itself does not say.
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
    # Why a round fails is said by clients, who could write a hint of their own.
    if cause and kind != "round":
        return cause, hint
    return str(error), _HINTS.get(kind, "See `thalweg doctor` for what this machine can do")


def exit_code(error: Exception) -> int:
    """Return 2 for what the user can fix in a plan or an argument, 1 for a job that cannot go on."""
    by_user = (
        isinstance(error, (PlanError, DataError, ModelError, MetricsError)) or getattr(error, "kind", "") in _USER_KINDS
    )
    return USER if by_user else FAILED
