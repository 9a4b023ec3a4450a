"""Becomes another program inside a lab: ``python -m thalweg.lab.inside ORDER PROGRAM ARGUMENT...``.

``ORDER`` is JSON: the ``namespace`` and ``hosts_file`` to enter, the ``cgroup`` to join, and the process id ``parent``,
with which the program ends. Each may be null. The exit code is 127 if the program cannot be started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from thalweg import wire
from thalweg.machine.grace import leave_lost_terminal

if TYPE_CHECKING:
    from thalweg.lab.values import Host

NOT_FOUND: Final = 127


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """What a process enters before it becomes a program. The kernel ends the program when process ``parent`` ends."""

    namespace: str | None = None
    hosts_file: str | None = None
    cgroup: str | None = None
    parent: int | None = None


def command(
    arguments: Sequence[str],
    *,
    namespace: str | None = None,
    hosts_file: str | None = None,
    cgroup: str | None = None,
    parent: int | None = None,
) -> list[str]:
    """Return the command that runs a program inside a namespace, a cgroup, or both."""
    order = ProcessPlace(namespace, hosts_file, cgroup, parent)
    return [sys.executable, "-m", "thalweg.lab.inside", wire.encode(order), *arguments]


def popen(arguments: Sequence[str], host: Host, hosts_file: str) -> subprocess.Popen[bytes]:
    """Start a program on a host of a lab, with this process's terminal, files and environment."""
    # Ctrl-C also reaches the new process. SIGINT stays blocked there until it becomes the program, which handles it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command(arguments, namespace=host.namespace, hosts_file=hosts_file))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a program that has this process's terminal, and return its exit code.

    This process ignores Ctrl-C, which reaches the program too. It passes SIGTERM and SIGHUP on to the program.
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


def settle(order: ProcessPlace) -> None:
    """Tie this process to its parent, and enter the cgroup and the namespace of an order. Raises OSError, CoreError."""
    from thalweg.lab import cgroups
    from thalweg.machine.parent import die_with

    if order.parent is not None:
        die_with(order.parent)
    if order.cgroup is not None:
        cgroups.join(order.cgroup)
    if order.namespace:
        from thalweg import _core

        _core.enter_namespace(order.namespace, order.hosts_file)


def main() -> int:
    """Become the program. Returns only if it cannot be started."""
    order, program = ProcessPlace(**wire.plain(sys.argv[1])), sys.argv[2:]
    settle(order)
    # Restore what the program would inherit: signals that Python ignores, and the blocked SIGINT.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        os.execvp(program[0], program)  # noqa: S606 - no shell is wanted
    except OSError as error:
        sys.stderr.write(
            f"error: cannot start {program[0]}: {error.strerror}\nhint: Give a program that is installed\n"
        )
    return NOT_FOUND


if __name__ == "__main__":
    sys.exit(main())
