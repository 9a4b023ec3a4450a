"""The errors a user can cause or meet. Each names its cause and the hint."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress

from thalweg import _core


class ThalwegError(Exception):
    """Base of all errors of this package.

    ``cause`` says what went wrong, ``hint`` what to do about it; ``str()`` gives both as two sentences.
    """

    def __init__(self, cause: str, hint: str) -> None:
        # Both go to Exception.args, so that the error survives the way back from another process.
        super().__init__(cause, hint)
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        return f"{_unstopped(self.cause)}. {_unstopped(self.hint)}"


class PlanError(ThalwegError):
    """A plan or an option is unknown, of the wrong type, out of range, or does not go with another one."""


class DataError(ThalwegError):
    """A data set is missing, of the wrong size, or damaged."""


class ModelError(ThalwegError):
    """A model is unknown, or does not fit what it is asked to do."""


class AppError(ThalwegError):
    """The code of an app of one's own raised an exception, which is this one's ``__cause__``."""


class MetricsError(ThalwegError):
    """An app reports something that is no metric: a tensor, a list, a long text."""


class LinkError(ThalwegError):
    """A peer cannot be reached, was refused, or went away."""


class RoundError(ThalwegError):
    """A round cannot end: too few updates came, or one of them is not usable."""


class RecordError(ThalwegError):
    """A run's record cannot be written, found or read."""


class LabError(ThalwegError):
    """An emulated network cannot be made, has failed, or is gone; or stress cannot be put on a party.

    ``kind`` is that of the core's error where it comes from there, else ``lab``.
    """

    def __init__(self, cause: str, hint: str, kind: str = "lab") -> None:
        super().__init__(cause, hint)
        self.kind = kind


class BrokerError(ThalwegError):
    """A broker cannot be started, is not installed, or is gone."""


def _unstopped(sentence: str) -> str:
    return sentence.rstrip().removesuffix(".")


def leaving(error: BaseException | None) -> AbstractContextManager[None]:
    """Return the context for closing an object of the core. If ``error`` is raised already, nothing else is raised."""
    return nullcontext() if error is None else suppress(_core.CoreError)
