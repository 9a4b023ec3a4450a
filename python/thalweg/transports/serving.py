"""Code for commands that carry other programs' connections until they are stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from thalweg.errors import PlanError
from thalweg.ui.units import parse_size


class Service(Protocol):
    """A ``_core.Forwarder`` or ``_core.Proxy``: it listens, and reports events as JSON."""

    @property
    def listening(self) -> str:
        """The first event, as JSON: the address at which the service listens."""

    def serve(self, observe: Callable[[str], None], /) -> None:
        """Serve until it is closed or interrupted."""

    def close(self) -> None:
        """End all connections."""


def size(option: str, text: str) -> int:
    """Return bytes from a text as ``4MiB``. Raises PlanError."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise PlanError(f"{option}: {error}", "Write it as 4MiB") from error


def serve(service: Service, observe: Callable[[str], None], *, first: str | None = None) -> None:
    """Serve until a signal ends this command; ``observe`` gets the events of links and connections. Raises CoreError.

    It gets ``first`` before the others, because its reader may end the command as soon as it knows the address.
    """
    try:
        with suppress(KeyboardInterrupt):
            if first is not None:
                observe(first)
            service.serve(observe)
    finally:
        service.close()
