"""Rounds by pika, RabbitMQ's Python client, as FedComm's code has them: ``python -m benches.clients.pika``.

A server and its clients are processes. The server publishes the model to a fan-out exchange as one message, each
client publishes it back as one message to the server's queue, and the server takes the mean with NumPy. Nothing is
encoded: the payload is bytes. Nothing is acknowledged or confirmed, as in FedComm's code. RabbitMQ is started as a run
of thalweg would start it. The program prints ``{"seconds": [...]}``: for each round, the time from the publishing of
the model to the mean.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from typing import Any

import numpy as np
import pika  # type: ignore[import-untyped]

from thalweg.brokers import Broker, BrokerPlace
from thalweg.brokers.rabbitmq import RabbitMq


def main() -> None:
    """Run the rounds and print their seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("bytes", 8 << 20), ("clients", 4), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    with Broker(RabbitMq(), BrokerPlace()) as private:
        login = pika.PlainCredentials(private.login.user, private.login.password)
        broker = pika.ConnectionParameters("127.0.0.1", private.port, credentials=login)
        names = f"pika.{os.getpid()}"
        context = multiprocessing.get_context("spawn")
        clients = [
            context.Process(target=client, args=(broker, names, chosen.rounds), daemon=True)
            for _ in range(chosen.clients)
        ]
        seconds = serve(broker, names, clients, chosen.rounds, chosen.bytes)
        for process in clients:
            process.join()
        print(json.dumps({"seconds": seconds, "broker": vars(private.usage())}))


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
    """Publish each received model back as an update."""
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
