"""Compares a streaming gRPC call over loopback, directly to its server, with one through ``thalweg forward``."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from benches.common import MIB, Figure, Spread

SIZE: Final = 256 * MIB
MESSAGE: Final = MIB
REPEATS: Final = 7
METHOD: Final = "/bench.Stream/total"
LOCAL: Final = "127.0.0.1"


def forwarding() -> list[Figure]:
    """Measure the bytes per second of each route, alternately. Without grpcio, return a figure that says so."""
    try:
        grpc: Any = importlib.import_module("grpc")
    except ImportError:
        return [Figure("forward, 256 MiB by gRPC", "needs grpcio, which comes with thalweg[flower]", "", None)]
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
    handler = grpc.stream_unary_rpc_method_handler(_total)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Stream", {"total": handler}),))
    port = server.add_insecure_port(f"{LOCAL}:0")
    server.start()
    straight = f"{LOCAL}:{port}"
    try:
        with _route(straight) as streams, _route(straight, "--grpc") as calls:
            ways = {"straight to the server": straight, "through forward": streams, "through forward --grpc": calls}
            rates_by_way: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(REPEATS):
                for name, address in ways.items():
                    rates_by_way[name].append(_sent(grpc, address))
    finally:
        server.stop(None)
    return [
        Figure(
            f"256 MiB in messages of 1 MiB by gRPC, loopback, {name}",
            f"{Spread.of(rates).text(1e-6, 0)} MB/s",
            "",
            None,
            {"bytes_per_second": rates},
        )
        for name, rates in rates_by_way.items()
    ]


def _total(requests: Iterator[bytes], _context: Any) -> bytes:
    return str(sum(len(request) for request in requests)).encode()


def _sent(grpc: Any, address: str) -> float:
    """Return the bytes per second of one call over a connection that is open already."""
    with grpc.insecure_channel(address) as channel:
        call = channel.stream_unary(METHOD)
        message = bytes(MESSAGE)
        call(iter([message]))
        begun = time.monotonic()
        total = int(call(message for _ in range(SIZE // MESSAGE)))
        took = time.monotonic() - begun
    if total != SIZE:
        raise RuntimeError(f"the server received {total} of {SIZE} bytes")
    return SIZE / took


@contextmanager
def _route(server: str, *options: str) -> Iterator[str]:
    """Start both ends in front of a server, and yield the near end's address."""
    started: list[subprocess.Popen[str]] = []

    def end(*arguments: str) -> str:
        command = [sys.executable, "-m", "thalweg", "forward", *arguments, *options, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return str(json.loads(process.stdout.readline())["listen"])

    try:
        far = end("--listen", f"tcp://{LOCAL}:0", "--to", server)
        yield end("--listen", f"{LOCAL}:0", "--via", far)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait()
