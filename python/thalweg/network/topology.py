"""Topologies: ``layout`` makes the hosts, switches and links of a plan's [network]."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import combinations
from typing import Final

from thalweg import graphs
from thalweg.errors import PlanError
from thalweg.graphs.words import PLAIN
from thalweg.network import profiles
from thalweg.network.shape import Keys, keys_of
from thalweg.sections.network import LinkSection, NetworkSection

SERVER: Final = "server"
BOTTLENECK: Final = "bottleneck"
BROKER: Final = "broker"
# Topologies that need a server, so that a job on a graph cannot have them.
SERVED: Final = ("bottleneck", "dumbbell", "graph")
SWITCH: Final = "switch"
MOST_LINKS: Final = 10_000
# Maximum number of hosts, as in the core. Each client is a network namespace.
MOST_CLIENTS: Final = 999
# A host's name, at most 31 characters: two names and the "_" between them make a link's name of at most 63.
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Pair:
    """The keys of a link's two directions: up is from a to b, down from b to a."""

    up: Keys
    down: Keys

    def with_section(self, section: LinkSection | None, place: str) -> Pair:
        """Return these keys with a section's keys over them. The section's profile replaces all of these keys."""
        if section is None:
            return self
        base = self if section.profile is None else pair_of_profile(section.profile)
        both = keys_of(section, place)
        up, down = both.over(base.up), both.over(base.down)
        if section.up is not None:
            up = keys_of(section.up, _inner(place, "up"), "up").over(up)
        if section.down is not None:
            down = keys_of(section.down, _inner(place, "down"), "down").over(down)
        return Pair(up, down)

    def only(self, *names: str) -> Pair:
        """Return the keys with these names, as far as they are given."""
        return Pair(self.up.only(*names), self.down.only(*names))


@dataclass(frozen=True)
class Wire:
    """A link before values are drawn from ranges."""

    name: str
    a: str
    b: str
    keys: Pair
    # Changes and traces apply to this link only if they name it exactly: patterns skip it.
    steady: bool = False


@dataclass(frozen=True)
class Layout:
    """The hosts and switches of a network, and the links between them."""

    hosts: tuple[str, ...]
    wires: tuple[Wire, ...]
    switches: tuple[str, ...] = field(default=())


IDEAL: Final = Pair(Keys({}, "[network]"), Keys({}, "[network]"))


def pair_of_profile(name: str) -> Pair:
    """Return the keys of the profile called ``name``. Raises PlanError."""
    return IDEAL.with_section(profiles.load(name).link, f"the profile {name!r}")


def layout(section: NetworkSection, clients: Sequence[str], seed: int = 0, *, peers: bool = False) -> Layout:
    """Return the topology of a plan's [network] for clients of these names. Raises PlanError.

    With ``peers`` clients exchange updates with each other, and the server's host is idle. Then a star has a switch in
    the middle, a mesh a link for each pair of clients, and a named graph such as "3-regular" a link for each edge.
    ``seed`` draws that graph.
    """
    _check_names(section, clients)
    common = IDEAL.with_section(section, "[network]")
    if peers and section.topology in SERVED:
        raise PlanError(
            f"a {section.topology} leads to a server, and a job on a graph has none",
            "Take network.topology = 'star', 'mesh', or a graph's word as ring or 3-regular",
        )
    maker = _MAKERS.get(section.topology)
    made = _joined(section, clients, common, seed) if maker is None else maker(section, clients, common)
    if peers:
        made = _switched(made)
    _check_unique("hosts or switches", (*made.hosts, *made.switches))
    _check_unique("links", [wire.name for wire in made.wires])
    if len(made.wires) > MOST_LINKS:
        raise PlanError(
            f"a {section.topology} of {len(clients)} clients has {len(made.wires)} links, more than {MOST_LINKS}",
            "Take fewer clients, or topology = 'bottleneck'",
        )
    return made


def _star(section: NetworkSection, clients: Sequence[str], common: Pair) -> Layout:
    hub = _hub(section)
    return _with_broker(section, Layout((SERVER, *clients), tuple(_access(section, clients, common, hub))), hub)


def _bottleneck(section: NetworkSection, clients: Sequence[str], common: Pair) -> Layout:
    shared = Wire(BOTTLENECK, SWITCH, SERVER, _shared(section, common))
    wires = (*_access(section, clients, common, SWITCH), shared)
    return _with_broker(section, Layout((SERVER, *clients), wires, (SWITCH,)), SWITCH)


