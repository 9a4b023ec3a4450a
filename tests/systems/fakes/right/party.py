"""A system of a few lines: a thread for each client, which sends the model and receives the update by TCP."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import suppress
from threading import Thread

import numpy as np
from contract import job, train, wait_for


def receive(peer: socket.socket, size: int) -> np.ndarray:
    array = np.empty(size // 4, np.float32)
    view, got = memoryview(array).cast("B"), 0
    while got < size:
        count = peer.recv_into(view[got:])
        if count == 0:
            raise ConnectionError("the peer has gone")
        got += count
    return array


one = job()
if one.index:
    with socket.create_connection((one.addresses[0], one.port)) as server:
        for number in range(1, one.rounds + 1):
            model = receive(server, one.size)
            train(model, one.index)
            if number == 3 and one.index == one.clients and one.options.get("stall"):
                wait_for(one.folder / "a file that nobody makes")
            server.sendall(model)
else:
    with socket.create_server((one.addresses[0], one.port)) as listener:
        one.ready()
        peers = [listener.accept()[0] for _ in range(one.clients)]
    for number in range(1, one.rounds + 1):
        model, updates, begin = one.model(number), [], time.perf_counter()

        def exchange(peer: socket.socket, model: np.ndarray = model, updates: list[np.ndarray] = updates) -> None:
            peer.sendall(model)
            with suppress(ConnectionError):
                updates.append(receive(peer, one.size))

        threads = [Thread(target=exchange, args=(peer,)) for peer in peers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(updates) < one.clients:
            sys.exit("a client has gone")
        mean = np.sum(updates, axis=0) / one.clients + np.float32(one.options.get("error", 0))
        one.done(number, begin, time.perf_counter(), mean)
