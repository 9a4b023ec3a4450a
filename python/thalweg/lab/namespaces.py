"""Network namespaces as processes see them: which one a process is in, and ending those inside one.

A namespace's inode number may be given to another one once it is gone, its cookie (SO_NETNS_COOKIE, Linux 5.14) never;
a process is only ended when both are those of the lab.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from thalweg import _core

SO_NETNS_COOKIE: Final = 71
GRACE_SECONDS: Final = 2.0
T = TypeVar("T")


def within(namespace: str, do: Callable[[], T]) -> T:
    """Return what ``do`` returns in a namespace: in a thread of its own, so that the caller's stays where it is."""
    results: list[T] = []
    failures: list[BaseException] = []

    def enter() -> None:
        try:
            _core.enter_namespace(namespace)
            results.append(do())
        except BaseException as error:  # noqa: BLE001 - raised again where somebody hears it
            failures.append(error)

    # Ctrl-C ends the wait for it: what cannot be ended there is no reason for this process to go on.
    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def cookie_of(namespace: str) -> int | None:
    """Return the number that no other namespace has had since the machine started; None on kernels without it."""
    return within(namespace, own_cookie)


def own_cookie() -> int | None:
    """Return the number of the calling thread's namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            return int.from_bytes(any_socket.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), "little")
        except OSError:
            return None


def congestion_control(namespace: str) -> str | None:
    """Return the congestion control that TCP sockets made in a namespace have unless they ask for another."""
    path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return within(namespace, lambda: path.read_text().strip())


def inside(hosts: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the ids of the processes whose namespace is that of one of a lab's hosts; never of the machine's own."""
    cookies = {host["inode"]: host.get("cookie") for host in hosts}
    for own in ("self", "1"):
        with suppress(OSError):
            cookies.pop(Path(f"/proc/{own}/ns/net").stat().st_ino, None)
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal() or int(path.name) == os.getpid():
            continue
        # It may end, or change to another namespace, while it is looked at.
        with suppress(OSError, _core.CoreError):
            namespace = path / "ns" / "net"
            inode = namespace.stat().st_ino
            cookie = cookies.get(inode)
            if cookie is not None and cookie_of(str(namespace)) == cookie:
                found.append(int(path.name))
    return found


def end_inside(hosts: Iterable[Mapping[str, Any]], *, grace: float = GRACE_SECONDS) -> list[int]:
    """End the processes inside a lab's namespaces, those they start meanwhile included; return their ids."""
    hosts = list(hosts)
    ended: list[int] = []
    for ask in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        pids = inside(hosts)
        ended += [pid for pid in pids if pid not in ended]
        end(pids, ask, grace)
    return ended


def end(pids: Iterable[int], ask: signal.Signals, seconds: float) -> None:
    """Send a signal to processes and wait until they have ended, ``seconds`` at most for all together."""
    watches: list[int] = []
    for pid in pids:
        with suppress(OSError):
            watches.append(os.pidfd_open(pid))
            signal.pidfd_send_signal(watches[-1], ask)
    deadline = time.monotonic() + seconds
    for watch in watches:
        select.select([watch], [], [], max(0.0, deadline - time.monotonic()))
        os.close(watch)
