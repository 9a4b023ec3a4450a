"""``Session``: a run's emulated network and stress. It starts them, places parties in them, and records them.

``session`` makes a ``Session`` before the server listens. ``Session.finish`` writes its tables when the job is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from thalweg import machine, wire
from thalweg.errors import LabError, PlanError, ThalwegError
from thalweg.lab import client, guest, namespaces, reaper
from thalweg.lab.cgroups import Groups
from thalweg.lab.client import RunningLab
from thalweg.lab.inside import ProcessPlace
from thalweg.lab.status import HostCounters, LinkStatus, Relay, Status
from thalweg.lab.stress import Stress, parties_of, with_nodes
from thalweg.machine import Usage
from thalweg.network.message import EmulateLayer
from thalweg.plan.on_trees import MIDDLE, has_nodes, middle_nodes_of, nodes_of
from thalweg.plan.run_facts import RunFacts
from thalweg.record.rows import Link, Party
from thalweg.transports import registry
from thalweg.trees import live
from thalweg.ui.phrases import listed

if TYPE_CHECKING:
    from thalweg.network.shape import Shape
    from thalweg.network.spec import Spec
    from thalweg.plan import Plan
    from thalweg.record import RunRecord

SERVER: Final = "server"
SAMPLE_SECONDS: Final = 1.0
TUN: Final = Path("/dev/net/tun")
T = TypeVar("T")
Counters = TypeVar("Counters", LinkStatus, HostCounters)
# What links and hosts count up from the lab's start; their other numbers are the most, or percentiles.
LINK_COUNTS: Final = (
    "packets_in", "bytes_in", "packets_out", "bytes_out", "lost", "queue_drops", "down_drops", "overflow_drops",
    "duplicated", "reordered",
)  # fmt: skip
HOST_COUNTS: Final = tuple(one.name for one in fields(HostCounters))


@dataclass(frozen=True)
class NetworkFacts:
    """What the manifest says about a run's network.

    ``reason``: why the emulator "auto" could not emulate at packet level. ``lab``: the lab's name. ``rdma``: the hosts'
    RDMA devices. ``relay``: what the emulating process used, once the run is over.
    """

    profile: str | None
    topology: str
    emulator: str
    clock: str
    reason: str | None
    lab: str | None
    rdma: Mapping[str, str] | None
    congestion_control: str | None
    spec: Spec | None
    relay: Relay | None


@dataclass
class Session:
    """A run's emulated network: at packet level with a lab, at message level with layers, or none.

    ``reason`` says why the emulator "auto" could not emulate at packet level. ``congestion`` is the congestion control
    of sockets that do not choose one. ``homes`` has each client's node in a tree of several nodes, and ``middle`` are
    the middle nodes above these; otherwise both are empty.
    """

    plan: Plan
    names: Sequence[str]
    groups: Groups
    spec: Spec | None = None
    lab: RunningLab | None = None
    layers: EmulateLayer | None = None
    reason: str | None = None
    stress: Stress | None = None
    congestion: str | None = None
    homes: Mapping[str, str] = field(default_factory=dict)
    middle: Sequence[str] = ()
    _clock: float | None = None
    _cpu: float | None = field(default_factory=machine.cpu_seconds)
    _sampler: threading.Thread | None = None
    _done: threading.Event = field(default_factory=threading.Event)
    _before: Status = field(default_factory=Status)
    _read: Status | None = None

    @property
    def emulation(self) -> str:
        """The kind of emulation, as the manifest writes it."""
        if self.lab is not None:
            return "packet level"
        layers = {**self.plan.layers.emulation(), **({} if self.layers is None else {"emulate": dict(self.layers)})}
        return f"message level: {wire.encode(layers)}" if layers else "none"

    @property
    def url(self) -> str:
        """The URL where the server listens: the plan's URL, with the server's address in the lab if there is a lab."""
        if self.lab is None:
            return self.plan.url
        scheme, _, authority = self.plan.url.partition("://")
        host, _, port = authority.rpartition(":")
        return f"{scheme}://{self.address(SERVER, v6=host.startswith('['))}:{port or 0}"

    def listening(self, party: str) -> str:
        """Return the URL where a node of a graph or a tree listens, on any free port.

        The host is the node's address in the lab; without a lab it is the host of the plan's URL. A plan's URL without
        a port is returned as it is.
        """
        scheme, _, authority = self.plan.url.partition("://")
        host, colon, _ = authority.rpartition(":")
        if not colon:
            return self.plan.url
        where = host if self.lab is None else self.address(party, v6=host.startswith("["))
        return f"{scheme}://{where}:0"

    @property
    def parties(self) -> list[str]:
        """The run's parties: the server, the nodes of a tree, and the clients. On a graph they are ``names`` alone."""
        return [*self.names] if self.plan.job.graph is not None else [SERVER, *self.nodes, *self.names]

    @property
    def nodes(self) -> list[str]:
        """The nodes of a tree: those to which clients connect, and middle nodes; empty unless there are several."""
        return [*dict.fromkeys(self.homes.values()), *self.middle]

    def address(self, party: str, *, v6: bool = False) -> str:
        """Return a party's address in the lab, an IPv6 one in brackets; 127.0.0.1 if there is no lab."""
        if self.lab is None:
            return "127.0.0.1"
        host = self.lab.hosts[party]
        return f"[{host.ipv6}]" if v6 else host.ipv4

    def namespace(self, party: str) -> str | None:
        """Return the network namespace of a party, or None for this machine's own."""
        return None if self.lab is None else self.lab.hosts[party].namespace

    def cgroup(self, party: str) -> str | None:
        """Return the cgroup that a party must join, or None if it may stay in this process's cgroup.

        A process inherits the server's cgroup, which may have a limit. So a party without one must join another.
        """
        return self.groups.path(party) or self.groups.outside

    def place(self, party: str) -> ProcessPlace | None:
        """Return the namespace and cgroup that a party's process has to enter; None if there are none."""
        namespace, cgroup = self.namespace(party), self.cgroup(party)
        return ProcessPlace(namespace, cgroup=cgroup) if namespace or cgroup else None

    def listen(self, make: Callable[[], T]) -> T:
        """Call ``make`` in the server's namespace and return its result, whose threads and sockets stay there."""
        namespace = self.namespace(SERVER)

        def timed() -> T:
            made = make()
            self._clock = time.monotonic()  # the server's core has just started its clock
            return made

        return timed() if namespace is None else namespaces.within(namespace, timed)

    def begin(self, record: RunRecord) -> None:
        """Start the stress, the lab's timed changes and the sampling of queues. Called before the first round.

        Raises LabError.
        """
        if self.stress is not None:
            self.stress.start()
        if self.lab is not None:
            began = self.lab.start()
            shift = began - (began if self._clock is None else self._clock)
            self._sampler = threading.Thread(target=self._sample, args=(self.lab, record, shift), daemon=True)
            self._sampler.start()

    def count_from_now(self) -> None:
        """Leave what links and hosts have counted so far out of the tables."""
        self._before = self._last_status()

    def read_counters(self) -> None:
        """Take the counters of links and hosts for the tables now, and not when the job is over."""
        self._read = self._last_status()

    @property
    def has_failed(self) -> bool:
        """Whether the network has failed."""
        return self.lab is not None and self.lab.failure is not None

    def check(self) -> None:
        """Raise LabError if the network has failed."""
        if self.lab is not None:
            self.lab.check()

    def end_stress(self) -> None:
        """End the stress, so that parties under load can end in time."""
        if self.stress is not None:
            self.stress.stop()

    def facts(self) -> RunFacts:
        """Return the manifest's facts about the network at the start of the run."""
        return {"emulation": self.emulation, "network": self._network(None)}

    def finish(self, record: RunRecord, reports: Mapping[str, Usage]) -> None:
        """End stress and sampling; write the tables ``parties`` and ``links`` and the network's facts to the record.

        ``reports`` are the final reports of clients and of others, such as a broker, by name. The lab stays up until
        ``session`` takes it down.
        """
        self.end_stress()
        status = since(self._before, self._read or self._last_status())
        self._done.set()
        if self._sampler is not None:
            self._sampler.join()
        usage = {SERVER: machine.usage(self._cpu), **reports}
        parties = dict.fromkeys((*self.parties, *reports))
        record.parties([self._party(party, usage.get(party, Usage()), status) for party in parties])
        if self.lab is not None:
            record.links(self._links(status))
            record.note(network=self._network(status))

    def _last_status(self) -> Status:
        """Return the lab's status, or its last known one if it no longer answers; empty without a lab."""
        if self.lab is None:
            return Status()
        with suppress(LabError):
            return self.lab.status()
        return self.lab.last or Status()

    def _links(self, status: Status) -> list[Link]:
        if self.spec is None:
            return []
        nominal = {link.name: {"ab": link.ab, "ba": link.ba} for link in self.spec.links}
        return [link_row(link, nominal[link.link][link.direction]) for link in status.links]

    def _party(self, party: str, used: Usage, status: Status) -> Party:
        host = status.hosts.get(party, HostCounters())
        stress = None if self.stress is None else self.stress.section
        got = {} if self.stress is None else self.stress.results.get(party)
        return Party(
            party=party,
            cpu_seconds=used.cpu_seconds,
            peak_rss_bytes=used.peak_rss_bytes,
            retransmitted_segments=host.retransmitted_segments,
            receive_buffer_drops=host.receive_buffer_drops,
            limiter_drops=host.limiter_drops,
            congestion_control=self._congestion_of(party),
            cpu_quota=stress.cpu_quota if stress is not None and party in parties_of(stress, self.names) else None,
            stress=wire.encode(got) if got else None,
        )

    def _congestion_of(self, party: str) -> str | None:
        """Return the congestion control of a party's connections.

        A broker's program has no option for it. Only in a lab it has the plan's, as the default of its namespace.
        """
        if party in self.names:
            return self.plan.transport.congestion_of(self.names.index(party)) or self.congestion
        chosen = self.plan.transport.congestion if party == SERVER or self.lab is not None else None
        return chosen or self.congestion

    def _network(self, status: Status | None) -> NetworkFacts | None:
        section = self.plan.network
        if section is None:
            return None
        return NetworkFacts(
            profile=section.profile,
            topology=section.topology,
            emulator=section.emulator,
            clock=section.clock,
            reason=self.reason,
            lab=None if self.lab is None else self.lab.name,
            rdma=self._rdma_devices(),
            congestion_control=self.plan.transport.congestion or self.congestion,
            spec=self.spec,
            relay=None if status is None else _relay(status.relay),
        )

    def _rdma_devices(self) -> dict[str, str] | None:
        """Return the RDMA devices of the lab's hosts, by host; None if no host has one."""
        hosts = {} if self.lab is None else self.lab.hosts
        return {name: host.rdma for name, host in hosts.items() if host.rdma} or None

    def _sample(self, lab: RunningLab, record: RunRecord, shift: float) -> None:
        """Record the lab's samples once a second, and once more at the end. Runs in a thread of its own."""
        ended = False
        while not ended:
            ended = self._done.wait(SAMPLE_SECONDS)
            try:
                record.sample(lab.samples(), shift)
            except ThalwegError:
                return  # the lab is gone or the disk is full, which the thread that runs the rounds reports


