"""A client process of ``thalweg run``: ``python -m thalweg.job.star.worker``.

It reads its order as one line of JSON from standard input, so that no secret stands on a command line. When it ends it
writes its final report as one line of JSON to standard output: ``{"peak_rss_bytes", "cpu_seconds"}``, with
``{"error": {"cause", "hint"}}`` if it failed. It never outlives its parent. The order's ``place`` names the network
namespace and the cgroup that the process enters before it does anything else.
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
    from thalweg.job.common.fleet import Work


def main(find: Callable[[], Work]) -> int:
    """Read the order, do the work that ``find`` returns, and write the final report. Returns the exit code.

    ``find`` imports the work, which may be slow. That happens after this process is tied to its parent.
    """
    spec = json.loads(sys.stdin.readline())
    die_with(spec["parent"])
    # The parent handles Ctrl-C: it ends its clients in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    report, code = _run(spec, find)
    last = {"peak_rss_bytes": machine.peak_rss_bytes(), "cpu_seconds": machine.cpu_seconds()}
    print(json.dumps({**report, **last}), flush=True)  # noqa: T201 - the result
    return code


def _run(spec: dict[str, Any], find: Callable[[], Work]) -> tuple[dict[str, Any], int]:
    from thalweg import _core
    from thalweg.job.common import core_shares
    from thalweg.job.common.farewell import reason

    name = spec["name"]
    # It keeps to its own number of threads; clients that choose theirs see that it is there.
    share = None if spec["threads"] is None else core_shares.CoreShare()
    try:
        if spec.get("place"):
            _settle(spec["place"])

        def note(text: str) -> None:
            _log(name, text)

        find()(spec, note)
        return {}, 0
    except (ThalwegError, _core.CoreError) as error:
        cause, hint = explain(error)
        _log(name, f"{cause}; {hint}")
        return {"error": {"cause": cause, "hint": hint}}, 1
    except Exception as error:  # noqa: BLE001 - the run gets it in the report, and the log has the traceback
        traceback.print_exc()
        return {"error": {"cause": reason(error), "hint": "See the record's log.txt for where it was raised"}}, 1
    finally:
        if share is not None:
            share.close()


def _settle(place: dict[str, Any]) -> None:
    """Enter this client's namespace and cgroup before any thread or socket is made, so that all of them are inside."""
    from thalweg.lab import inside

    try:
        inside.settle(inside.Place(**place))
    except OSError as error:
        raise LabError(f"cannot enter its place: {error}", "The lab may be gone; start again") from error


def _log(name: str, text: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    from thalweg import _core

    sys.stderr.write(f"{stamp} {name}: {_core.plain_text(text, 4096)}\n")


def _rounds() -> Work:
    from thalweg.job.common.fleet import take_orders

    return take_orders


if __name__ == "__main__":
    sys.exit(main(_rounds))
