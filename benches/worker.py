"""Processes at the other end of a measurement: thalweg clients, or a minimal TCP program that does the same work.

python -m benches.worker thalweg URL NAME COUNT [NAMESPACE TOKEN REST]   clients NAME-1 .. NAME-COUNT, a thread each
python -m benches.worker tasks URL NAME COUNT                           COUNT clients that send back each task
python -m benches.worker raw HOST PORT BYTES      receives BYTES and sends them back, until the peer closes

With NAMESPACE and TOKEN, clients run in that network namespace and present that token, which is made for this
measurement only. They wait REST seconds between model and update.
"""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

BLOCK = 256 << 10  # the size of one read or write in bytes: that of a chunk


def receive_exactly(peer: socket.socket, view: memoryview) -> bool:
    """Fill ``view``; return False if the peer has closed before the first byte."""
    got = 0
    while got < len(view):
        count = peer.recv_into(view[got : got + BLOCK])
        if count == 0:
            if got:
                raise ConnectionError("the peer closed in the middle")
            return False
        got += count
    return True


def thalweg(url: str, name: str, count: int, apart: Sequence[str]) -> None:
    """Take part with ``count`` clients until the job is done, without training."""
    from thalweg import _core

    options, rest = {}, 0.0
    if apart:
        namespace, token, seconds = apart
        _core.enter_namespace(namespace)
        options, rest = {"token": token}, float(seconds)

    def take_part(number: int) -> None:
        client = _core.Client(url, f"{name}-{number}", json.dumps(options), None)
        client.join()
        while (task := client.next()) is not None:
            time.sleep(rest)
            if client.submit(task[0], 1, "{}") == "done":
                break
        client.close("done")

    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(1, count + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tasks(url: str, name: str, count: int) -> None:
    """Send back the tensors of each task, with ``count`` clients, until the job is over."""
    from thalweg import TaskClient

    def take_part(number: int) -> None:
        with TaskClient(url, name=f"{name}-{number}") as client:
            client.run(lambda task: (None, task.tensors))

    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(1, count + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def raw(host: str, port: int, size: int) -> None:
    """Echo blocks of ``size`` bytes: receive a whole block, then send it back."""
    buffer = np.ones(size, np.uint8).data
    with socket.create_connection((host, port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while receive_exactly(peer, buffer):
            peer.sendall(buffer)


def main(arguments: list[str]) -> None:
    # End with the measuring process, even if that is killed.
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    kind, first, second, number, *apart = arguments
    if kind == "thalweg":
        thalweg(first, second, int(number), apart)
    elif kind == "tasks":
        tasks(first, second, int(number))
    else:
        raw(first, int(second), int(number))


if __name__ == "__main__":
    main(sys.argv[1:])
