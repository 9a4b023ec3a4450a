"""The errors that a user can cause or see. Each has a cause and a hint."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

# The default hint for each kind of the core's errors, for errors without a hint of their own.
_HINTS: Final = {
    "unreachable": "Start the server first, or check the address",
    "timeout": "Check the network between the machines, or whether the peer is overloaded",
    "security": "Check the certificates and tokens; `thalweg pki` makes new ones",
    "refused": "See the server's log for what it expects",
    "memory": "Take a smaller model, or fewer staged updates (aggregation.staging)",
    "round": "Ask for fewer updates (job.enough), or see the record's log for why clients went away",
    "inuse": "Choose another port, or end the program that has it",
}
_ANY_HINT: Final = "See `thalweg doctor` for what this machine can do"


class ThalwegError(Exception):
    """Base of all errors of this package.

    ``cause`` says what went wrong, and ``hint`` says what to do about it. ``str()`` gives both as two sentences.
    ``kind`` is a word to branch on, ``operation`` says what was being done (empty if the cause says it), and ``retry``
    whether the same call may succeed later without a change.
    """

    kind: str = "other"
    operation: str = ""
    retry: bool = False

    def __init__(self, cause: str, hint: str) -> None:
        # Exception.args gets both, so that the error can be pickled and sent from another process.
        super().__init__(cause, hint)
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        return f"{_unstopped(self.cause)}. {_unstopped(self.hint)}"


class CoreError(ThalwegError):
    """An error of the compiled core. Its kinds are in docs/reference/errors.md.

    ``hint`` is the hint that the core gave, or else the default hint of the error's kind. ``retry`` says whether the
    same call may succeed later. ``str()`` gives ``operation: cause``, and the core's hint after a semicolon if the core
    gave one.
    """

    def __init__(
        self, cause: str, hint: str | None = None, kind: str = "system", operation: str = "", retry: bool = False
    ) -> None:
        super().__init__(cause, hint or _HINTS.get(kind, _ANY_HINT))
        self.args = (cause, hint, kind, operation, retry)
        self.kind = kind
        self.operation = operation
        self.retry = retry
        self._own_hint = hint

    def __str__(self) -> str:
        text = f"{self.operation}: {self.cause}" if self.operation else self.cause
        return f"{text}; {self._own_hint}" if self._own_hint else text


class PlanError(ThalwegError):
    """A plan or an option is unknown, of the wrong type, out of range, or in conflict with another one."""

    kind = "plan"


class DataError(ThalwegError):
    """A data set is missing, of the wrong size, or damaged."""

    kind = "data"


class ModelError(ThalwegError):
    """A model is unknown, or does not fit the operation."""

    kind = "model"


class AppError(ThalwegError):
    """The code of the user's app raised an exception, which is the ``__cause__`` of this one."""

    kind = "app"


class MetricsError(ThalwegError):
    """An app reports a value that is not a metric: a tensor, a list, a long text."""

    kind = "metrics"


class PackageError(ThalwegError):
    """A Python package is not installed that an extra of thalweg brings, as ``thalweg[report]``."""

    kind = "package"


class LinkError(ThalwegError):
    """A peer cannot be reached, was refused, or went away."""

    kind = "link"


class RoundError(ThalwegError):
    """A round cannot end: too few updates arrived, or one of them cannot be used."""

    kind = "round"


class RecordError(ThalwegError):
    """A run's record cannot be written, found or read."""

    kind = "record"


class LabError(ThalwegError):
    """An emulated network cannot be made, has failed or has ended; or stress cannot be put on a party.

    ``kind`` is the kind of the core's error if the error comes from the core, else ``lab``; ``cause`` and ``hint`` are
    as in every error.
    """

    def __init__(self, cause: str, hint: str, kind: str = "lab") -> None:
        super().__init__(cause, hint)
        self.kind = kind


class BrokerError(ThalwegError):
    """A broker is not installed, cannot be started, or has ended."""

    kind = "broker"


def _unstopped(sentence: str) -> str:
    return sentence.rstrip().removesuffix(".")


def leaving(error: BaseException | None) -> AbstractContextManager[None]:
    """Return the context for closing an object of the core.

    If ``error`` is not None, the context suppresses errors of the core, so that they do not replace it.
    """
    return nullcontext() if error is None else suppress(CoreError)
