"""Network namespaces: running code in one, finding the processes inside one, and ending them.

The kernel may reuse the inode number of a namespace that is gone, but never its cookie (SO_NETNS_COOKIE, Linux 5.14).
A process is ended only if both numbers are those of the lab.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from thalweg import _core

if TYPE_CHECKING:
    from thalweg.lab.values import Host

SO_NETNS_COOKIE: Final = 71
GRACE_SECONDS: Final = 2.0
T = TypeVar("T")


def within(namespace: str, do: Callable[[], T]) -> T:
    """Call ``do`` in a namespace and return its result. It runs in a new thread; the caller's thread stays."""
    results: list[T] = []
    failures: list[BaseException] = []

    def enter() -> None:
        try:
            _core.enter_namespace(namespace)
            results.append(do())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failures.append(error)

    # Ctrl-C ends the join. As a daemon, a thread that still blocks in `do` does not keep this process from ending.
    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def cookie_of(namespace: str) -> int | None:
    """Return a namespace's cookie: no other namespace has had it since boot. None on kernels without cookies."""
    return within(namespace, own_cookie)


def own_cookie() -> int | None:
    """Return the cookie of the calling thread's namespace; None on kernels without cookies."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return int.from_bytes(any_socket.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), "little")
        except OSError:
            return None


def congestion_control(namespace: str) -> str | None:
    """Return the default congestion control of TCP sockets that are made in a namespace."""
    path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return within(namespace, lambda: path.read_text().strip())


def inside(hosts: Iterable[Host]) -> list[int]:
    """Return the ids of the processes that are in the namespace of one of a lab's hosts.

    Processes in the namespaces of this process and of process 1 are left out, and so are hosts whose cookie is unknown.
    """
    cookies = {host.inode: host.cookie for host in hosts}
    for own in ("self", "1"):
        with suppress(OSError):
            cookies.pop(Path(f"/proc/{own}/ns/net").stat().st_ino, None)
    ids = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == os.getpid():
            continue
        # The process may end, or enter another namespace, between these calls.
        with suppress(OSError, _core.CoreError):
            namespace = path / "ns" / "net"
            inode = namespace.stat().st_ino
            cookie = cookies.get(inode)
            if cookie is not None and cookie_of(str(namespace)) == cookie:
                ids.append(int(path.name))
    return ids


def end_inside(hosts: Iterable[Host], *, grace: float = GRACE_SECONDS) -> list[int]:
    """End the processes inside a lab's namespaces, also those that are started meanwhile; return their ids.

    It sends SIGTERM first. Two rounds of SIGKILL follow, for survivors and newly started processes.
    """
    hosts = list(hosts)
    ended: list[int] = []
    for ask in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        pids = inside(hosts)
        ended += [pid for pid in pids if pid not in ended]
        end(pids, ask, grace)
    return ended


def end(pids: Iterable[int], ask: signal.Signals, seconds: float) -> None:
    """Send a signal to processes and wait until they have ended, at most ``seconds`` for all together."""
    watches: list[int] = []
    for pid in pids:
        with suppress(OSError):
            watches.append(os.pidfd_open(pid))
            signal.pidfd_send_signal(watches[-1], ask)
    deadline = time.monotonic() + seconds
    for watch in watches:
        select.select([watch], [], [], max(0.0, deadline - time.monotonic()))
        os.close(watch)
