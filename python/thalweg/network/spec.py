"""The network of a job or a lab as the core takes it: ``build`` makes a ``Spec`` from a plan's [network]."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import Final

from thalweg.errors import PlanError
from thalweg.network.changes import Change, expand
from thalweg.network.nodes import Nodes
from thalweg.network.routes import routes
from thalweg.network.shape import Shape
from thalweg.network.topology import BROKER, SERVER, layout
from thalweg.sections.network import MTU, NetworkSection, TcpSection
from thalweg.ui import strict_json

SMALLEST_BUFFER: Final = 6 << 20
LARGEST_BUFFER: Final = 64 << 20
# Buffer sizes are chosen as if a link without a limit had this rate.
FASTEST: Final = 10_000_000_000
# Size of a TCP buffer in bandwidth-delay products. A window needs two, and the kernel counts about two bytes of memory
# for each byte of data.
PRODUCTS: Final = 4
# Default burst of a device's limiter, in seconds at its rate.
LIMITER_SECONDS: Final = 0.001
# Default length of a link's queue, in seconds at its rate, and its least size in bytes. The core has the same.
QUEUE_SECONDS: Final = 0.1
SHORTEST_QUEUE: Final = 64 << 10
# Maximum length of the queue of a device's limiter: the kernel counts the queue's bytes in 32 bits.
MOST_LIMITED: Final = (1 << 32) - 1
CONGESTION: Final = "net.ipv4.tcp_congestion_control"


@dataclass(frozen=True)
class Egress:
    """The limit on a host's own device: bits a second, and bytes of its queue and of a burst."""

    rate: int
    queue_bytes: int
    burst_bytes: int


@dataclass(frozen=True)
class Host:
    """A host, the sysctls of its namespace, and the limit on its device, if it has one."""

    name: str
    sysctls: Mapping[str, str]
    egress: Egress | None = None

    def table(self) -> dict[str, object]:
        """Return it as a table for the core's JSON."""
        limit = {} if self.egress is None else {"egress": asdict(self.egress)}
        return {"name": self.name, "sysctls": dict(self.sysctls), **limit}


@dataclass(frozen=True)
class Link:
    """A link between a and b. ``ab`` is its shape from a to b."""

    name: str
    a: str
    b: str
    ab: Shape
    ba: Shape


