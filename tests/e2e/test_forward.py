"""``thalweg forward`` as users start it: a TCP server and its programs, with both ends between them."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.e2e.conftest import Program

pytestmark = pytest.mark.e2e

Start = Callable[..., Program]
LOCAL = "127.0.0.1"
MESSAGE = bytes(range(256)) * 4096


@contextmanager
def reverser() -> Iterator[int]:
    """Serve connections: receive all bytes, then send them back in reverse."""

    def serve(peer: socket.socket) -> None:
        with peer, suppress(OSError):  # a test may have killed the program at the other end
            parts = list(iter(lambda: peer.recv(1 << 16), b""))
            peer.sendall(b"".join(parts)[::-1])

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return  # the test is over
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    with socket.create_server((LOCAL, 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def ask(port: int, message: bytes) -> bytes:
    with socket.create_connection((LOCAL, port), timeout=60) as program:
        program.sendall(message)
        program.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: program.recv(1 << 16), b""))


def said(program: Program) -> dict[str, Any]:
    """Return the next line of JSON that an end prints."""
    assert program.process.stdout is not None
    event: dict[str, Any] = json.loads(program.process.stdout.readline())
    return event


def events(program: Program, number: signal.Signals = signal.SIGTERM) -> list[dict[str, Any]]:
    """End this end of the path, and return its events that were not read yet."""
    program.process.send_signal(number)
    code, out, err = program.end()
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize(("scheme", "number"), [("tcp", signal.SIGTERM), ("ltp", signal.SIGINT)])
def test_a_program_reaches_its_server_and_both_ends_say_so(start: Start, scheme: str, number: signal.Signals) -> None:
    with reverser() as server:
        far = start("forward", "--listen", f"{scheme}://{LOCAL}:0", "--to", f"{LOCAL}:{server}", "--json")
        url = said(far)["listen"]
        near = start("forward", "--listen", ":0", "--via", url, "--name", "site-1", "--json")
        listening = said(near)
        assert (listening["event"], listening["via"]) == ("listening", url)
        host, _, port = listening["listen"].partition(":")
        assert host == LOCAL
        assert ask(int(port), MESSAGE) == MESSAGE[::-1]
        heard = [said(near) for _ in range(3)]
        assert [event["event"] for event in heard] == ["link", "connection", "end"]
        assert (heard[2]["sent"], heard[2]["received"], heard[2]["error"]) == (len(MESSAGE), len(MESSAGE), None)
        assert events(near, number) == [{"event": "stopped", "connections": 1}]
        told = events(far, number)
    assert [event["event"] for event in told] == ["link", "connection", "end", "link", "stopped"]
    assert told[1]["from"] == "site-1"
    assert "the near end was stopped" in told[3]["why"]


def test_unmodified_grpc_speaks_through_it(start: Start) -> None:
    grpc = pytest.importorskip("grpc", reason="needs grpcio, which comes with thalweg[flower]")

    def one(request: bytes, _context: Any) -> bytes:
        return request[::-1]

    def many(request: bytes, _context: Any) -> Iterator[bytes]:
        for at in range(0, len(request), 1 << 16):
            yield request[at : at + (1 << 16)]

    calls = {"one": grpc.unary_unary_rpc_method_handler(one), "many": grpc.unary_stream_rpc_method_handler(many)}
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", calls),))
    port = server.add_insecure_port(f"{LOCAL}:0")
    server.start()
    try:
        far = start("forward", "--listen", f"ltp://{LOCAL}:0", "--to", f"{LOCAL}:{port}", "--json")
        near = start("forward", "--listen", ":0", "--via", said(far)["listen"], "--json")
        with grpc.insecure_channel(said(near)["listen"]) as channel:
            assert channel.unary_unary("/test.Echo/one")(MESSAGE, timeout=60) == MESSAGE[::-1]
            assert b"".join(channel.unary_stream("/test.Echo/many")(MESSAGE, timeout=60)) == MESSAGE
    finally:
        server.stop(None)


def test_a_killed_far_end_resets_programs_and_a_new_one_takes_over(start: Start) -> None:
    with reverser() as server:
        far = start("forward", "--listen", f"tcp://{LOCAL}:0", "--to", f"{LOCAL}:{server}", "--json")
        url = said(far)["listen"]
        near = start("forward", "--listen", ":0", "--via", url)
        port = int(near.until("listening at").partition(f"{LOCAL}:")[2].partition(",")[0])
        near.until(": up")
        with socket.create_connection((LOCAL, port), timeout=60) as program:
            program.sendall(b"half a question")
            said(far), said(far)  # the link, and the connection
            far.process.kill()
            near.until("reset, the link has ended")
            with pytest.raises(ConnectionResetError):
                program.recv(1)
        near.until(": down")
        start("forward", "--listen", url, "--to", f"{LOCAL}:{server}")
        assert ask(port, b"again") == b"niaga"


def test_beyond_this_machine_a_near_end_needs_its_token(start: Start) -> None:
    assert start("pki", "init", "--host", LOCAL).end()[0] == 0
    assert start("pki", "issue", "site-1", "--role", "forward").end()[0] == 0
    with reverser() as server:
        far = start("forward", "--listen", "tcp://0.0.0.0:0", "--to", f":{server}", "--pki", "pki", "--json")
        url = f"tcp://{LOCAL}:{said(far)['listen'].rpartition(':')[2]}"
        code, out, err = start("forward", "--listen", ":0", "--via", url, "--ca", "pki/ca.crt", "--json").end()
        assert code == 1
        assert "shows neither token nor certificate" in json.loads(out)["error"]["cause"] + err
        near = start("forward", "--listen", ":0", "--via", url, "--token-file", "pki/site-1.token", "--json")
        assert ask(int(said(near)["listen"].rpartition(":")[2]), b"hello") == b"olleh"
        told = [said(far), said(far), said(far)]
        assert [event["event"] for event in told] == ["note", "link", "connection"]
        assert told[1]["peer"].startswith("site-1 at ")
