"""A server that masks losses at an Ethernet device, as on a network of one's own: frames with headers and ARP."""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.conftest import Start, why_no_lab
from thalweg.record import Record

pytestmark = pytest.mark.e2e

TUNSETIFF: Final = 0x400454CA
IFF_TAP: Final = 0x0002
IFF_NO_PI: Final = 0x1000
FRAME: Final = 65536
# Of this many frames with payload from the client, one is lost.
EVERY: Final = 100
FULL: Final = 1000
BYTES: Final = 4 << 20
SERVER, CLIENT = "10.79.0.1", "10.79.0.2"
PLAN = f"""
[job]
rounds = 1
clients = 1
[model]
name = "payload:4MiB"
[transport]
url = "unifl"
[transport.options]
backend = "BACKEND"
budget = 0.05
[repair]
resend = false
[security]
tls = "off"
[hosts]
server = "{SERVER}:7070"
clients = {{ anna = "a" }}
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Wire:
    """Two namespaces with a TAP device each, and a thread that carries frames and loses some."""

    def __init__(self, ends: ExitStack) -> None:
        number = os.getpid() % 100_000
        self.names = [f"tw{number}a", f"tw{number}b"]
        self.taps: list[int] = []
        self.lost = 0
        over, wake = os.pipe()
        ends.callback(os.close, over)
        ends.callback(os.close, wake)
        for name, address in zip(self.names, (SERVER, CLIENT), strict=True):
            ip("netns", "add", name)
            ends.callback(ip, "netns", "del", name)
            tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            ends.callback(os.close, tap)
            self.taps.append(tap)
            fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
            ip("link", "set", name, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        thread = threading.Thread(target=self.carry, args=(over,))
        thread.start()
        ends.callback(thread.join)
        ends.callback(os.write, wake, b"x")

    def carry(self, over: int) -> None:
        """Carry frames until the end, but lose a hundredth of the client's full frames."""
        rng = random.Random(5)
        here, there = self.taps
        while True:
            ready, _, _ = select.select([here, there, over], [], [])
            if over in ready:
                return
            for tap in ready:
                frame = os.read(tap, FRAME)
                if tap == there and len(frame) > FULL and rng.randrange(EVERY) == 0:
                    self.lost += 1
                    continue
                os.write(here if tap == there else there, frame)


@pytest.fixture
def wire() -> Iterator[Wire]:
    with ExitStack() as ends:
        yield Wire(ends)


def why_not() -> str:
    """Return why this machine cannot have such a network; "" if it can."""
    return why_no_lab() or ("" if shutil.which("ip") else "namespaces need ip, of iproute2")


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
@pytest.mark.parametrize("backend", ["tun", "ebpf"])
def test_losses_at_an_ethernet_device_are_masked(start: Start, tmp_path: Path, wire: Wire, backend: str) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace("BACKEND", backend))
    assert start("pki", "init", "--host", SERVER).end()[0] == 0
    assert start("pki", "issue", "anna").end()[0] == 0
    within = [["ip", "netns", "exec", name] for name in wire.names]
    server = start("server", "plan.toml", "--pki", "pki", "--json", through=within[0])
    server.until("waiting for")
    own = ["--token-file", "pki/anna.token", "--tls", "off"]
    client = start("client", f"tcp://{SERVER}:7070", *own, through=within[1])
    code, _, err = server.end()
    assert code == 0, err
    assert client.end()[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    log = (folder / "log.txt").read_text()
    if "has backend tun instead of ebpf" in log:
        pytest.skip(next(line for line in log.splitlines() if "backend tun instead" in line))
    assert "plain tcp" not in log
    (entry,) = Record(folder).entries
    (up,) = (way for way in entry["transfers"] if way["direction"] == "up")
    assert up["bytes"] + up["missing"] == BYTES
    assert wire.lost > 0
    assert 0 < up["missing"] < 0.05 * BYTES, (up["missing"], wire.lost)
