"""What a client of the command line says while it joins a server, and if the server does not let it in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Final

from thalweg.errors import CoreError
from thalweg.plan.options import CoreOptions
from thalweg.tensors.watching import Note

# A client that has not joined after so many seconds says that it still tries.
SILENCE_SECONDS: Final = 5.0


@contextmanager
def joining(url: str, options: CoreOptions, note: Note) -> Iterator[None]:
    """Name the server with ``note``, and again after some seconds if the block, which joins it, has not ended.

    If this end shows no token and does not encrypt, an error of the link's security names the options that change it.
    Raises CoreError.
    """
    note(f"joining {url}")
    trying = f"{url} has not answered yet; trying for {options['timeout']:g} s in all (--timeout)"
    timer = Timer(SILENCE_SECONDS, note, [trying])
    timer.daemon = True
    timer.start()
    try:
        yield
    except CoreError as error:
        if error.kind != "security" or options["token"] is not None or options["transport"]["tls"] is not None:
            raise
        hint = "Give the file of `thalweg pki issue NAME` with --token-file"
        raise CoreError(error.cause, hint, error.kind, error.operation, error.retry) from error
    finally:
        timer.cancel()