@dataclass(frozen=True)
class Spec:
    """A network. ``thalweg._core.Lab`` and the record take its ``table``."""

    seed: int
    hosts: tuple[Host, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    changes: tuple[Change, ...]
    topology: str = "star"
    profile: str | None = None
    mtu: int = MTU
    # The host of the broker, if the network has one for it.
    broker: str | None = None
    # Whether clients exchange updates with each other, and not with the server.
    peers: bool = False
    # For each client that exchanges updates with a node instead of the server: that node.
    homes: Mapping[str, str] = field(default_factory=dict)
    # The nodes that have other nodes below them instead of clients.
    middle: tuple[str, ...] = ()
    # The kind of the hosts' devices, as the core names it. None: devices for IP packets.
    devices: str | None = None

    @property
    def clients(self) -> list[str]:
        """The names of the clients' hosts: all but those of the server, the broker and the nodes."""
        others = {SERVER, self.broker, *self.homes.values(), *self.middle}
        return [host.name for host in self.hosts if host.name not in others]

    @property
    def broker_host(self) -> str:
        """The host of a run's broker: the network's host for brokers, or else the server's host."""
        return self.broker or SERVER

    @property
    def connected(self) -> list[tuple[str, str]]:
        """The pairs of hosts that exchange updates, server, broker or node first.

        For peers it is a sample: each client is paired with the next one.
        """
        if self.peers:
            return list(pairwise(self.clients))
        if self.homes:
            among = combinations([SERVER, *dict.fromkeys(self.homes.values()), *self.middle], 2)
            return [*among, *((home, client) for client, home in self.homes.items())]
        hubs = [SERVER] if self.broker is None else [SERVER, self.broker]
        pairs = [(hub, client) for hub in hubs for client in self.clients]
        return pairs if self.broker is None else [*pairs, (SERVER, self.broker)]

    def with_congestion(self, host: str, name: str) -> Spec:
        """Return the network with ``name`` as the default congestion control of ``host``."""
        hosts = (
            replace(one, sysctls={**one.sysctls, CONGESTION: name}) if one.name == host else one for one in self.hosts
        )
        return replace(self, hosts=tuple(hosts))

    def table(self) -> dict[str, object]:
        """Return it as a table for the core's JSON. If a host's device has the limit, its link has none there."""
        limited = {host.name for host in self.hosts if host.egress is not None}

        def behind(host: str, shape: Shape) -> dict[str, object]:
            return replace(shape, rate=None, queue_bytes=None).table() if host in limited else shape.table()

        return {
            "seed": self.seed,
            "mtu": self.mtu,
            **({} if self.devices is None else {"devices": self.devices}),
            "hosts": [host.table() for host in self.hosts],
            "switches": list(self.switches),
            "links": [
                {
                    "name": link.name,
                    "a": link.a,
                    "b": link.b,
                    "ab": behind(link.a, link.ab),
                    "ba": behind(link.b, link.ba),
                }
                for link in self.links
            ],
            "changes": [
                {"at": change.at, "link": change.link, "direction": change.direction, "shape": change.shape.table()}
                for change in self.changes
            ],
        }

    def text(self) -> str:
        """Return the table as JSON for the core."""
        return strict_json.dumps(self.table())

    def shapes(self, link: Link, direction: str) -> list[Shape]:
        """Return all shapes that a direction (ab or ba) of a link ever has, the first one first."""
        first = link.ab if direction == "ab" else link.ba
        return [first, *self._later.get((link.name, direction), ())]

    @cached_property
    def _later(self) -> dict[tuple[str, str], list[Shape]]:
        later: dict[tuple[str, str], list[Shape]] = {}
        for change in self.changes:
            for direction in ("ab", "ba") if change.direction is None else (change.direction,):
                later.setdefault((change.link, direction), []).append(change.shape)
        return later


def build(
    names: Sequence[str], network: NetworkSection, seed: int = 0, *, peers: bool = False, nodes: Nodes | None = None
) -> Spec:
    """Return the network of a server and clients of these names. Raises PlanError for an impossible network.

    ``seed`` alone draws the graph that a topology names; with the section's seed it determines all else. With ``peers``
    clients exchange updates with each other, with ``nodes`` each client with its node.
    """
    mixed = _mixed(seed, network.seed)
    made = layout(network, [name for name in names if name != SERVER], seed, peers=peers)
    if nodes is not None:
        made = nodes.insert_into(made)
    links = tuple(
        Link(w.name, w.a, w.b, w.keys.up.shape(mixed, w.name), w.keys.down.shape(mixed, w.name)) for w in made.wires
    )
    changes = expand(network, made.wires, mixed)
    bare = Spec(
        seed=mixed,
        hosts=tuple(Host(name, {}) for name in made.hosts),
        switches=made.switches,
        links=links,
        changes=changes,
        topology=network.topology,
        profile=network.profile,
        mtu=network.mtu,
        broker=None if network.broker is None else BROKER,
        peers=peers,
        homes={} if nodes is None else nodes.homes,
        middle=() if nodes is None else tuple(nodes.middle),
    )
    sysctls = settings(network.tcp, buffer_bytes(bare))
    limits = _limits(network, links)
    hosts = tuple(Host(host.name, sysctls, limits.get(host.name)) for host in bare.hosts)
    return replace(bare, hosts=hosts)


def _limits(network: NetworkSection, links: Sequence[Link]) -> dict[str, Egress]:
    """Return the limits on hosts' own devices, by host: the rate of the link of each host that has only one link.

    It is empty with ``limiter = "path"``, where the relay limits. Raises PlanError.
    """
    if network.limiter == "path":
        return {}
    if network.changes or network.trace is not None:
        raise PlanError(
            "limiter = 'device' keeps the rates that links begin with, and there are changes of links",
            "Remove [[network.changes]] and [network.trace], or take limiter = 'path'",
        )
    ends = [(end, shape) for link in links for end, shape in ((link.a, link.ab), (link.b, link.ba))]
    alone = Counter(end for end, _ in ends)
    return {
        end: _egress(end, shape, shape.rate, network)
        for end, shape in ends
        if alone[end] == 1 and shape.rate is not None
    }


def _egress(host: str, shape: Shape, rate: int, network: NetworkSection) -> Egress:
    if shape.queue_packets is not None:
        raise PlanError(
            f"the device of {host!r} has a queue of packets, and its limiter counts bytes",
            "Give network.queue a size, as 256KiB",
        )
    at_once = network.limiter_burst or max(2 * network.mtu, round(rate / 8 * LIMITER_SECONDS))
    waiting = shape.queue_bytes or max(SHORTEST_QUEUE, round(rate / 8 * QUEUE_SECONDS))
    if not MOST_LIMITED >= waiting >= at_once:
        raise PlanError(
            f"the limiter of {host!r} has a queue of {waiting} bytes and a burst of {at_once}",
            f"Make network.queue at least the burst and at most {MOST_LIMITED} bytes, or give network.limiter_burst",
        )
    return Egress(rate, waiting, at_once)


def settings(tcp: TcpSection, largest: int) -> dict[str, str]:
    """Return the sysctls of an emulated host. TCP's buffers grow to ``largest`` bytes unless the plan sets them."""
    send, receive = tcp.send_buffer or largest, tcp.receive_buffer or largest
    return {
        "net.ipv4.tcp_timestamps": str(int(tcp.timestamps)),
        "net.ipv4.tcp_sack": str(int(tcp.sack)),
        # Least, initial and largest size. The first two are the kernel's defaults.
        "net.ipv4.tcp_wmem": f"4096 {min(16384, send)} {send}",
        "net.ipv4.tcp_rmem": f"4096 {min(131072, receive)} {receive}",
        **({} if tcp.congestion is None else {CONGESTION: tcp.congestion}),
    }


def buffer_bytes(spec: Spec) -> int:
    """Return the largest size of TCP's buffers: four bandwidth-delay products, but at least 6 and at most 64 MiB.

    The path with the largest product counts, with the highest rate and the longest delay that its links ever have.
    """
    most = 0.0
    paths = routes(spec)
    for down, up in ((paths[one, other], paths[other, one]) for one, other in spec.connected):
        delay = sum(max(s.delay + s.jitter for s in spec.shapes(*hop)) for hop in (*down, *up))
        for path in (down, up):
            rate = min((max(s.rate or FASTEST for s in spec.shapes(*hop)) for hop in path), default=FASTEST)
            most = max(most, rate / 8 * delay)
    return int(min(LARGEST_BUFFER, max(SMALLEST_BUFFER, PRODUCTS * most)))


def _mixed(job: int, network: int) -> int:
    """Combine two seeds into one below 2^63."""
    digest = hashlib.blake2b(f"{job}/{network}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
