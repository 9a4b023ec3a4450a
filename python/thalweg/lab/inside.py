"""Becomes another program inside a lab: ``python -m thalweg.lab.inside ORDER PROGRAM ARGUMENT...``.

``ORDER`` is JSON: ``namespace`` and ``hosts_file`` to enter, ``cgroup`` to join, ``parent`` whose end is also the
program's. All may be null. A program that cannot be started is exit code 127.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from thalweg.machine.grace import leave_lost_terminal

NOT_FOUND: Final = 127


def command(
    arguments: Sequence[str],
    *,
    namespace: str | None = None,
    hosts_file: str | None = None,
    cgroup: str | None = None,
    parent: int | None = None,
) -> list[str]:
    """Return the command that runs a program inside a namespace, a group, or both."""
    order = {"namespace": namespace, "hosts_file": hosts_file, "cgroup": cgroup, "parent": parent}
    return [sys.executable, "-m", "thalweg.lab.inside", json.dumps(order), *arguments]


def popen(arguments: Sequence[str], host: Mapping[str, Any], hosts_file: str) -> subprocess.Popen[bytes]:
    """Start a program on a host of a lab, with this process's terminal, files and environment."""
    # Ctrl-C reaches the new process too. Until it has become the program, and knows what to do then, it has to wait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command(arguments, namespace=host["namespace"], hosts_file=hosts_file))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a program that has this process's terminal.

    Ctrl-C is for the program alone, which has heard it too; a request to end is passed on.
    """

    def pass_on(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            leave_lost_terminal()
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def settle(order: Mapping[str, Any]) -> None:
    """Go where an order says. Raises OSError, CoreError."""
    from thalweg.lab import cgroups
    from thalweg.machine.parent import die_with

    if order.get("parent") is not None:
        die_with(order["parent"])
    if order.get("cgroup") is not None:
        cgroups.join(order["cgroup"])
    if order.get("namespace") is not None:
        from thalweg import _core

        _core.enter_namespace(order["namespace"], order.get("hosts_file"))


def main() -> int:
    """Become the program. Returns only if it cannot be started."""
    order, program = json.loads(sys.argv[1]), sys.argv[2:]
    settle(order)
    # What Python ignores would be ignored by the program too, and what is blocked stays blocked.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stderr.write(
            f"error: cannot start {program[0]}: {error.strerror}\nmend: Give a program that is installed\n"
        )
    return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
