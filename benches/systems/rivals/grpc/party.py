"""Plain gRPC: a unary call that fetches the model, and one that submits the update. The server adds up the updates.

Documentation: grpc.io, Python, "generic handlers". The size of a message has no limit, as it advises for large
messages. With the option ``chunk`` the bytes are streamed in messages of that size instead.
"""

from __future__ import annotations

import threading
import time
from concurrent import futures

import grpc
import numpy as np
from contract import Job, job, train

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def pieces(array: np.ndarray, chunk: int):
    view = memoryview(array).cast("B")
    return (bytes(view[at : at + chunk]) for at in range(0, len(view), chunk))


def joined(messages, size: int) -> np.ndarray:
    array, at = np.empty(size, np.uint8), 0
    for message in messages:
        array[at : at + len(message)] = np.frombuffer(message, np.uint8)
        at += len(message)
    return array.view(np.float32)


class Server:
    """The state of the current round. Calls wait in threads of gRPC's pool."""

    def __init__(self, job: Job) -> None:
        self.job, self.chunk = job, job.options.get("chunk")
        self.changed = threading.Condition()
        self.number, self.arrived = 0, 0
        self.model = self.sum = np.empty(0, np.float32)

    def fetch(self, request: bytes, _context):
        with self.changed:
            self.changed.wait_for(lambda: self.number == int(request))
        return pieces(self.model, self.chunk) if self.chunk else self.model.tobytes()

    def submit(self, request, _context) -> bytes:
        update = joined(request, self.job.size) if self.chunk else np.frombuffer(request, np.float32)
        with self.changed:
            self.sum += update
            self.arrived += 1
            self.changed.notify_all()
        return b""

    def round(self, number: int) -> np.ndarray:
        with self.changed:
            self.number, self.arrived = number, 0
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.arrived == self.job.clients)
        self.sum /= self.job.clients
        return self.sum


def serve(job: Job) -> None:
    state = Server(job)
    fetch = grpc.unary_stream_rpc_method_handler if state.chunk else grpc.unary_unary_rpc_method_handler
    submit = grpc.stream_unary_rpc_method_handler if state.chunk else grpc.unary_unary_rpc_method_handler
    server = grpc.server(futures.ThreadPoolExecutor(2 * job.clients + 2), options=UNLIMITED)
    handlers = {"fetch": fetch(state.fetch), "submit": submit(state.submit)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench", handlers)])
    server.add_insecure_port(job.server)
    server.start()
    job.ready()
    for number in range(1, job.rounds + 1):
        state.model, state.sum = job.model(number), np.zeros(job.size // 4, np.float32)
        begin = time.perf_counter()
        mean = state.round(number)
        job.done(number, begin, time.perf_counter(), mean)
    server.stop(1).wait()


def take_part(job: Job) -> None:
    chunk = job.options.get("chunk")
    with grpc.insecure_channel(job.server, options=UNLIMITED) as channel:
        fetch = channel.unary_stream("/bench/fetch") if chunk else channel.unary_unary("/bench/fetch")
        submit = channel.stream_unary("/bench/submit") if chunk else channel.unary_unary("/bench/submit")
        for number in range(1, job.rounds + 1):
            got = fetch(str(number).encode(), wait_for_ready=True)
            model = joined(got, job.size) if chunk else np.frombuffer(got, np.float32).copy()
            train(model, job.index)
            submit(pieces(model, chunk) if chunk else model.tobytes())


if __name__ == "__main__":
    one = job()
    serve(one) if one.index == 0 else take_part(one)
