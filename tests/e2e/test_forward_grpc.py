"""``thalweg forward --grpc`` between unmodified gRPC programs. Both ends terminate HTTP/2, or only the near end."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Program

pytestmark = pytest.mark.e2e
grpc = pytest.importorskip("grpc", reason="needs grpcio, which comes with thalweg[flower]")

LOCAL = "127.0.0.1"
LIMIT = 60.0
WINDOW = 256 << 10
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Service:
    """A service with every kind of call, which records them."""

    def __init__(self) -> None:
        self.produced = 0
        self.waiting = threading.Event()
        self.cancelled = threading.Event()
        self.release = threading.Event()
        self.pushed: list[bytes] = []
        self.ordered = True

    def one(self, request: bytes, context: Any) -> bytes:
        """Answer a message with the reversed message, and metadata with the same metadata."""
        metadata = dict(context.invocation_metadata())
        context.send_initial_metadata((("said", metadata.get("ask", "nothing")),))
        context.set_trailing_metadata((("bytes", str(len(request))), ("raw-bin", bytes(range(256)))))
        return request[::-1]

    def many(self, request: bytes, _context: Any) -> Iterator[bytes]:
        """Answer ``count size`` with ``count`` messages of ``size`` bytes."""
        count, size = (int(word) for word in request.split())
        for number in range(count):
            self.produced += size
            yield number.to_bytes(4, "big") + bytes(size - 4)

    def total(self, requests: Iterator[bytes], context: Any) -> bytes:
        """Return the sum of the messages' lengths. At a message ``stop`` refuse the call without reading the rest."""
        total = 0
        for request in requests:
            if request == b"stop":
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "enough: \u00e4\u00f6\u00fc")
            total += len(request)
        return str(total).encode()

    def chat(self, requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        """Answer each message as soon as it arrives."""
        for request in requests:
            yield b"you said " + request

    def wait(self, _request: bytes, context: Any) -> bytes:
        """Wait until the caller gives up."""
        # A call that has been cancelled already does not accept a callback.
        if not context.add_callback(self.cancelled.set):
            self.cancelled.set()
        self.waiting.set()
        self.cancelled.wait(LIMIT)
        return b""

    def push(self, requests: Iterator[bytes], context: Any) -> bytes:
        """Receive pushed messages once the test allows it. A message ``fail`` makes the call fail."""
        whole = b"".join(requests)
        before = len(self.pushed)
        self.release.wait(LIMIT)
        self.ordered &= before == len(self.pushed)
        self.pushed.append(whole)
        if whole == b"fail":
            context.abort(grpc.StatusCode.DATA_LOSS, "not kept")
        return b"from the server"

    def handlers(self) -> Any:
        """Return the service's methods as gRPC's handlers."""
        shapes = {
            "one": grpc.unary_unary_rpc_method_handler(self.one),
            "many": grpc.unary_stream_rpc_method_handler(self.many),
            "total": grpc.stream_unary_rpc_method_handler(self.total),
            "chat": grpc.stream_stream_rpc_method_handler(self.chat),
            "wait": grpc.unary_unary_rpc_method_handler(self.wait),
            "push": grpc.stream_unary_rpc_method_handler(self.push),
        }
        return grpc.method_handlers_generic_handler("test.Shapes", shapes)


class Route:
    """A server, and both ends of a path to it."""

    def __init__(self, folder: Path, near: tuple[str, ...] = ("--grpc",), far: tuple[str, ...] = ("--grpc",)) -> None:
        self.service = Service()
        self.server = grpc.server(ThreadPoolExecutor(16), options=UNLIMITED)
        self.server.add_generic_rpc_handlers((self.service.handlers(),))
        port = self.server.add_insecure_port(f"{LOCAL}:0")
        self.server.start()
        window = ("--window", f"{WINDOW >> 10}KiB", "--json")
        to = ("--listen", f"tcp://{LOCAL}:0", "--to", f"{LOCAL}:{port}")
        self.far = Program(["forward", *to, *far, *window], folder)
        via = ("--listen", ":0", "--via", self.said(self.far)["listen"])
        self.near = Program(["forward", *via, *near, *window], folder)
        self.listening = self.said(self.near)
        self.address = self.listening["listen"]

    @staticmethod
    def said(end: Program) -> dict[str, Any]:
        """Return the next line of JSON that an end prints."""
        assert end.process.stdout is not None
        event: dict[str, Any] = json.loads(end.process.stdout.readline())
        return event

    def until(self, end: Program, kind: str) -> dict[str, Any]:
        """Return the next event of this kind."""
        while True:
            event = self.said(end)
            if event["event"] == kind:
                return event

    def close(self) -> None:
        """End both ends and the server."""
        self.service.release.set()
        self.service.cancelled.set()
        for end in (self.near, self.far):
            runs = end.process.poll() is None
            end.process.send_signal(signal.SIGTERM)  # does nothing if a test has killed the process
            code = end.end()[0]
            assert code == 0 or not runs
        self.server.stop(None).wait(LIMIT)


@pytest.fixture(scope="module", params=["both", "near"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Route]:
    """Serve behind a near end that terminates HTTP/2, and a far end that may do so too."""
    path = Route(tmp_path_factory.mktemp("forward"), far=("--grpc",) if request.param == "both" else ())
    yield path
    path.close()


@pytest.fixture
def channel(path: Route) -> Iterator[Any]:
    """Open a gRPC channel to the server through both ends, over a connection of its own."""
    own = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(path.address, options=own) as channel:
        yield channel


def test_every_shape_of_call_with_its_metadata(channel: Any) -> None:
    one = channel.unary_unary("/test.Shapes/one")
    answer, call = one.with_call(b"hello", metadata=(("ask", "this"),), timeout=LIMIT)
    assert answer == b"olleh"
    assert ("said", "this") in call.initial_metadata()
    assert {("bytes", "5"), ("raw-bin", bytes(range(256)))} <= set(call.trailing_metadata())
    assert one(b"", timeout=LIMIT) == b""
    many = channel.unary_stream("/test.Shapes/many")(b"100 5000", timeout=LIMIT)
    assert [int.from_bytes(message[:4], "big") for message in many] == list(range(100))
    total = channel.stream_unary("/test.Shapes/total")
    assert total((bytes(size) for size in range(200)), timeout=LIMIT) == b"19900"
    assert total(iter(()), timeout=LIMIT) == b"0"
    heard: list[bytes] = []
    proceed = threading.Semaphore(1)

    def turns() -> Iterator[bytes]:
        for number in range(5):
            assert proceed.acquire(timeout=LIMIT)
            yield str(number).encode()

    for answer in channel.stream_stream("/test.Shapes/chat")(turns(), timeout=LIMIT):
        heard.append(answer)
        proceed.release()
    assert heard == [f"you said {number}".encode() for number in range(5)]


def test_errors_come_with_their_code_and_words(channel: Any) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/test.Shapes/nothing")(b"", timeout=LIMIT)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    endless = iter(lambda: bytes(10_000), None)

    def requests() -> Iterator[bytes]:
        yield b"stop"
        yield from endless

    with pytest.raises(grpc.RpcError) as refused:
        channel.stream_unary("/test.Shapes/total")(requests(), timeout=LIMIT)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "enough: \u00e4\u00f6\u00fc"


def test_a_cancelled_call_is_cancelled_at_the_server(path: Route, channel: Any) -> None:
    path.service.cancelled.clear()
    path.service.waiting.clear()
    call = channel.unary_unary("/test.Shapes/wait").future(b"")
    assert path.service.waiting.wait(LIMIT)
    assert channel.unary_unary("/test.Shapes/one")(b"ab", timeout=LIMIT) == b"ba"
    call.cancel()
    assert path.service.cancelled.wait(LIMIT)
    path.service.cancelled.clear()
    with pytest.raises(grpc.RpcError) as late:
        channel.unary_unary("/test.Shapes/wait")(b"", timeout=0.2)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert path.service.cancelled.wait(LIMIT)


def test_a_stalled_reader_stops_its_own_call_alone(path: Route, channel: Any) -> None:
    path.service.produced = 0
    stalled = channel.unary_stream("/test.Shapes/many")(b"10000 100000", timeout=LIMIT)
    next(stalled)
    one = channel.unary_unary("/test.Shapes/one")
    for _ in range(20):
        assert len(one(bytes(200_000), timeout=LIMIT)) == 200_000
    # The part of 1 GB that the gRPC programs, both ends of the path and the kernel may hold in buffers.
    assert path.service.produced < 64 << 20
    stalled.cancel()


def test_large_messages_pass_through_small_windows(channel: Any) -> None:
    message = bytes(range(256)) * (48 << 12)
    assert len(message) > 100 * WINDOW
    assert channel.unary_unary("/test.Shapes/one")(message, timeout=LIMIT) == message[::-1]


def test_calls_at_once_keep_apart(channel: Any) -> None:
    one = channel.unary_unary("/test.Shapes/one")
    messages = [str(number).encode() * 2000 for number in range(400)]
    calls = [one.future(message, timeout=LIMIT) for message in messages]
    assert [call.result() for call in calls] == [message[::-1] for message in messages]


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BAD = {
    "it speaks TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "does not speak HTTP/2": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "HTTP/2 broke": PREFACE + b"\x00\x00\x08\x07\x00\x00\x00\x00\x01" + bytes(8),
    "a frame of 16 MB": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100),
}


@pytest.mark.parametrize("words", list(BAD))
def test_bytes_that_are_not_http2_end_only_their_own_connection(path: Route, channel: Any, words: str) -> None:
    assert channel.unary_unary("/test.Shapes/one")(b"ab", timeout=LIMIT) == b"ba"
    with socket.create_connection(path.address.rsplit(":", 1), timeout=LIMIT) as program:
        program.sendall(BAD[words])
        with suppress(OSError):  # the near end may have closed it, or closes it before it has read everything
            program.shutdown(socket.SHUT_WR)
            while program.recv(1 << 16):
                pass
    while (error := path.until(path.near, "end")["error"]) is None:
        pass
    assert words.startswith("a frame") or words in error
    assert channel.unary_unary("/test.Shapes/one")(b"cd", timeout=LIMIT) == b"dc"


def test_an_idle_program_ends_without_a_word(path: Route) -> None:
    with socket.create_connection(path.address.rsplit(":", 1), timeout=LIMIT) as program:
        program.shutdown(socket.SHUT_WR)
        assert program.recv(1) == b""


METHOD = "/test.Shapes/push"


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Route]:
    """Serve behind a near end that answers pushes."""
    (tmp_path / "answer").write_bytes(b"from the near end")
    path = Route(tmp_path, near=("--grpc", "--answer", f"{METHOD}={tmp_path / 'answer'}"))
    yield path
    path.close()


