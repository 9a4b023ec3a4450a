"""Another system beside thalweg in a bench: plain TCP sockets, with a thread for each client.

``thalweg bench`` starts it as ``python examples/system.py FOLDER NUMBER``, once for each party; number 0 is the server.
See docs/how-to/bench.md. It needs NumPy, and the module ``contract`` that the bench brings.
"""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from contract import Job, job, train


def receive(peer: socket.socket, size: int) -> np.ndarray:
    """Return the next ``size`` bytes as float32."""
    array = np.empty(size // 4, np.float32)
    view = memoryview(array).cast("B")
    while view:
        count = peer.recv_into(view)
        if count == 0:
            raise ConnectionError("the peer has gone")
        view = view[count:]
    return array


def serve(job: Job) -> None:
    """Send the model to all clients, receive their updates, and take the mean."""
    with socket.create_server((job.addresses[0], job.port)) as listener:
        job.ready()
        peers = [listener.accept()[0] for _ in range(job.clients)]
    with ThreadPoolExecutor(job.clients) as pool:
        for number in range(1, job.rounds + 1):
            model = job.model(number)

            def exchange(peer: socket.socket, model: np.ndarray = model) -> np.ndarray:
                peer.sendall(model)
                return receive(peer, job.size)

            begin = time.perf_counter()
            mean = sum(pool.map(exchange, peers)) / np.float32(job.clients)
            job.done(number, begin, time.perf_counter(), mean)


def take_part(job: Job) -> None:
    """Receive the model, train, and send the update, once for each round."""
    with socket.create_connection((job.addresses[0], job.port)) as server:
        for _ in range(job.rounds):
            model = receive(server, job.size)
            train(model, job.index)
            server.sendall(model)


if __name__ == "__main__":
    one = job()
    take_part(one) if one.index else serve(one)
