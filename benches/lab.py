"""Compares the lab's links with their nominal values, by TCP and UDP between namespaces of this machine."""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, TypeVar

from benches.common import MIB, Figure, Spread, note
from thalweg import _core
from thalweg.network.bound import DATA_SHARE

T = TypeVar("T")

BUFFERS = "4096 131072 67108864"
# From asm-generic/socket.h; Python has no names for them.
SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
SYSCTLS = {"net.ipv4.tcp_rmem": BUFFERS, "net.ipv4.tcp_wmem": BUFFERS}
# Seconds of start-up that are left out of a transfer.
RAMP = 1.0


class Net:
    """A lab in this process. A socket belongs to the host in which it was made."""

    def __init__(self, core: _core.Lab) -> None:
        self.core = core
        self.hosts: dict[str, Any] = json.loads(core.hosts())

    def inside(self, host: str, make: Callable[[], T]) -> T:
        """Call ``make`` in a thread inside the host, and return its result."""
        made: list[T] = []

        def work() -> None:
            _core.enter_namespace(self.hosts[host]["namespace"])
            made.append(make())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return made[0]

    def line(self, link: str, direction: str) -> dict[str, Any]:
        lines: list[dict[str, Any]] = json.loads(self.core.status())["links"]
        return next(x for x in lines if (x["link"], x["direction"]) == (link, direction))

    def stream(self, source: str, target: str) -> tuple[socket.socket, socket.socket]:
        """Return both ends of a TCP connection with Cubic."""
        address = self.hosts[target]["ipv4"]
        listener = self.inside(target, lambda: socket.create_server((address, 0)))
        with listener:

            def connect() -> socket.socket:
                made = socket.socket()
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
                made.connect(listener.getsockname())
                return made

            sender = self.inside(source, connect)
            receiver, _ = listener.accept()
        return sender, receiver

    def datagrams(self, host: str) -> socket.socket:
        """Return a bound UDP socket with a large buffer."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            # Root may exceed the system's limit.
            made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 * MIB)
            made.bind((self.hosts[host]["ipv4"], 0))
            return made

        return self.inside(host, make)


@contextmanager
def star(shape: Mapping[str, object], clients: int = 1) -> Iterator[Net]:
    """Make clients, each with a link of ``shape`` to the server. The way back has the same rate and delay alone."""
    names = [f"client-{number}" for number in range(1, clients + 1)]
    back = {key: shape[key] for key in ("rate", "delay") if key in shape}
    spec = {
        "seed": 1,
        "hosts": [{"name": name, "sysctls": SYSCTLS} for name in ["server", *names]],
        "links": [{"name": name, "a": name, "b": "server", "ab": shape, "ba": back} for name in names],
    }
    core = _core.Lab(json.dumps(spec))
    try:
        yield Net(core)
    finally:
        core.close()


def lab() -> list[Figure]:
    """All figures of the lab."""
    return [unlimited(), delays(), *goodputs(), *losses(), correlation(), bursts(), many_links(), set_up()]


def unlimited() -> Figure:
    with star({}) as net:
        rates = [transfer(net, 2 * MIB, 3.0) / 1e9 for _ in range(5)]
    spread = Spread.of(rates)
    name = "one link without limits, one TCP stream"
    return Figure(name, f"{spread.text()} Gbit/s", ">= 8 Gbit/s", spread.median >= 8, {"gbits": rates})


def transfer(net: Net, block: int, seconds: float) -> float:
    """Return the goodput of one stream in bit/s, without its beginning."""
    sender, receiver = net.stream("client-1", "server")
    ends = time.perf_counter() + RAMP + seconds

    def send() -> None:
        payload = bytes(block)
        # The receiver closes the connection when it has measured.
        with sender, suppress(ConnectionError):
            while time.perf_counter() < ends + 10:
                sender.sendall(payload)

    thread = threading.Thread(target=send)
    thread.start()
    with receiver:
        rate = measure(receiver, block, seconds)
    thread.join()
    return rate


def measure(receiver: socket.socket, block: int, seconds: float) -> float:
    buffer = bytearray(block)
    ramp = time.perf_counter() + RAMP
    while time.perf_counter() < ramp:
        receiver.recv_into(buffer)
    began, got = time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        got += receiver.recv_into(buffer)
    return got * 8 / (time.perf_counter() - began)


def delays() -> Figure:
    """Measure one-way delays beyond nominal, from before sending to the kernel's timestamp of arrival."""
    beyond: dict[float, dict[str, float]] = {}
    for delay in (0.001, 0.01, 0.1):
        with star({"delay": delay}) as net:
            late = [took - delay for took in one_way(net, 2000)]
        beyond[delay] = {
            "median": statistics.median(late),
            "p99": statistics.quantiles(late, n=100)[98],
            "most": max(late),
        }
    median = max(x["median"] for x in beyond.values())
    worst = max(x["p99"] for x in beyond.values())
    value = ", ".join(f"{d * 1e3:.0f} ms: {x['median'] * 1e3:.3f} / {x['p99'] * 1e3:.3f}" for d, x in beyond.items())
    reached = median <= 3e-4 and worst <= 1.5e-3
    name = "added delay beyond nominal, median / 99th percentile in ms"
    return Figure(name, value, "<= 0.3 / 1.5 ms", reached, {"seconds": beyond})


