"""``thalweg forward --mask`` as users start it. crates/transports/unifl/tests/proxy.rs tests the masking itself."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import Program, why_no_lab

pytestmark = pytest.mark.e2e

Start = Callable[..., Program]
LOCAL = "127.0.0.1"


@contextmanager
def echo() -> Iterator[int]:
    """Serve one connection: receive all bytes, then send them back."""
    with socket.create_server((LOCAL, 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                parts = list(iter(lambda: peer.recv(1 << 16), b""))
                peer.sendall(b"".join(parts))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]


def exchange(port: int, message: bytes) -> bytes:
    with socket.create_connection((LOCAL, port)) as client:
        client.sendall(message)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_plain_proxy_carries_bytes_and_ends_when_it_is_told(start: Start, number: signal.Signals) -> None:
    with echo() as server:
        program = start("forward", "--mask", "--listen", f"{LOCAL}:0", "--to", f"{LOCAL}:{server}", "--plain")
        line = program.until("listening at")
        assert "as an ordinary TCP proxy: the loopback loses nothing" in line
        port = int(line.partition(f"{LOCAL}:")[2].partition(" ")[0])
        message = bytes(range(256)) * 4096
        assert exchange(port, message) == message
        program.until("1.0 MiB, 0 B of it in 0 holes; 1.0 MiB back")
    program.process.send_signal(number)
    code, out, err = program.end()
    assert (code, "ended; connections: 1" in err) == (0, True)
    assert [json.loads(text)["event"] for text in out.splitlines()] == ["connection", "end"]


def test_events_are_lines_of_json(start: Start, tmp_path: Path) -> None:
    listen = ("--listen", f"{LOCAL}:0", "--holes", "holes.jsonl", "--plain", "--json")
    with echo() as server:
        program = start("forward", "--mask", "--to", f"{LOCAL}:{server}", *listen)
        assert program.process.stdout is not None
        listening = json.loads(program.process.stdout.readline())
        assert (listening["event"], listening["masks"], listening["holes"]) == ("listening", False, "holes.jsonl")
        assert exchange(int(listening["listen"].rpartition(":")[2]), b"hello") == b"hello"
        events = [json.loads(program.process.stdout.readline()) for _ in range(2)]
    program.process.terminate()
    code, out, err = program.end()
    assert (code, err) == (0, "")
    events += [json.loads(text) for text in out.splitlines()]
    assert [event["event"] for event in events] == ["connection", "end", "stopped"]
    assert (events[1]["bytes"], events[1]["returned"], events[1]["error"]) == (5, 5, None)
    mapped = [json.loads(text) for text in (tmp_path / "holes.jsonl").read_text().splitlines()]
    assert mapped == events[:2]


def test_without_the_capability_the_proxy_names_what_is_missing(start: Start) -> None:
    address = own_address()
    drop = shutil.which("setpriv")
    if why_no_lab() or address is None or drop is None:
        pytest.skip("needs root, setpriv and an address beside the loopback")
    # Run as root, but without the capability to make devices.
    arguments = ("forward", "--mask", "--listen", f"{address}:0", "--to", ":9")
    program = start(*arguments, through=(drop, "--bounding-set=-net_admin", "--inh-caps=-net_admin"))
    code, out, err = program.end()
    assert (code, out) == (2, "")
    assert "run it as root, or with CAP_NET_ADMIN" in err
    assert "--plain" in err.splitlines()[-1]


def own_address() -> str | None:
    """Return an IPv4 address of this machine that others could reach; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address
