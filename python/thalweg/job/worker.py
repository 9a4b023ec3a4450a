"""A client process of ``thalweg run``: ``python -m thalweg.job.worker``.

It reads one line of JSON from standard input, so that no secret stands on a command line, and ends with one on
standard output: ``{"peak_rss_bytes", "cpu_seconds"}``, and ``{"error": {"cause", "mend"}}`` if it failed. It never
outlives its parent. ``place`` in the order says which network namespace and which cgroup it goes to before anything
else.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thalweg import machine
from thalweg.errors import LabError, ThalwegError
from thalweg.machine.parent import die_with
from thalweg.ui.explain import explain

if TYPE_CHECKING:
    from thalweg.job.fleet import Work


def main(find: Callable[[], Work]) -> int:
    """Do the work that ``find`` returns, which may be slow to import. Returns the exit code."""
    spec = json.loads(sys.stdin.readline())
    die_with(spec["parent"])
    # Ctrl-C in a terminal reaches the parent, which ends its clients in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report, code = _run(spec, find)
    last = {"peak_rss_bytes": machine.peak_rss_bytes(), "cpu_seconds": machine.cpu_seconds()}
    print(json.dumps({**report, **last}), flush=True)  # noqa: T201 - the result
    return code


def _run(spec: dict[str, Any], find: Callable[[], Work]) -> tuple[dict[str, Any], int]:
    from thalweg import _core
    from thalweg.job import seats
    from thalweg.job.farewell import reason

    name = spec["name"]
    # It keeps to its own number of threads; clients that choose theirs see that it is there.
    seat = None if spec["threads"] is None else seats.Seat()
    try:
        if spec.get("place"):
            _settle(spec["place"])

        def note(text: str) -> None:
            _log(name, text)

        find()(spec, note)
        return {}, 0
    except (ThalwegError, _core.CoreError) as error:
        cause, mend = explain(error)
        _log(name, f"{cause}; {mend}")
        return {"error": {"cause": cause, "mend": mend}}, 1
    except Exception as error:  # noqa: BLE001 - the run is told; where it was raised stands in the log
        traceback.print_exc()
        return {"error": {"cause": reason(error), "mend": "See the record's log.txt for where it was raised"}}, 1
    finally:
        if seat is not None:
            seat.close()


def _settle(place: dict[str, Any]) -> None:
    """Go to this client's place before a thread or a socket is made, so that all of them are there."""
    from thalweg.lab import inside

    try:
        inside.settle(place)
    except OSError as error:
        raise LabError(f"cannot enter its place: {error}", "The lab may be gone; start again") from error


def _log(name: str, text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    from thalweg import _core

    sys.stderr.write(f"{stamp} {name}: {_core.plain_text(text, 4096)}\n")


def _rounds() -> Work:
    from thalweg.job.fleet import take_orders

    return take_orders


if __name__ == "__main__":
    sys.exit(main(_rounds))