@contextmanager
def session(plan: Plan, names: Sequence[str], note: Callable[[str], None]) -> Iterator[Session]:
    """Start the lab and the cgroups that the plan's [network] and [stress] ask for; take them down at the end.

    The stress begins with ``Session.begin``. Raises LabError if this machine cannot do it, and PlanError if the plan
    contradicts itself.
    """
    for reaped in reaper.reap():
        note(f"removed what {reaped} left, whose supervisor was killed")
    placed = live.placed(plan) if has_nodes(plan) else live.Placed({}, [])
    used = {*placed.clients, *placed.below}
    stress = with_nodes(plan.stress, sorted(used))
    idle = {*nodes_of(plan), *middle_nodes_of(plan)} - used
    for named in (stress.parties or ()) if stress is not None else ():
        if named in idle or (named.startswith(MIDDLE) and named not in used):
            raise PlanError(
                f"stress.parties names {named!r}, and no client was placed there", f"Name one of {listed(sorted(used))}"
            )
    shares = {}
    if stress is not None and stress.cpu_quota is not None:
        shares = dict.fromkeys(parties_of(stress, names), stress.cpu_quota)
    with Groups(shares) as groups:
        chosen = machine.congestion_controls()[0] if registry.can(plan.scheme).congestion else None
        made = Session(plan, names, groups, congestion=chosen, homes=placed.homes, middle=list(placed.below))
        try:
            _emulate(made, note)
            if stress is not None:
                made.stress = Stress(stress, names, made)
                made.stress.check(emulated=made.lab is not None)
            groups.enter(SERVER)
            yield made
        finally:
            made.end_stress()
            # Inside a guest kernel the lab ends after this process, and is not taken down here. This process has an rxe
            # device open there, and such a device cannot be removed.
            if made.lab is not None and not guest.is_inside():
                made.lab.down()


