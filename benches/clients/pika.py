"""Rounds by pika, RabbitMQ's Python client, as FedComm's code has them: ``python -m benches.clients.pika``.

A server and its clients are processes. The server publishes the model to a fan-out exchange as one message, each
client publishes it back as one message to the server's queue, and the server takes the mean with NumPy. Nothing is
encoded: the payload is bytes. Nothing is acknowledged or confirmed, as in FedComm's code. It prints
``{"seconds": [...], "peak_rss_bytes": ...}``, a time for each round, from the publishing of the model to the mean.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pika  # type: ignore[import-untyped]


def main() -> None:
    """Run the rounds and print their times."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--port", type=int, required=True, help="of the broker on this machine")
    arguments.add_argument("--login-file", type=Path, required=True, help="file with one line user:password")
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--bytes", type=int, default=8 << 20, help="of the model, a multiple of 4")
    chosen = arguments.parse_args()
    user, _, password = chosen.login_file.read_text().strip().partition(":")
    broker = pika.ConnectionParameters("127.0.0.1", chosen.port, credentials=pika.PlainCredentials(user, password))
    names = f"pika.{os.getpid()}"
    context = multiprocessing.get_context("spawn")
    clients = [
        context.Process(target=client, args=(broker, names, chosen.rounds), daemon=True) for _ in range(chosen.clients)
    ]
    seconds = serve(broker, names, clients, chosen.rounds, chosen.bytes)
    for process in clients:
        process.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_rss_bytes": peak}))


def serve(broker: pika.ConnectionParameters, names: str, clients: list[Any], rounds: int, size: int) -> list[float]:
    """Run the server's side and return the seconds of each round."""
    connection = pika.BlockingConnection(broker)
    channel = connection.channel()
    channel.exchange_declare(names, exchange_type="fanout", auto_delete=True)
    channel.queue_declare(names, exclusive=True)
    came = channel.consume(names, auto_ack=True)
    for process in clients:
        process.start()
    for _ in clients:
        next(came)
    model = np.ones(size // 4, np.float32)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        channel.basic_publish(names, "", model.tobytes())
        total = np.zeros_like(model)
        for _ in clients:
            _, _, body = next(came)
            total += np.frombuffer(body, np.float32)
        model = total / np.float32(len(clients))
        seconds.append(time.perf_counter() - began)
        if not np.array_equal(model[:: 1 << 10], np.ones_like(model[:: 1 << 10])):
            raise SystemExit("the mean is not that of the updates")
    connection.close()
    return seconds


def client(broker: pika.ConnectionParameters, names: str, rounds: int) -> None:
    """Publish back what comes."""
    connection = pika.BlockingConnection(broker)
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, names)
    came = channel.consume(queue, auto_ack=True)
    channel.basic_publish("", names, b"here")
    for _ in range(rounds):
        _, _, body = next(came)
        channel.basic_publish("", names, body)
    connection.close()


if __name__ == "__main__":
    main()
