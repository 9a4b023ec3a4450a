"""A client's goodbye: it tells the server why it leaves. The server shows the reason and records it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from thalweg.errors import leaving


class Leaving(Protocol):
    """A party that can leave its job: the core's client or node."""

    def close(self, reason: str) -> None:
        """Leave for good. Idempotent."""


@contextmanager
def farewell(client: Leaving, done: str) -> Iterator[None]:
    """Leave a job when the block ends. The reason is ``done``, or the exception that the block raised.

    The server shortens a long reason and removes characters that cannot be shown.
    """
    try:
        yield
    except BaseException as error:
        with leaving(error):
            client.close(reason(error))
        raise
    client.close(done)


def reason(error: BaseException) -> str:
    """Return an exception as text: its type and its message. KeyboardInterrupt is ``interrupted``."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name
