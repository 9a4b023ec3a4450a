"""The least seconds that a round's updates need on an emulated network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from thalweg.network.routes import Hop, routes
from thalweg.network.topology import SERVER

if TYPE_CHECKING:
    from thalweg.network.spec import Spec

# IPv4 and TCP, and the option that timestamps are (RFC 791, RFC 9293, RFC 7323).
HEADER: Final = 40
TIMESTAMPS: Final = 12
SOURCE: Final = (
    "every client's update through the emulated links, down and then up, one client's way up beside another's down: "
    "bytes and TCP's headers by the rate, and the path's delay"
)


def seconds(spec: Spec, update_bytes: int, clients: int, *, broker: bool = False) -> float:
    """Return the least seconds in which ``clients`` clients each receive and send ``update_bytes`` bytes over TCP.

    The greatest of: what each client needs alone, down and then up; what a link needs for all that crosses it down,
    and then the quickest client for its way up; and the quickest client's way down, and then what a link needs for all
    that crosses it up. So it holds if some clients still receive while others send. A link counts with the highest
    rate and the least delay that it ever has, and nothing is lost; of more clients than asked for, those with the
    quickest paths count.

    ``broker``: all goes through a broker on the host that the network has for one, to which the server sends its model
    once.
    """
    ways_down, ways_up, once = _ways(spec, broker=broker)
    down = {client: _phase(spec, [ways_down[client]], update_bytes) for client in spec.clients}
    up = {client: _phase(spec, [ways_up[client]], update_bytes) for client in spec.clients}
    chosen = sorted(spec.clients, key=lambda client: down[client] + up[client])[:clients]
    if not chosen:
        return 0.0
    all_down = _phase(spec, [ways_down[client] for client in chosen], update_bytes, once)
    all_up = _phase(spec, [ways_up[client] for client in chosen], update_bytes)
    return max(
        *(down[client] + up[client] for client in chosen),
        all_down + min(up[client] for client in chosen),
        min(down[client] for client in chosen) + all_up,
    )


def _ways(spec: Spec, *, broker: bool) -> tuple[dict[str, list[Hop]], dict[str, list[Hop]], set[tuple[str, str]]]:
    """Return each client's hops down and up, and those that the model crosses once for all of them."""
    paths = routes(spec)
    if not broker or spec.broker is None:
        down = {client: paths[SERVER, client] for client in spec.clients}
        return down, {client: paths[client, SERVER] for client in spec.clients}, set()
    to, back = paths[SERVER, spec.broker], paths[spec.broker, SERVER]
    down = {client: [*to, *paths[spec.broker, client]] for client in spec.clients}
    up = {client: [*paths[client, spec.broker], *back] for client in spec.clients}
    return down, up, {(hop[0].name, hop[1]) for hop in to}


def goodput(spec: Spec, rate: int) -> float:
    """Return the bits a second of data that TCP can carry on a link of ``rate`` bits a second."""
    return rate * (spec.mtu - _header(spec)) / spec.mtu


def _phase(spec: Spec, paths: list[list[Hop]], update_bytes: int, once: Collection[tuple[str, str]] = ()) -> float:
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
            _sending(spec, hop, (1 if key in once else len(crossing[key])) * update_bytes)
            + min(_delay(spec, path) for path in crossing[key])
            for key, hop in hops.items()
        ),
        default=longest,
    )


def _sending(spec: Spec, hop: Hop, count: int) -> float:
    rates = [shape.rate for shape in spec.shapes(*hop)]
    limits = [rate for rate in rates if rate is not None]
    # A link that is ever without a limit has none that holds.
    return count * 8 / goodput(spec, max(limits)) if len(limits) == len(rates) else 0.0


def _delay(spec: Spec, path: list[Hop]) -> float:
    return sum(min(shape.least_delay for shape in spec.shapes(*hop)) for hop in path)


def _header(spec: Spec) -> int:
    sysctls = spec.hosts[0].sysctls if spec.hosts else {}
    return HEADER + TIMESTAMPS * (sysctls.get("net.ipv4.tcp_timestamps") != "0")
