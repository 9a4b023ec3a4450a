"""The errors that a user can cause or see. Each has a cause and a hint."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress

from thalweg import _core


class ThalwegError(Exception):
    """Base of all errors of this package.

    ``cause`` says what went wrong, and ``hint`` says what to do about it. ``str()`` gives both as two sentences.
    """

    def __init__(self, cause: str, hint: str) -> None:
        # Both go to Exception.args, so that the error can be pickled and sent back from another process.
        super().__init__(cause, hint)
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        return f"{_unstopped(self.cause)}. {_unstopped(self.hint)}"


class PlanError(ThalwegError):
    """A plan or an option is unknown, of the wrong type, out of range, or in conflict with another one."""


class DataError(ThalwegError):
    """A data set is missing, of the wrong size, or damaged."""


class ModelError(ThalwegError):
    """A model is unknown, or does not fit the operation."""


class AppError(ThalwegError):
    """The code of the user's app raised an exception, which is the ``__cause__`` of this one."""


class MetricsError(ThalwegError):
    """An app reports a value that is not a metric: a tensor, a list, a long text."""


class LinkError(ThalwegError):
    """A peer cannot be reached, was refused, or went away."""


class RoundError(ThalwegError):
    """A round cannot end: too few updates arrived, or one of them cannot be used."""


class RecordError(ThalwegError):
    """A run's record cannot be written, found or read."""


class LabError(ThalwegError):
    """An emulated network cannot be made, has failed or has ended; or stress cannot be put on a party.

    ``kind`` is the kind of the core's error if the error comes from the core, else ``lab``.
    """

    def __init__(self, cause: str, hint: str, kind: str = "lab") -> None:
        super().__init__(cause, hint)
        self.kind = kind


class BrokerError(ThalwegError):
    """A broker is not installed, cannot be started, or has ended."""


def _unstopped(sentence: str) -> str:
    return sentence.rstrip().removesuffix(".")


def leaving(error: BaseException | None) -> AbstractContextManager[None]:
    """Return the context for closing an object of the core.

    If ``error`` is not None, it suppresses errors of the core.
    """
    return nullcontext() if error is None else suppress(_core.CoreError)
