"""Adds one to the model; the client of the faulty partition, or each client if that is -1, has a fault.

The fault: it raises, never answers, exits, sends a reply that is far too large, or leaves a process behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def raises(context: Context) -> int:
    raise ValueError("this client cannot train")


def silent(context: Context) -> int:
    threading.Event().wait()  # for ever: a test ends this process
    return 0


def exits(context: Context) -> int:
    os._exit(3)  # as a crash in native code does: nothing is cleaned up


def oversized(context: Context) -> int:
    return context.run_config["reply-mib"] << 20


def leaves(context: Context) -> int:
    """Start a process that inherits this one's standard output and ignores SIGTERM. Write its process id to a file."""
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    left = subprocess.Popen([sys.executable, "-c", program])
    Path(os.environ["LEFT"]).write_text(str(left.pid))
    return 0


FAULTS = {"raises": raises, "silent": silent, "exits": exits, "oversized": oversized, "leaves": leaves}


@app.train()
def train(message: Message, context: Context) -> Message:
    excess = 0
    if context.run_config["faulty-partition"] in (-1, context.node_config["partition-id"]):
        excess = FAULTS[context.run_config["fault"]](context)
    arrays = ArrayRecord({name: Array(array.numpy() + 1) for name, array in message.content["arrays"].items()})
    if excess:
        arrays["excess"] = Array(np.zeros(excess, np.uint8))
    metrics = MetricRecord({"num-examples": 1, "partition": context.node_config["partition-id"]})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
