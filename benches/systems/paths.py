"""The paths between the parties: how the lab emulates them, and the minimum time of a round over each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from thalweg import _core
from thalweg.network.bound import DATA_SHARE

#: Kernel settings of each host: Linux's default congestion control, and buffers that are large enough for each path.
SYSCTLS: Final = {
    "net.ipv4.tcp_congestion_control": "cubic",
    "net.ipv4.tcp_rmem": "4096 131072 33554432",
    "net.ipv4.tcp_wmem": "4096 131072 33554432",
}


@dataclass(frozen=True)
class NetworkPath:
    """The path between two parties: rate in bit/s, RTT in seconds, loss of packets in each direction.

    Without ``rate`` all parties share one host and its loopback device.
    """

    name: str
    text: str
    rate: int | None = None
    rtt: float = 0.0
    loss: float = 0.0

    @property
    def emulated(self) -> bool:
        return self.rate is not None

    def shape(self, hops: int) -> dict[str, float | int]:
        """Return the shape of one direction of one of ``hops`` links that make up the path."""
        if self.rate is None:
            return {}
        return {"rate": self.rate, "delay": self.rtt / 2 / hops, "loss": 1 - (1 - self.loss) ** (1 / hops)}


PATHS: Final = {
    path.name: path
    for path in (
        NetworkPath("loopback", "one host"),
        NetworkPath("lan", "1 Gbit/s, 1 ms", 10**9, 0.001),
        NetworkPath("wan", "100 Mbit/s, 40 ms", 10**8, 0.040),
        NetworkPath("lossy", "100 Mbit/s, 40 ms, 1 % loss each way", 10**8, 0.040, 0.01),
        NetworkPath("edge", "10 Mbit/s, 200 ms, 3 % loss each way", 10**7, 0.200, 0.03),
    )
}


def bound(path: NetworkPath, work: str, parties: int, size: int) -> float | None:
    """Return the minimum seconds of a round, or None if the path has no limit.

    ``star``: each client has a link of its own, which carries the model down and then the update up. ``allreduce``:
    each party's link carries 2 (n-1)/n of the vector in each direction, in at least two steps (Patarasuk and Yuan,
    2009). ``tree``: the root's link carries the model once. Headers of full TCP segments count; loss does not.
    """
    if path.rate is None:
        return None
    once = size * 8 / (path.rate * DATA_SHARE)
    return {
        "star": 2 * once + path.rtt,
        "allreduce": 2 * (parties - 1) / parties * once + path.rtt,
        "tree": once + path.rtt / 2,
    }[work]


class Network:
    """A running lab: one host for each party, or one for all of them on loopback."""

    def __init__(self, core: _core.Lab, path: NetworkPath, names: list[str], hops: int) -> None:
        self._core, self._path, self._hops = core, path, hops
        self.hosts: list[dict[str, Any]] = []
        hosts = json.loads(core.hosts())
        self.hosts = [hosts[name if path.emulated else "server"] for name in names]
        self.names = names

    @property
    def addresses(self) -> list[str]:
        return [host["ipv4"] if self._path.emulated else "127.0.0.1" for host in self.hosts]

    @property
    def device(self) -> str:
        return "eth0" if self._path.emulated else "lo"

    def wire_bytes(self, pid: int) -> int:
        """Return the bytes of IP packets that all parties have sent. On loopback ``pid`` is a process of the host."""
        if not self._path.emulated:
            return loopback_bytes(pid)
        links = json.loads(self._core.status())["links"]
        return sum(link["bytes_in"] for link in links if link["source"] != "switch")

    def set_link(self, index: int, *, down: bool) -> None:
        """Take the link of a party down, or bring it up again."""
        self._core.set(self.names[index], None, json.dumps({**self._path.shape(self._hops), "down": down}))


def loopback_bytes(pid: int) -> int:
    """Return the bytes that the loopback device of a process's namespace has sent."""
    text = Path(f"/proc/{pid}/net/dev").read_text()
    (line,) = (line for line in text.splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[9])


@contextmanager
def network(path: NetworkPath, work: str, clients: int, seed: int) -> Iterator[Network]:
    """Make the network of a job: a star around the server, or around a switch if clients talk to each other."""
    names = ["server", *(f"client-{number}" for number in range(1, clients + 1))]
    spec: dict[str, Any] = {"seed": seed, "hosts": [{"name": name, "sysctls": SYSCTLS} for name in names], "links": []}
    hops = 1
    if not path.emulated:
        spec["hosts"] = spec["hosts"][:1]
    elif work == "star":
        shape = path.shape(1)
        spec["links"] = [{"name": name, "a": name, "b": "server", "ab": shape, "ba": shape} for name in names[1:]]
    else:
        hops = 2
        shape = path.shape(2)
        spec["switches"] = ["switch"]
        spec["links"] = [{"name": name, "a": name, "b": "switch", "ab": shape, "ba": shape} for name in names]
    core = _core.Lab(json.dumps(spec))
    try:
        core.start()
        yield Network(core, path, names, hops)
    finally:
        core.close()