def _emulate(made: Session, note: Callable[[str], None]) -> None:
    """Give a session its emulated network, at packet level if the plan asks for it and this machine can do it."""
    network = made.plan.network
    if network is None or network.emulator == "none":
        return
    if guest.is_wanted(made.plan):
        raise PlanError(
            "only `thalweg run` and `thalweg bench` have virtual time",
            "Use one, or take network.clock = 'real'",
        )
    from thalweg.plan.emulated import message_layers, network_of

    made.spec = network_of(made.plan, made.homes or None, made.middle)
    if network.emulator in ("auto", "packet"):
        try:
            wanted = f"run-{Path(network.profile).stem}" if network.profile else "run"
            packets = _with_congestion(made.spec, made.plan)
            if guest.is_inside():
                packets = replace(packets, devices=guest.DEVICES)
            made.lab = client.start(packets.text(), wanted, cgroups=made.groups.paths)
            made.spec = packets
        except LabError as error:
            if network.emulator == "packet" or not is_impossible(error):
                raise
            made.reason = error.cause
    if made.lab is not None:
        own = namespaces.congestion_control(made.lab.hosts[SERVER].namespace)
        made.congestion = network.tcp.congestion or own
        note(f"network: emulated at packet level, lab {made.lab.name}")
        return
    made.layers = message_layers(made.plan)
    why = "as the plan says" if made.reason is None else f"because packets cannot be emulated here: {made.reason}"
    note(f"network: emulated at message level, {why}")


