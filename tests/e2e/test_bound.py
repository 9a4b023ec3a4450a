"""The goodput of an emulated path that a UDP sender saturates, compared with ``thalweg.network.bound.carried``."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import why_no_lab
from thalweg.lab import client
from thalweg.lab.client import RunningLab
from thalweg.lab.namespaces import within
from thalweg.network import bound, inline, spec
from thalweg.network.bound import Stage
from thalweg.network.spec import Spec
from thalweg.sections.network import MTU, NetworkSection

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")]

UDP_HEADERS: Final = 28
# Duration of the flood. It sends the packets of this many seconds at the link's rate, and more to make up for losses.
SECONDS: Final = 0.6
# The socket's buffer has fewer bytes than the device's queue holds. So the sender waits for the socket, and the device
# drops nothing.
SEND_BUFFER: Final = 64 << 10
RECEIVE_BUFFER: Final = 32 << 20
# From asm-generic/socket.h; Python has no names for them.
SO_TIMESTAMPNS: Final = 35
SO_RCVBUFFORCE: Final = 33
TIMEOUT: Final = 30.0
# Queues hold all packets that are sent. So the link is never idle, however busy this machine is.
PATHS: Final[dict[str, tuple[str, dict[str, Any], list[Stage]]]] = {
    "no loss": ("rate=20mbit,queue=16MiB", {}, [Stage(20e6)]),
    "10 %": ("rate=20mbit,loss=10%,queue=16MiB", {}, [Stage(20e6, 0.1)]),
    "20 %": ("rate=50mbit,loss=20%,queue=16MiB", {}, [Stage(50e6, 0.2)]),
    "50 %": ("rate=10mbit,loss=50%,queue=16MiB", {}, [Stage(10e6, 0.5)]),
    "bursts": ("rate=20mbit,burst=5%/20%,queue=16MiB", {}, [Stage(20e6, 0.2)]),
    # The limit is at the sender's own device, in front of the link's loss.
    "20 % behind the device": (
        "rate=50mbit,loss=20%,queue=1MiB",
        {"limiter": "device", "limiter_burst": "64KiB"},
        [Stage(50e6, 0.2, loses_first=False)],
    ),
    # The second link loses a part of the packets that the first one passes.
    "two links": (
        "rate=20mbit,loss=20%,queue=16MiB",
        {"topology": "bottleneck", "bottleneck": {"rate": "50mbit", "loss": "20%", "queue": "16MiB"}},
        [Stage(20e6, 0.2), Stage(50e6, 0.2)],
    ),
}


@contextmanager
def running(made: Spec) -> Iterator[RunningLab]:
    lab = client.start(made.text(), "bound")
    try:
        lab.start()
        yield lab
    finally:
        lab.down()


def opened(lab: RunningLab, host: str) -> socket.socket:
    """A UDP socket on a host. The kernel adds timestamps to received packets."""
    address = str(lab.host(host).ipv4)

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        made.bind((address, 0))
        return made

    return within(str(lab.host(host).namespace), make)


def flood(lab: RunningLab, packets: int) -> list[int]:
    """Send full packets from client to server as fast as possible; return when each received one arrived, in ns."""
    with opened(lab, "client-1") as sender, opened(lab, "server") as receiver:
        sender.connect(receiver.getsockname())
        payload = bytes(MTU - UDP_HEADERS)
        sending = threading.Thread(target=lambda: [sender.send(payload) for _ in range(packets)])
        sending.start()
        times: list[int] = []
        receiver.settimeout(0.05)
        while sending.is_alive() or under_way(lab):
            drain(receiver, times)
        sending.join(TIMEOUT)
        drain(receiver, times)
    return times


def drain(receiver: socket.socket, times: list[int]) -> None:
    with suppress(TimeoutError):
        while True:
            _, ancillary, _, _ = receiver.recvmsg(MTU, 64)
            seconds, nanoseconds = (int.from_bytes(ancillary[0][2][at : at + 8], "little") for at in (0, 8))
            times.append(seconds * 1_000_000_000 + nanoseconds)


def under_way(lab: RunningLab) -> bool:
    """Return whether a link still holds packets that it has neither passed on nor dropped."""
    links = lab.status().links
    gone = [one.packets_out + one.lost + one.queue_drops + one.down_drops + one.overflow_drops for one in links]
    return any(link.packets_in > count for link, count in zip(links, gone, strict=True))


@pytest.mark.parametrize("name", PATHS)
def test_a_saturating_sender_gets_what_the_bound_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    text, more, path = PATHS[name]
    made = spec.build(["client-1"], NetworkSection.model_validate(inline.over(more, text)))
    expected = bound.carried(path, data_share=1.0)
    assert expected is not None
    arrives = 1.0
    for stage in path:
        arrives *= 1.0 - stage.loss
    with running(made) as lab:
        times = flood(lab, round(SECONDS * expected / arrives / 8 / MTU))
    carried = (len(times) - 1) * MTU * 8 / ((times[-1] - times[0]) / 1e9)
    # The tolerance is far smaller than any loss that the bound could miscount. Random losses scatter by 1 %.
    assert carried == pytest.approx(expected, rel=0.05), f"{carried / 1e6:.1f} Mbit/s"
