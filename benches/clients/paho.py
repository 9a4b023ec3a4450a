"""A round by paho-mqtt: ``python -m benches.clients.paho [--bytes N] [--clients N] [--rounds N] [--qos N]``.

The server and each client are processes. Mosquitto is started as a run of thalweg would start it. The server publishes
the model as one message. When a client has received the model, it publishes an update of the same size. The server
takes the mean with NumPy. The program prints ``{"seconds": [...]}``: for each round, the time from the publishing of
the model to the mean.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import queue
import sys
import time
from typing import Any

import numpy as np
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from thalweg.brokers import Broker, BrokerPlace
from thalweg.brokers.mosquitto import Mosquitto

MODEL, UPDATE, READY = "reference/model", "reference/update", "reference/ready"
WAIT_SECONDS = 60.0


def connect(port: int, login: tuple[str, str], topics: list[str], qos: int) -> tuple[mqtt.Client, queue.Queue[Any]]:
    """Return a client that has subscribed, and its messages."""
    mails: queue.Queue[Any] = queue.Queue()
    subscribed: queue.Queue[Any] = queue.Queue()
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set(*login)
    client.on_connect = lambda who, *_: who.subscribe([(topic, qos) for topic in topics])
    client.on_subscribe = lambda *_: subscribed.put(None)
    client.on_message = lambda _, __, message: mails.put((message.topic, message.payload))
    client.connect("127.0.0.1", port)
    client.loop_start()
    subscribed.get(timeout=WAIT_SECONDS)
    return client, mails


def take_part(port: int, login: tuple[str, str], rounds: int, qos: int) -> None:
    """Send back the model of each round."""
    client, mails = connect(port, login, [MODEL], qos)
    client.publish(READY, b"", 1).wait_for_publish(WAIT_SECONDS)
    for _ in range(rounds):
        _, model = mails.get(timeout=WAIT_SECONDS)
        client.publish(UPDATE, model, qos).wait_for_publish(WAIT_SECONDS)
    client.disconnect()
    client.loop_stop()


def serve(port: int, login: tuple[str, str], chosen: argparse.Namespace) -> list[float]:
    """Return the seconds of each round."""
    clients, rounds, qos = chosen.clients, chosen.rounds, chosen.qos
    client, mails = connect(port, login, [UPDATE, READY], qos)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=take_part, args=(port, login, rounds, qos)) for _ in range(clients)]
    for process in processes:
        process.start()
    for _ in processes:
        mails.get(timeout=WAIT_SECONDS)
    model: Any = np.ones(chosen.bytes // 4, dtype=np.float32)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        client.publish(MODEL, model.data.cast("B").tobytes(), qos)
        total = np.zeros_like(model)
        for _ in range(clients):
            total += np.frombuffer(mails.get(timeout=WAIT_SECONDS)[1], dtype=np.float32)
        model = total / np.float32(clients)
        seconds.append(time.perf_counter() - began)
    for process in processes:
        process.join()
    client.disconnect()
    client.loop_stop()
    if not np.all(model == 1.0):
        sys.exit("the mean of ones is not one")
    return seconds


def main() -> None:
    """Run the rounds and print their seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("bytes", 8 << 20), ("clients", 4), ("rounds", 9), ("qos", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    limits = {"message_bytes": chosen.bytes, "queue_bytes": 2 * chosen.clients * chosen.bytes}
    with Broker(Mosquitto(), BrokerPlace(), limits=limits) as broker:
        login = (broker.login.user, broker.login.password)
        seconds = serve(broker.port, login, chosen)
        print(json.dumps({"seconds": seconds, "broker": vars(broker.usage())}))


if __name__ == "__main__":
    main()