def _dumbbell(section: NetworkSection, clients: Sequence[str], common: Pair) -> Layout:
    left, right = "left", "right"
    shared = Wire(BOTTLENECK, left, right, _shared(section, common))
    wires = (*_access(section, clients, common, left), shared, Wire(SERVER, right, SERVER, IDEAL))
    return _with_broker(section, Layout((SERVER, *clients), wires, (left, right)), right)


def _mesh(section: NetworkSection, clients: Sequence[str], common: Pair) -> Layout:
    return _among(section, clients, common, combinations(clients, 2))


def _joined(section: NetworkSection, clients: Sequence[str], common: Pair, seed: int) -> Layout:
    """Return a star whose clients are also linked as the edges of a graph, such as "ring". Raises PlanError."""
    try:
        word = graphs.parse(section.topology)
    except PlanError as error:
        names = [*_MAKERS, *PLAIN, "3-regular"]
        near = get_close_matches(section.topology, names, n=1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        raise PlanError(
            f"unknown topology {section.topology!r}",
            f"{guess}Known: {', '.join(_MAKERS)}, and graphs for links between clients: {graphs.FORMS}",
        ) from error
    edges = graphs.Schedule(word, len(clients), seed).links.edges
    return _among(section, clients, common, ((clients[a], clients[b]) for a, b in edges))


def _among(section: NetworkSection, clients: Sequence[str], common: Pair, pairs: Iterable[tuple[str, str]]) -> Layout:
    """Return a star in which the given pairs of clients also have a link of their own."""
    among = (Wire(link_name(a, b), a, b, common) for a, b in pairs)
    hub = _hub(section)
    wires = (*_access(section, clients, common, hub), *among)
    return _with_broker(section, Layout((SERVER, *clients), wires), hub)


def _graph(section: NetworkSection, clients: Sequence[str], common: Pair) -> Layout:
    hosts, switches = (SERVER, *clients), tuple(section.switches or ())
    hosts += () if section.broker is None else (BROKER,)
    wires = [
        Wire(
            link.name or link_name(link.a, link.b),
            link.a,
            link.b,
            common.with_section(link, f"[[network.links]] {number}"),
        )
        for number, link in enumerate(section.links or (), 1)
    ]
    _check_graph(hosts, switches, wires)
    return Layout(hosts, tuple(wires), switches)


_MAKERS: Final = {"star": _star, "bottleneck": _bottleneck, "dumbbell": _dumbbell, "mesh": _mesh, "graph": _graph}


def _switched(made: Layout) -> Layout:
    """Return a topology in which links to the server lead to a switch instead, to which the server has a link too."""
    if SWITCH in made.switches:
        return made
    wires = [replace(wire, b=SWITCH) if wire.b == SERVER else wire for wire in made.wires]
    return Layout(made.hosts, (*wires, Wire(SERVER, SERVER, SWITCH, IDEAL, steady=True)), (*made.switches, SWITCH))


def _hub(section: NetworkSection) -> str:
    """Return the end of clients' links in a topology without switches: the server, or a switch if it has a broker."""
    return SERVER if section.broker is None else SWITCH


def _with_broker(section: NetworkSection, made: Layout, at: str) -> Layout:
    """Add the broker's host, if the network has one, with a link to the switch ``at``.

    If the switch does not exist yet, it is added too, with a link to the server.
    """
    if section.broker is None:
        return made
    keys = IDEAL.with_section(section.broker, f"[network.{BROKER}]")
    wires, switches = (*made.wires, Wire(BROKER, BROKER, at, keys, steady=True)), made.switches
    if at not in switches:
        wires, switches = (*wires, Wire(SERVER, SERVER, at, IDEAL, steady=True)), (*switches, at)
    return Layout((*made.hosts, BROKER), wires, switches)


def _access(section: NetworkSection, clients: Sequence[str], common: Pair, to: str) -> Iterator[Wire]:
    """Yield each client's own link."""
    own = section.clients or {}
    for client in clients:
        yield Wire(client, client, to, common.with_section(own.get(client), f"[network.clients.{client}]"))


def _shared(section: NetworkSection, common: Pair) -> Pair:
    """Return the shared link's keys: its own section, merged over the rate of a client's link. Raises PlanError."""
    keys = common.only("rate").with_section(section.bottleneck, f"[network.{BOTTLENECK}]")
    if "rate" not in keys.up.values and "rate" not in keys.down.values:
        raise PlanError(
            f"the shared link of a {section.topology} has no rate",
            f"Give [network.{BOTTLENECK}] a rate (or rate = 'unlimited'), or [network] one, which it then has too",
        )
    return keys


def _inner(place: str, direction: str) -> str:
    return f"{place[:-1]}.{direction}]" if place.endswith("]") else f"{direction} of {place}"


def _check_names(section: NetworkSection, clients: Sequence[str]) -> None:
    if not 1 <= len(clients) <= MOST_CLIENTS:
        raise PlanError(
            f"a network of {len(clients)} clients cannot be emulated", f"Take 1 to {MOST_CLIENTS} (job.clients)"
        )
    for name in (*clients, *(section.switches or ())):
        if not _NAME.fullmatch(name):
            raise PlanError(f"{name!r} cannot be a host's name", "Use a-z, 0-9 and inner hyphens, at most 31 of them")
    for name in section.clients or ():
        if name not in clients:
            raise unknown("client", name, clients, f"[network.clients.{name}]")
    _check_fit(section)


def _check_unique(kind: str, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise PlanError(f"two {kind} of the network have the name {twice[0]!r}", "Give each a name of its own")


def _check_fit(section: NetworkSection) -> None:
    """Raise PlanError for sections that have no effect in this topology."""
    shared = section.topology in ("bottleneck", "dumbbell")
    graph = section.topology == "graph"
    idle = {
        "bottleneck": (section.bottleneck is not None and not shared, "bottleneck' or 'dumbbell"),
        "links": (bool(section.links) and not graph, "graph"),
        "switches": (bool(section.switches) and not graph, "graph"),
    }
    for key, (wrong, topology) in idle.items():
        if wrong:
            raise PlanError(
                f"network.{key} has no effect with topology = '{section.topology}'",
                f"Remove it, or take topology = '{topology}'",
            )
    if graph and section.clients:
        raise PlanError("a graph's clients have no link of their own", "Give the keys in [[network.links]]")
    if graph and section.broker is not None and section.broker.model_fields_set:
        raise PlanError("a graph's broker has the links that name it", "Give the keys in [[network.links]]")
    if graph and not section.links:
        raise PlanError("a graph needs links", "Add [[network.links]] with a and b, or take topology = 'star'")


def _check_graph(hosts: Sequence[str], switches: Sequence[str], wires: Sequence[Wire]) -> None:
    nodes = (*hosts, *switches)
    joined: set[frozenset[str]] = set()
    names: set[str] = set()
    for number, wire in enumerate(wires, 1):
        place = f"[[network.links]] {number}"
        for end in (wire.a, wire.b):
            if end not in nodes:
                raise unknown("host or switch", end, nodes, place)
        ends = frozenset((wire.a, wire.b))
        if len(ends) == 1:
            raise PlanError(f"{place} links {wire.a!r} with itself", "Name two ends")
        if ends in joined or wire.name in names:
            raise PlanError(f"{place} is the second link {wire.name!r}", "Give each pair one link, each with a name")
        joined.add(ends)
        names.add(wire.name)
    _check_reach(hosts, wires)


def _check_reach(hosts: Sequence[str], wires: Sequence[Wire]) -> None:
    reached, fresh = {SERVER}, {SERVER}
    while fresh:
        fresh = {end for wire in wires if {wire.a, wire.b} & fresh for end in (wire.a, wire.b)} - reached
        reached |= fresh
    lost = [host for host in hosts if host not in reached]
    if lost:
        raise PlanError(
            f"no path leads from {', '.join(lost[:5])} to the server", "Add [[network.links]] until all are linked"
        )


def link_name(a: str, b: str) -> str:
    """Return the default name of the link between a and b."""
    return f"{a}_{b}"


def unknown(kind: str, name: str, known: Sequence[str], place: str) -> PlanError:
    """Return the error for a name that does not exist, with the nearest known one."""
    near = get_close_matches(name, known, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return PlanError(f"{place}: there is no {kind} {name!r}", f"{guess}Known: {_listed(known)}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:10])}, ..., {names[-1]}"