def _with_congestion(spec: Spec, plan: Plan) -> Spec:
    """Return the network with the plan's congestion control on the host of the run's broker, if it needs a broker.

    A broker's program has no option for it, so the default of its host must be the plan's. The lab sets that default
    when it makes the host, because only the lab can handle a kernel that does not allow such a default.
    """
    chosen = plan.transport.congestion
    if chosen is None or not registry.can(plan.scheme).broker:
        return spec
    return spec.with_congestion(spec.broker_host, chosen)


def since(before: Status, now: Status) -> Status:
    """Return the counters of links and hosts since ``before``. What is no count is as it is now."""
    links = {(link.link, link.direction): link for link in before.links}
    return replace(
        now,
        links=[_less(link, links.get((link.link, link.direction)), LINK_COUNTS) for link in now.links],
        hosts={name: _less(host, before.hosts.get(name), HOST_COUNTS) for name, host in now.hosts.items()},
    )


def _less(now: Counters, before: Counters | None, counts: Sequence[str]) -> Counters:
    """Return counters without what they were before. A count that either lacks is unknown."""
    if before is None:
        return now
    pairs = {name: (getattr(now, name), getattr(before, name)) for name in counts}
    less: dict[str, Any] = {name: None if None in pair else pair[0] - pair[1] for name, pair in pairs.items()}
    return replace(now, **less)


def is_impossible(error: LabError) -> bool:
    """Return whether an error means that this user, or this machine, cannot emulate at packet level at all."""
    return error.kind == "permission" or (error.kind == "unsupported" and not TUN.exists())


def _relay(relay: Relay) -> Relay:
    """Return what the emulating process used, without its CPU time in virtual time, where that has no meaning."""
    return replace(relay, cpu_seconds=None) if machine.has_virtual_time() else relay


def link_row(link: LinkStatus, nominal: Shape) -> Link:
    """Return the row of the table ``links`` for one direction of a link. ``nominal`` is its shape in the plan."""
    return Link(
        link=link.link,
        direction=link.direction,
        source=link.source,
        target=link.target,
        nominal=wire.encode(nominal),
        packets_in=link.packets_in,
        bytes_in=link.bytes_in,
        packets_out=link.packets_out,
        bytes_out=link.bytes_out,
        lost=link.lost,
        queue_drops=link.queue_drops,
        down_drops=link.down_drops,
        overflow_drops=link.overflow_drops,
        duplicated=link.duplicated,
        reordered=link.reordered,
        queue_bytes_max=link.queue_bytes_max,
        delay_p50=link.delay.p50,
        delay_p90=link.delay.p90,
        delay_p99=link.delay.p99,
        delay_max=link.delay.max,
        lateness_p50=link.lateness.p50,
        lateness_p99=link.lateness.p99,
        lateness_max=link.lateness.max,
    )
