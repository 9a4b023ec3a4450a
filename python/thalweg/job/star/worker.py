"""A client process of ``thalweg run``: ``python -m thalweg.job.star.worker``.

It reads its order, one line of JSON, from standard input, so that no secret is on a command line. At its end it writes
its final report, also a line of JSON, to standard output (``thalweg.job.common.messages``). It never outlives its
parent. The order's ``place`` names the network namespace and the cgroup that the process enters before anything else.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from thalweg import machine, training_progress, wire
from thalweg.errors import LabError, ThalwegError
from thalweg.job.common.messages import AnyOrder, Failure, Line, Report, Trained, Work
from thalweg.lab.inside import ProcessPlace, settle
from thalweg.machine.parent import die_with
from thalweg.ui.explain import explain

if TYPE_CHECKING:
    from thalweg.job.common.fleet import ClientOrder

# Imports a program's work function, and returns it after the class of the program's orders.
Find: TypeAlias = Callable[[], tuple[type[AnyOrder], Work[AnyOrder]]]


def main(find: Find[AnyOrder]) -> int:
    """Read the order, do the work that ``find`` returns, and write the final report. Returns the exit code.

    ``find`` imports the work, which may be slow. That happens after this process is tied to its parent.
    """
    table: Line = wire.plain(sys.stdin.readline())
    die_with(table["parent"])
    # The terminal sends Ctrl-C to this process too, but the parent handles it, and ends its clients in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    failure = _run(table, find)
    report = replace(Report(error=failure), **vars(machine.usage()))
    print(wire.encode(report), flush=True)  # noqa: T201 - the result
    return 0 if failure is None else 1


def _run(table: Line, find: Find[AnyOrder]) -> Failure | None:
    from thalweg import _core
    from thalweg.job.common import core_shares
    from thalweg.job.common.farewell import reason

    name = table["name"]
    # The number of threads is fixed. The client takes a core share nevertheless, so that other clients count it.
    share = None if table["threads"] is None else core_shares.CoreShare()
    try:
        if table.get("place"):
            _settle(ProcessPlace(**table["place"]))

        def note(text: str) -> None:
            _log(name, text)

        if table.get("shows_training"):
            training_progress.show_with(_show)
        kind, work = find()
        work(kind.of(table), note)
    except (ThalwegError, _core.CoreError) as error:
        cause, hint = explain(error)
        _log(name, f"{cause}; {hint}")
        return Failure(cause, hint)
    except Exception as error:  # noqa: BLE001 - the run gets it in the report, and the log has the traceback
        traceback.print_exc()
        return Failure(reason(error), "See the record's log.txt for where it was raised")
    finally:
        if share is not None:
            share.close()
    return None


def _show(number: int, fraction: float) -> None:
    # The first newline ends a line that an app may have left unfinished on standard output.
    sys.stdout.write(f"\n{wire.encode(Trained(number, fraction).table())}\n")
    sys.stdout.flush()


def _settle(place: ProcessPlace) -> None:
    """Enter this client's namespace and cgroup before any thread or socket is made, so that all of them are inside."""
    try:
        settle(place)
    except OSError as error:
        raise LabError(f"cannot enter its namespace and cgroup: {error}", "The lab may be gone; start again") from error


def _log(name: str, text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    from thalweg import _core

    sys.stderr.write(f"{stamp} {name}: {_core.plain_text(text, 4096)}\n")


def _find() -> tuple[type[ClientOrder], Work[ClientOrder]]:
    from thalweg.job.common.fleet import ClientOrder, take_orders

    return ClientOrder, take_orders


def run() -> int:
    """Be a client's process. Returns the exit code."""
    return main(_find)


if __name__ == "__main__":
    sys.exit(run())