def test_answers_come_before_the_server_has_given_any(answering: Route) -> None:
    assert answering.listening["answers"] == [METHOD]
    service = answering.service
    with grpc.insecure_channel(answering.address) as channel:
        push = channel.stream_unary(METHOD)
        parts = [bytes([number]) * 30_000 for number in range(20)]
        for part in parts:
            assert push(iter((part[:10_000], part[10_000:])), timeout=LIMIT) == b"from the near end"
        assert not service.pushed
        after = channel.unary_unary("/test.Shapes/one").future(b"ab", timeout=LIMIT)
        service.release.set()
        assert after.result() == b"ba"
        # This call was the last one, so the server must have received all the others before it, one after the other.
        assert service.ordered
        assert service.pushed == parts
        push(iter((b"fail",)), timeout=LIMIT)
        note = answering.until(answering.near, "note")["what"]
        assert METHOD in note
        assert "not kept" in note
    ended = answering.until(answering.near, "end")
    assert (ended["calls"], ended["answered"], ended["unkept"], ended["error"]) == (22, 21, 1, None)


def test_a_program_that_is_gone_has_its_answered_calls_made(answering: Route) -> None:
    with grpc.insecure_channel(answering.address) as channel:
        for number in range(3):
            channel.stream_unary(METHOD)(iter((bytes([number]) * 200_000,)), timeout=LIMIT)
    answering.service.release.set()
    ended = answering.until(answering.near, "end")
    assert (ended["answered"], ended["unkept"], ended["error"]) == (3, 0, None)
    assert [len(whole) for whole in answering.service.pushed] == [200_000] * 3


def test_a_link_that_ends_says_how_many_answers_were_not_kept(answering: Route) -> None:
    with grpc.insecure_channel(answering.address) as channel:
        channel.stream_unary(METHOD)(iter((b"lost",)), timeout=LIMIT)
        answering.far.process.kill()
        ended = answering.until(answering.near, "end")
    assert (ended["answered"], ended["unkept"]) == (1, 1)
    assert "link has ended" in ended["error"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--via", "tcp://127.0.0.1:1", "--answer", METHOD), "--via and --grpc"),
        (("--to", ":1", "--grpc", "--answer", METHOD), "--via and --grpc"),
        (("--via", "tcp://127.0.0.1:1", "--grpc", "--answer", "push"), "/package.Service/Method"),
        (("--via", "tcp://127.0.0.1:1", "--grpc", "--answer", f"{METHOD}=nowhere"), "cannot be read"),
    ],
)
def test_answers_that_cannot_be_given_are_refused(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    code, out, err = Program(["forward", "--listen", ":0", *options, "--json"], tmp_path).end()
    assert code == 2, err
    assert words in out
