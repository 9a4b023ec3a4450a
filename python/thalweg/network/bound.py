"""What an emulated network carries: bits a second along a path, and the least seconds of a round's updates.

All that is held against a bound takes it from here. It counts bytes of updates in full TCP segments: of a packet of one
MTU, IPv4 and TCP have 40 bytes and the option for timestamps 12; Ethernet has no part. Datagrams that fit a packet have
larger headers and carry less. Those in IP fragments have little but IPv4's 20 bytes: these count where a plan has them.
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

# IPv4 alone, as in a fragment; with TCP; and the option that timestamps are (RFC 791, RFC 9293, RFC 7323).
FRAGMENT: Final = 20
HEADER: Final = 40
TIMESTAMPS: Final = 12
SOURCE: Final = (
    "every client's update through the emulated links, down and then up, one client's way up beside another's down: "
    "bytes and TCP's headers by the rate, and the path's delay"
)


# Of a full packet, where the plan says nothing of timestamps.
DATA_SHARE: Final = (MTU - HEADER - TIMESTAMPS) / MTU


@dataclass(frozen=True)
class Stage:
    """A link on a path: bits a second of IP packets (None: no limit), and the share of packets that it loses.

    ``loses_first``: it loses before it limits, as the emulator does, so that its rate is that of what arrives. A limit
    on the sender's own device (``limiter = "device"``) comes before the loss.
    """

    rate: float | None
    loss: float = 0.0
    loses_first: bool = True


def carried(path: Sequence[Stage], data_share: float = DATA_SHARE) -> float | None:
    """Return the bits a second of data that arrive at the end of a path on average, whatever its sender offers.

    What a link passes is at most its rate, and links behind it lose their share of that. A packet that is lost in front
    of a limit leaves its time to another one, so a sender that offers rate / (1 - loss) fills the link. Without a limit
    on the path it is None.
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

    The greatest of: what each client needs alone, down and then up; what a link needs for all that crosses it down,
    and then the quickest client for its way up; and the quickest client's way down, and then what a link needs for all
    that crosses it up. So it holds if some clients still receive while others send. A link counts with the highest
    rate and the least delay that it ever has; of more clients than asked for, those with the quickest paths count.
    Losses do not count: they come before the rate and take none of it (``carried``), and where that is not so a short
    update may be lucky.

    ``broker``: all goes through a broker on the host that the network has for one, to which the server sends its model
    once. ``fragments``: by datagrams in IP fragments, else over TCP.
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
    """Return each client's hops down and up, and those that the model crosses once for all of them."""
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
    """An update that crosses links: its bytes, and the share of a full packet that they have."""

    update_bytes: int
    data_share: float


def _phase(spec: Spec, paths: list[list[Hop]], load: Load, once: Collection[tuple[str, str]] = ()) -> float:
    """Return the seconds in which an update passes along each of the paths, some hops ``once`` for all."""
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
    # A link that is ever without a limit has none that holds.
    most = carried([Stage(max(limits))], load.data_share) if len(limits) == len(rates) else None
    return load.update_bytes * 8 / most if most else 0.0


def _delay(spec: Spec, path: list[Hop]) -> float:
    return sum(min(shape.least_delay for shape in spec.shapes(*hop)) for hop in path)


def _data_share(spec: Spec, *, fragments: bool) -> float:
    sysctls = spec.hosts[0].sysctls if spec.hosts else {}
    tcp = HEADER + TIMESTAMPS * (sysctls.get("net.ipv4.tcp_timestamps") != "0")
    return (spec.mtu - (FRAGMENT if fragments else tcp)) / spec.mtu