def one_way(net: Net, count: int) -> list[float]:
    here, there = net.datagrams("client-1"), net.datagrams("server")
    there.settimeout(5)
    there.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    with here, there:
        for number in range(count):
            here.sendto(struct.pack("!q", time.time_ns()), there.getsockname())
            if number % 10 == 9:
                time.sleep(0.002)
        return [one_delay(there) for _ in range(count)]


def one_delay(receiver: socket.socket) -> float:
    payload, extra, _, _ = receiver.recvmsg(100, 100)
    seconds, nanoseconds = next(struct.unpack("qq", data) for _, kind, data in extra if kind == SO_TIMESTAMPNS)
    (sent,) = struct.unpack("!q", payload)
    return float(seconds * 10**9 + nanoseconds - sent) / 1e9


def goodputs() -> Iterator[Figure]:
    for mbits in (5, 20, 60, 100, 700):
        rate = mbits * 10**6
        with star({"rate": rate, "delay": 0.01}) as net:
            # Blocks are smaller at lower rates, because the time is measured in whole blocks.
            shares = [transfer(net, max(1448, rate // 800), 4.0) / rate / DATA_SHARE for _ in range(3)]
        spread = Spread.of(shares)
        name = f"goodput at {mbits} Mbit/s, 20 ms, of what headers leave"
        yield Figure(name, spread.text(digits=3), ">= 0.97", spread.median >= 0.97, {"shares": shares})


def losses() -> Iterator[Figure]:
    for loss in (0.001, 0.01, 0.05, 0.2):
        seen = arrivals({"loss": loss}, 100_000)
        share, error = seen.count(0) / len(seen), (loss * (1 - loss) / len(seen)) ** 0.5
        off = (share - loss) / error
        name = f"loss of {loss:.1%} over 100,000 datagrams"
        value = f"{share:.3%}, {off:+.1f} standard errors"
        yield Figure(name, value, "within 3 standard errors", abs(off) <= 3, {"share": share, "standard_errors": off})


def correlation() -> Figure:
    """Compare the autocorrelation of losses with that of tc-netem(8), for a loss of 20 % and a correlation of 25 %."""
    nominal, loss = 0.25, 0.2
    seen = arrivals({"loss": loss, "loss_correlation": nominal}, 100_000)
    got, expected = autocorrelation(seen), netem_autocorrelation(nominal, loss)
    ratio = got / expected
    value = f"{got:.4f}, {ratio:.3f} of tc's chain ({expected:.4f}) at {seen.count(0) / len(seen):.2%} loss"
    details = {"got": got, "chain": expected, "loss": seen.count(0) / len(seen)}
    return Figure(
        "autocorrelation of losses at a loss correlation of 25 %", value, "within 10 %", abs(ratio - 1) <= 0.1, details
    )


def netem_autocorrelation(correlation: float, loss: float) -> float:
    """Return the autocorrelation of losses in netem's model, computed here independently of the core."""
    import numpy as np

    fresh = np.random.default_rng(5).random(1_000_000)
    values = np.empty_like(fresh)
    last = 0.5
    for place, value in enumerate(fresh):
        last = (1 - correlation) * value + correlation * last
        values[place] = last
    return autocorrelation((values >= np.quantile(values, loss)).astype(int).tolist())


def autocorrelation(seen: Sequence[int]) -> float:
    mean = statistics.fmean(seen)
    spread = sum((x - mean) ** 2 for x in seen)
    return sum((a - mean) * (b - mean) for a, b in pairwise(seen)) / spread


def bursts() -> Figure:
    seen = arrivals({"burst": {"enter": 0.01, "leave": 0.2}}, 100_000)
    lost = seen.count(0)
    count = sum(1 for a, b in pairwise(seen) if a and not b)
    length = lost / count
    name = "length of loss bursts, nominal 5 packets"
    value = f"{length:.2f} packets over {count} bursts"
    return Figure(name, value, "within 10 %", abs(length / 5 - 1) <= 0.1, {"length": length, "bursts": count})


def arrivals(shape: Mapping[str, object], count: int) -> list[int]:
    """Send ``count`` datagrams. Return for each 1 if it arrived, else 0; note if the link's counters disagree."""
    seen = [0] * count
    with star(shape) as net:
        here, there = net.datagrams("client-1"), net.datagrams("server")
        there.settimeout(1)

        def collect() -> None:
            with suppress(TimeoutError):
                while True:
                    seen[struct.unpack("!I", there.recv(100)[:4])[0]] = 1

        thread = threading.Thread(target=collect)
        thread.start()
        with here, there:
            for number in range(count):
                here.sendto(struct.pack("!I", number) + bytes(60), there.getsockname())
                if number % 200 == 199:
                    time.sleep(0.004)  # so that the receiver keeps up
            thread.join()
        line = net.line("client-1", "ab")
    if (line["packets_in"], line["lost"]) != (count, seen.count(0)):
        note(f"the link counted {line['packets_in']} in and {line['lost']} lost; {seen.count(0)} did not arrive")
    return seen


def many_links() -> Figure:
    """Measure 64 links at once, with one stream on each, driven by one loop: each link's median over repetitions."""
    rate, clients, repetitions = 20 * 10**6, 64, 5
    runs = [all_at_once(rate, clients, 5.0) for _ in range(repetitions)]
    shares = [statistics.median(link) for link in zip(*(wire for wire, _ in runs), strict=True)]
    single = [share for wire, _ in runs for share in wire]
    goodputs = [share for _, good in runs for share in good]
    value = (
        f"{min(shares):.3f} to {max(shares):.3f} of nominal on the wire (single runs {min(single):.3f} to "
        f"{max(single):.3f}), goodput {Spread.of(goodputs).text(digits=3)}"
    )
    reached = min(shares) >= 0.95 and max(shares) <= 1.05
    details = {"shares": shares, "runs": [wire for wire, _ in runs]}
    return Figure("64 links of 20 Mbit/s at once", value, "all within 5 %", reached, details)


def all_at_once(rate: int, clients: int, seconds: float) -> tuple[list[float], list[float]]:
    """Return each link's rate on the wire and its goodput, as shares of the nominal rate."""
    with star({"rate": rate, "delay": 0.01}, clients) as net:
        pairs = [net.stream(f"client-{number}", "server") for number in range(1, clients + 1)]
        selector = selectors.DefaultSelector()
        got = [0] * clients
        for number, (sender, receiver) in enumerate(pairs):
            sender.setblocking(False)
            receiver.setblocking(False)
            # Do not wake the loop, which serves all streams, for each packet.
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 64 << 10)
            selector.register(sender, selectors.EVENT_WRITE, (number, False))
            selector.register(receiver, selectors.EVENT_READ, (number, True))
        # Cubic leaves slow start early where delays vary (HyStart, RFC 9406), and then takes seconds to fill a link.
        drive(selector, got, time.perf_counter() + 3 * RAMP)
        before, began = wire_bytes(net, clients), time.perf_counter()
        got[:] = [0] * clients
        drive(selector, got, began + seconds)
        after, took = wire_bytes(net, clients), time.perf_counter() - began
        selector.close()
        for pair in pairs:
            for end in pair:
                end.close()
    shares = [(b - a) * 8 / took / rate for a, b in zip(before, after, strict=True)]
    return shares, [x * 8 / took / rate / DATA_SHARE for x in got]


def wire_bytes(net: Net, clients: int) -> list[int]:
    lines = json.loads(net.core.status())["links"]
    by_name = {x["link"]: x["bytes_out"] for x in lines if x["direction"] == "ab"}
    return [by_name[f"client-{number}"] for number in range(1, clients + 1)]


def drive(selector: selectors.BaseSelector, got: list[int], until: float) -> None:
    payload, buffer = bytes(64 << 10), bytearray(256 << 10)
    while time.perf_counter() < until:
        for key, _ in selector.select(0.1):
            end, (number, reads) = key.fileobj, key.data
            assert isinstance(end, socket.socket)
            with suppress(BlockingIOError):
                if reads:
                    got[number] += end.recv_into(buffer)
                else:
                    end.send(payload)


def set_up() -> Figure:
    took = []
    for _ in range(7):
        began = time.perf_counter()
        with star({"rate": 10**8, "delay": 0.01}, 15):
            pass
        took.append(time.perf_counter() - began)
    spread = Spread.of(took)
    name = "set-up and removal of a lab of 16 hosts"
    return Figure(name, f"{spread.text(digits=3)} s", "< 2 s", spread.median < 2, {"seconds": took})
