"""A client's last words: why it leaves, for the server's log, table and record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Leaving(Protocol):
    """What can be left: the core's client."""

    def close(self, reason: str) -> None:
        """Leave for good. Idempotent."""


@contextmanager
def farewell(client: Leaving, done: str) -> Iterator[None]:
    """Leave a job when the block ends: with the words ``done``, or with what it raised.

    The server cuts what is too long and takes out what cannot be shown.
    """
    try:
        yield
    except BaseException as error:
        client.close(reason(error))
        raise
    client.close(done)


def reason(error: BaseException) -> str:
    """Return an exception in words: its type and its text. Ctrl-C is ``interrupted``."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name
