"""Prints the output of commands: text for people, or exactly one JSON document on standard output."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from thalweg.ui import strict_json

if TYPE_CHECKING:
    from thalweg.ui.explain import Explained

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else on stdout.")]
Emit: TypeAlias = Callable[[Any], None]


@contextmanager
def output(*, as_json: bool) -> Iterator[Emit]:
    """Give a function that takes the result.

    With ``as_json`` the result is printed at the end. Anything else that is written to standard output meanwhile, by
    any library, goes to standard error. An error becomes ``{"error": Explained}``. Without ``as_json`` nothing is done.
    """
    if not as_json:
        yield lambda _: None
        return
    results: list[Any] = []
    try:
        with _stdout_to_stderr(), redirect_stdout(sys.stderr):
            yield results.append
    except BaseException as error:
        results = [{"error": asdict(_explained(error))}]
        raise
    finally:
        for result in results[:1]:
            print_document(result)


def print_document(value: Any) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(strict_json.dumps(value) + "\n")
    sys.stdout.flush()


def nobody_reads(stream: Any) -> bool:
    """Return whether ``stream`` is a pipe whose reading end is closed."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False  # the stream has no descriptor, or is closed


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def _explained(error: BaseException) -> Explained:
    from thalweg.ui.explain import Explained, explained

    if not isinstance(error, Exception):
        hint = "Start it again, with --resume where there is a record"
        return Explained("interrupted", hint, kind="interrupted", retry=True)
    return explained(error)
