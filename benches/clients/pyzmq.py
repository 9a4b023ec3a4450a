"""A round by pyzmq: ``python -m benches.clients.pyzmq [--bytes N] [--clients N] [--rounds N] [--pattern router]
[--own]``.

The server and each client are processes; there is no broker. The server sends the model as one message: by a ROUTER
socket to each client, or once by a PUB socket, which copies it for each client. Each client sends an update of the same
size back to the ROUTER, and the server takes the mean with NumPy. Messages are passed without a copy where pyzmq can do
that. A client sends back the message that it received. With ``--own`` it first copies the message into an array of its
own, as it would to train a model, and sends that. The program prints ``{"seconds": [...]}``: for each round, the time
from the first send to the mean.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from typing import Any

import numpy as np
import zmq

WAIT_MILLISECONDS = 60_000
READY = b"ready"


def client(ports: tuple[int, int], rounds: int, pattern: str, own: bool) -> None:
    """Send back the model of each round."""
    array: Any = None
    context = zmq.Context()
    back = context.socket(zmq.DEALER)
    back.connect(f"tcp://127.0.0.1:{ports[0]}")
    models = back
    if pattern == "pubsub":
        models = context.socket(zmq.SUB)
        models.setsockopt(zmq.SUBSCRIBE, b"")
        models.connect(f"tcp://127.0.0.1:{ports[1]}")
    models.setsockopt(zmq.RCVTIMEO, WAIT_MILLISECONDS)
    if pattern == "pubsub":
        # The subscription is in effect when the first published message has arrived.
        models.recv()
    back.send(READY)
    done = 0
    while done < rounds:
        model = models.recv(copy=False)
        if len(model.buffer) > len(READY):
            if own:
                came = np.frombuffer(model.buffer, dtype=np.float32)
                array = np.empty_like(came) if array is None else array
                np.copyto(array, came)
            # The server sends the next model only after it has received this whole update.
            back.send(array if own else model, copy=False)
            done += 1
    context.destroy()


def serve(context: Any, chosen: argparse.Namespace) -> list[float]:
    """Return the seconds of each round."""
    inbox, public = context.socket(zmq.ROUTER), context.socket(zmq.PUB)
    inbox.setsockopt(zmq.RCVTIMEO, WAIT_MILLISECONDS)
    ports = tuple(socket.bind_to_random_port("tcp://127.0.0.1") for socket in (inbox, public))
    spawn = multiprocessing.get_context("spawn")
    made = [
        spawn.Process(target=client, args=(ports, chosen.rounds, chosen.pattern, chosen.own), daemon=True)
        for _ in range(chosen.clients)
    ]
    for process in made:
        process.start()
    names = wait_for_clients(inbox, public, chosen)
    model: Any = np.ones(chosen.bytes // 4, dtype=np.float32)
    seconds = []
    for _ in range(chosen.rounds):
        began = time.perf_counter()
        if chosen.pattern == "pubsub":
            public.send(model, copy=False)
        for name in names if chosen.pattern == "router" else ():
            inbox.send_multipart([name, model], copy=False)
        total = np.zeros_like(model)
        for _ in names:
            total += np.frombuffer(inbox.recv_multipart(copy=False)[-1].buffer, dtype=np.float32)
        model = total / np.float32(len(names))
        seconds.append(time.perf_counter() - began)
    for process in made:
        process.join()
    if not np.all(model == 1.0):
        sys.exit("the mean of ones is not one")
    return seconds


def wait_for_clients(inbox: Any, public: Any, chosen: argparse.Namespace) -> list[bytes]:
    """Wait for a message from each client, and return the clients' names."""
    names: list[bytes] = []
    while len(names) < chosen.clients:
        public.send(READY)
        if inbox.poll(10):
            names.append(inbox.recv_multipart()[0])
    return names


def main() -> None:
    """Run the rounds and print their seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("bytes", 8 << 20), ("clients", 4), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pattern", choices=("router", "pubsub"), default="router")
    parser.add_argument("--own", action="store_true")
    context = zmq.Context()
    seconds = serve(context, parser.parse_args())
    context.destroy()
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
