"""Computes what an emulated network can carry: a path's goodput, and the least time of a round's updates.

All comparisons with a bound use this one. The bound counts bytes of updates in full TCP segments: in a packet of one
MTU, the headers of IPv4 and TCP take 40 bytes and the timestamps option 12. Ethernet headers do not count. Datagrams
that fit a packet carry less, so the bound holds for them too. If the plan's transport sends IP fragments, each fragment
has only the 20 bytes of IPv4's header.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from thalweg.network.routes import Hop, routes
from thalweg.network.topology import SERVER
from thalweg.sections.network import MTU

if TYPE_CHECKING:
    from thalweg.network.spec import Spec

# Bytes of headers: IPv4 alone, as in a fragment (RFC 791); IPv4 and TCP (RFC 9293); the timestamps option (RFC 7323).
FRAGMENT: Final = 20
HEADER: Final = 40
TIMESTAMPS: Final = 12
SOURCE: Final = (
    "every client's update through the emulated links, down and then up, one client's way up beside another's down: "
    "bytes and TCP's headers by the rate, and the path's delay"
)


# Share of data in a full packet of the default MTU, with TCP's timestamps.
DATA_SHARE: Final = (MTU - HEADER - TIMESTAMPS) / MTU


@dataclass(frozen=True)
class Stage:
    """A link on a path: its rate in bits a second of IP packets (None: no limit), and the share of packets it loses.

    ``loses_first``: packets are lost in front of the rate limit, as in the emulator, so that the rate counts arriving
    packets. With a limit on the sender's own device (``limiter = "device"``) packets are lost behind it.
    """

    rate: float | None
    loss: float = 0.0
    loses_first: bool = True


def carried(path: Sequence[Stage], data_share: float = DATA_SHARE) -> float | None:
    """Return the most bits a second of data that can arrive at the end of a path on average; None without a limit.

    A link passes at most its rate, and the links behind it lose their share of that. A packet that is lost in front of
    a limit uses none of the rate, so a sender that offers rate / (1 - loss) fills the link.
    """
    kept = 1.0
    limits = []
    for stage in reversed(path):
        if stage.rate is not None:
            limits.append(stage.rate * kept * (1.0 if stage.loses_first else 1.0 - stage.loss))
        kept *= 1.0 - stage.loss
    return min(limits) * data_share if limits else None


def seconds(spec: Spec, update_bytes: int, clients: int, *, broker: bool = False, fragments: bool = False) -> float:
    """Return the least seconds in which ``clients`` clients each receive and send ``update_bytes`` bytes.

    This is the greatest of three times:

    - the time that each client needs alone, down and then up;
    - the time that the slowest link needs for all bytes that cross it down, plus the fastest client's time up;
    - the fastest client's time down, plus the time that the slowest link needs for all bytes that cross it up.

    So it also holds if some clients still receive while others send. A link counts with the highest rate and the least
    delay that it ever has. If the network has more clients than ``clients``, those with the fastest paths count. Losses
    do not count. Packets that are lost in front of the rate limit use none of the rate (``carried``). Behind the limit
    a short update may be lucky and lose none.

    ``broker``: all updates go through a broker on the network's host for brokers, and the server sends its model there
    once. ``fragments``: datagrams in IP fragments carry the updates, else TCP does.
    """
    ways_down, ways_up, once = _ways(spec, broker=broker)
    each = Load(update_bytes, _data_share(spec, fragments=fragments))
    down = {client: _phase(spec, [ways_down[client]], each) for client in spec.clients}
    up = {client: _phase(spec, [ways_up[client]], each) for client in spec.clients}
    chosen = sorted(spec.clients, key=lambda client: down[client] + up[client])[:clients]
    if not chosen:
        return 0.0
    all_down = _phase(spec, [ways_down[client] for client in chosen], each, once)
    all_up = _phase(spec, [ways_up[client] for client in chosen], each)
    return max(
        *(down[client] + up[client] for client in chosen),
        all_down + min(up[client] for client in chosen),
        min(down[client] for client in chosen) + all_up,
    )


def _ways(spec: Spec, *, broker: bool) -> tuple[dict[str, list[Hop]], dict[str, list[Hop]], set[tuple[str, str]]]:
    """Return each client's hops down and up, and the hops that the model crosses only once for all clients."""
    paths = routes(spec)
    if not broker or spec.broker is None:
        hubs = {client: spec.homes.get(client, SERVER) for client in spec.clients}
        down = {client: paths[hub, client] for client, hub in hubs.items()}
        return down, {client: paths[client, hub] for client, hub in hubs.items()}, set()
    to, back = paths[SERVER, spec.broker], paths[spec.broker, SERVER]
    down = {client: [*to, *paths[spec.broker, client]] for client in spec.clients}
    up = {client: [*paths[client, spec.broker], *back] for client in spec.clients}
    return down, up, {(hop[0].name, hop[1]) for hop in to}


@dataclass(frozen=True)
class Load:
    """An update on its way: its bytes, and the share of data in a full packet."""

    update_bytes: int
    data_share: float


def _phase(spec: Spec, paths: list[list[Hop]], load: Load, once: Collection[tuple[str, str]] = ()) -> float:
    """Return the least time in seconds until an update has crossed each path.

    A hop in ``once`` carries one copy for all its paths; any other hop carries one copy for each path.
    """
    crossing: dict[tuple[str, str], list[list[Hop]]] = defaultdict(list)
    hops: dict[tuple[str, str], Hop] = {}
    for path in paths:
        for hop in path:
            key = (hop[0].name, hop[1])
            crossing[key].append(path)
            hops[key] = hop
    longest = max((_delay(spec, path) for path in paths), default=0.0)
    return max(
        (
            _sending(spec, hop, load) * (1 if key in once else len(crossing[key]))
            + min(_delay(spec, path) for path in crossing[key])
            for key, hop in hops.items()
        ),
        default=longest,
    )


def _sending(spec: Spec, hop: Hop, load: Load) -> float:
    rates = [shape.rate for shape in spec.shapes(*hop)]
    limits = [rate for rate in rates if rate is not None]
    # A link that has no limit at some time counts as unlimited in the bound.
    most = carried([Stage(max(limits))], load.data_share) if len(limits) == len(rates) else None
    return load.update_bytes * 8 / most if most else 0.0


def _delay(spec: Spec, path: list[Hop]) -> float:
    return sum(min(shape.least_delay for shape in spec.shapes(*hop)) for hop in path)


def _data_share(spec: Spec, *, fragments: bool) -> float:
    sysctls = spec.hosts[0].sysctls if spec.hosts else {}
    tcp = HEADER + TIMESTAMPS * (sysctls.get("net.ipv4.tcp_timestamps") != "0")
    return (spec.mtu - (FRAGMENT if fragments else tcp)) / spec.mtu
