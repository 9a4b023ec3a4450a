"""The sections of an emulated network and of stress."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from thalweg.sections import RUNS, Buffer, Section, Text
from thalweg.sections import Rate as PlainRate
from thalweg.sections.marks import Option, Words
from thalweg.ui.units import (
    FRACTION_FORM,
    RATES,
    TIME_FORM,
    UnexpectedValueError,
    parse_fraction,
    parse_rate,
    parse_seconds,
    parse_size,
)

UNLIMITED: Final = "unlimited"
# A packet of the emulated network, IP header included.
MTU: Final = 1500
LONGEST_DELAY: Final = 3600.0
# Maximum of a correlation: beyond it a random sequence hardly changes, and the emulation refuses it.
CLOSEST: Final = 0.99
HIGHEST_RATE: Final = 10**15

RATE_FORM: Final = f"bits a second, or text with a unit as 20mbit ({' '.join(RATES)}), or {UNLIMITED!r}"
QUEUE_FORM: Final = f'bytes (at least {MTU}), or text as "256KiB" or "100 packets"'
BURST_FORM: Final = "a table of enter and leave, or text as 1%/30% (enter/leave, and /loss_bad/loss_good)"
RANGE_FORM: Final = "or two of them as [low, high], one of which is drawn for each link"
_PACKETS: Final = re.compile(r"([0-9]{1,9}) *packets?", re.ASCII)

Number: TypeAlias = float | int | str


def quantity(read: Callable[[object], Number], form: str) -> PlainValidator:
    """Return a validator of one value or of a range ``[low, high]``, which text writes as ``low..high``."""

    def check(value: object) -> Any:
        parts = value.split("..") if isinstance(value, str) and ".." in value else value
        if not isinstance(parts, list):
            return read(value)
        ends = [read(part) for part in parts]
        if len(ends) != 2 or any(isinstance(end, str) for end in ends) or not ends[0] <= ends[1]:  # type: ignore[operator]
            raise UnexpectedValueError(value, f"{form}, {RANGE_FORM}")
        return ends

    return PlainValidator(check)


def _rate(value: object) -> Number:
    if value == UNLIMITED:
        return UNLIMITED
    rate = _number(value, parse_rate, RATE_FORM)
    if rate != int(rate) or not 1 <= rate <= HIGHEST_RATE:
        raise UnexpectedValueError(value, f"from 1 to {HIGHEST_RATE} bits a second; {UNLIMITED!r} is no limit")
    return int(rate)


def _time(value: object) -> Number:
    return _within(value, parse_seconds, LONGEST_DELAY, TIME_FORM)


def _fraction(value: object) -> Number:
    return _within(value, parse_fraction, 1.0, FRACTION_FORM)


def _correlation(value: object) -> Number:
    return _within(value, parse_fraction, CLOSEST, FRACTION_FORM)


def _within(value: object, parse: Callable[[str], float], most: float, form: str) -> float:
    number = _number(value, parse, form)
    if not 0 <= number <= most:
        raise UnexpectedValueError(value, f"from 0 to {most:g}: {form}")
    return float(number)


def _number(value: object, parse: Callable[[str], float], form: str) -> float:
    number = parse(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise UnexpectedValueError(value, form)
    return number


def _queue(value: object) -> int | str:
    packets = _PACKETS.fullmatch(value.strip()) if isinstance(value, str) else None
    if packets is not None:
        if int(packets[1]) == 0:
            raise UnexpectedValueError(value, f"at least 1 packet: {QUEUE_FORM}")
        return f"{int(packets[1])} packets"
    size = parse_size(value) if isinstance(value, str) else value
    if isinstance(size, bool) or not isinstance(size, int) or not MTU <= size < 1 << 62:
        raise UnexpectedValueError(value, QUEUE_FORM)
    return size


def _burst(value: object) -> object:
    """Read ``enter/leave/loss_bad/loss_good``; a table is left to its section."""
    if not isinstance(value, str):
        return value
    names = ("enter", "leave", "loss_bad", "loss_good")
    parts = value.split("/")
    if not 2 <= len(parts) <= len(names):
        raise UnexpectedValueError(value, BURST_FORM)
    return dict(zip(names, parts, strict=False))


def _cpu(value: object) -> float:
    number = _number(value, lambda text: parse_fraction(text) * 100, "percent, as 99 or 99%")
    if not 0 < number <= 100:
        raise UnexpectedValueError(value, "more than 0 and at most 100 percent")
    return float(number)


def _quota(value: object) -> float:
    number = _number(value, parse_fraction, FRACTION_FORM)
    if not 0.01 <= number <= 1024:
        raise UnexpectedValueError(value, "from 0.01 to 1024 cores, as 0.2 or 20%")
    return float(number)


def _scale(value: object) -> float:
    number = _number(value, parse_fraction, "a factor as 0.1")
    if not 1e-6 <= number <= 1e6:
        raise UnexpectedValueError(value, "a factor from 0.000001 to 1000000")
    return float(number)


def _moment(value: object) -> float:
    return _within(value, parse_seconds, 1e9, TIME_FORM)


Rate: TypeAlias = Annotated[int | str | list[int], quantity(_rate, RATE_FORM), Words("rate or range")]
Time: TypeAlias = Annotated[float | list[float], quantity(_time, TIME_FORM), Words("time or range")]
Share: TypeAlias = Annotated[float | list[float], quantity(_fraction, FRACTION_FORM), Words("share or range")]
Correlation: TypeAlias = Annotated[float | list[float], quantity(_correlation, FRACTION_FORM), Words("share or range")]
PlainShare: TypeAlias = Annotated[float, PlainValidator(_fraction), Words("share")]
Queue: TypeAlias = Annotated[int | str, PlainValidator(_queue), Words('size, or text as "100 packets"')]
Moment: TypeAlias = Annotated[float, PlainValidator(_moment), Words("time")]
Scale: TypeAlias = Annotated[float, PlainValidator(_scale), Words("factor")]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?$")]


class BurstSection(Section):
    """Losses in bursts: a link is good or bad (Gilbert 1960, Elliott 1963; "gemodel" of tc-netem)."""

    enter: PlainShare = Field(description="probability, at each packet, that a good link turns bad")
    leave: PlainShare = Field(
        description="probability, at each packet, that a bad link turns good; bursts have 1/leave packets on average"
    )
    loss_bad: PlainShare = Field(1.0, description="probability that a packet is lost while the link is bad")
    loss_good: PlainShare = Field(0.0, description="probability that a packet is lost while the link is good")


class DirectionSection(Section):
    """One direction of a link. What is left out is an ideal link's: no limit, no delay, no loss."""

    rate: Rate | None = Field(None, description="bits of IP packets a second, or unlimited")
    delay: Time | None = Field(None, description="time from one end to the other")
    jitter: Time | None = Field(None, description="time by which the delay varies either way, evenly")
    delay_correlation: Correlation | None = Field(
        None, description="how much a packet's jitter depends on the last one's, up to 0.99"
    )
    clamp: bool | None = Field(None, description="whether jitter may exceed the delay; below zero it is then zero")
    keep_order: bool | None = Field(
        None, description="whether jitter never lets a packet overtake another; without it it does, as with tc"
    )
    loss: Share | None = Field(None, description="probability that a packet is lost")
    loss_correlation: Correlation | None = Field(
        None, description="how much that depends on the packet before, as with tc, up to 0.99"
    )
    burst: Annotated[BurstSection, BeforeValidator(_burst)] | None = Field(
        None, description="losses in bursts instead of loss: a table, or text as 1%/30%/100%/0%"
    )
    reorder: Share | None = Field(None, description="probability that a packet skips the delay, as with tc")
    reorder_correlation: Correlation | None = Field(None, description="how much that depends on the packet before")
    duplicate: Share | None = Field(None, description="probability that a packet comes twice")
    duplicate_correlation: Correlation | None = Field(None, description="how much that depends on the packet before")
    queue: Queue | None = Field(
        None, description="most that waits for the link; without it 100 ms of its rate, at least 64KiB"
    )
    down: bool | None = Field(None, description="whether it carries nothing")


class LinkSection(DirectionSection):
    """A link: keys here are of both directions, those of up and down of one. A later profile or key replaces."""

    profile: Text | None = Field(None, description="name of a profile, or path of a profile's TOML file")
    rtt: Time | None = Field(None, description="round trip instead of delay: half of it each way")
    up: DirectionSection | None = Field(None, description="keys of client to server alone")
    down: DirectionSection | None = Field(  # type: ignore[assignment]
        None, description="keys of server to client alone; or true: the link carries nothing either way"
    )

    @model_validator(mode="before")
    @classmethod
    def _carries_nothing(cls, table: Any) -> Any:
        """Read ``down = true`` as the key of both directions, although the direction ``down`` has the same name."""
        down = table.get("down") if isinstance(table, dict) else None
        up = table.get("up") if isinstance(table, dict) else None
        if not isinstance(down, bool) or not isinstance(up, (dict, type(None))):
            return table
        return {**table, "up": {"down": down, **(up or {})}, "down": {"down": down}}


class GraphLinkSection(LinkSection):
    """A link of a graph. up is from a to b, down from b to a."""

    a: Name = Field(description="one end: server, a client or a switch")
    b: Name = Field(description="the other end")
    name: Name | None = Field(None, description="name of the link; without it a_b")


class ChangeSection(DirectionSection):
    """A change of links at a time. Keys that are not given stay as they are."""

    at: Moment = Field(description="time after the network's start, times time_scale")
    link: Text = Field("*", description="name of a link, or a pattern as client-* or *")
    direction: Literal["up", "down"] | None = Field(None, description="up or down alone; without it both")
    profile: Text | None = Field(None, description="profile that replaces all that the link was")
    rtt: Time | None = Field(None, description="round trip instead of delay: half of it each way")


class TraceSection(Section):
    """Rates over time from a file."""

    file: Text = Field(description="CSV with lines of seconds,rate; # begins a comment")
    link: Text = Field("*", description="name of a link, or a pattern as client-* or *")
    direction: Literal["up", "down"] | None = Field(None, description="up or down alone; without it both")
    repeat: int = Field(1, ge=1, le=100_000, description="times that it is played, one after the other")


class TcpSection(Section):
    """Settings of TCP in all emulated hosts, never on the machine itself."""

    congestion: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,15}$")] | None = Field(
        None, description="congestion control of all connections, as cubic or reno; without it the system's"
    )
    send_buffer: Annotated[Buffer, Field(ge=4096)] | None = Field(
        None, description="most bytes of a send buffer; without it four bandwidth-delay products, 6MiB to 64MiB"
    )
    receive_buffer: Annotated[Buffer, Field(ge=4096)] | None = Field(
        None, description="most bytes of a receive buffer; likewise"
    )
    timestamps: bool = Field(True, description="whether segments carry timestamps, 12 bytes each (RFC 7323)")
    sack: bool = Field(True, description="whether receivers acknowledge selectively (RFC 2018)")


class NetworkSection(LinkSection):
    """An emulated network: what the links between server and clients are like."""

    topology: Annotated[Text, Option(of=RUNS, metavar="TOPOLOGY")] = Field(
        "star",
        description="who is linked with whom: star, bottleneck, dumbbell, mesh, graph (as links says), or a word as "
        "ring or 3-regular, the graph of links between clients",
    )
    clients: dict[Text, LinkSection] | None = Field(
        None, description="table of a client's own link: its keys go before those of all, its profile replaces them"
    )
    bottleneck: LinkSection | None = Field(
        None, description="shared link of a bottleneck or dumbbell; without a rate it has that of one client's link"
    )
    broker: LinkSection | None = Field(
        None,
        description="a host of its own for the run's broker, and its link, which is unlimited where no key says "
        "otherwise; without the table the broker is on the server's host",
    )
    mtu: int = Field(
        MTU, ge=1280, le=65_535, description="most bytes of a packet on every link; 65535 is about that of a loopback"
    )
    switches: list[Name] | None = Field(None, description="names of a graph's switches")
    links: list[GraphLinkSection] | None = Field(None, description="links of a graph, on top of the keys of all")
    changes: list[ChangeSection] | None = Field(None, description="changes over time")
    trace: TraceSection | None = Field(None, description="rates over time from a file")
    time_scale: Scale = Field(1.0, description="factor of all times of changes and trace; 0.1 is ten times as fast")
    tcp: TcpSection = Field(default_factory=TcpSection, description="settings of TCP in the emulated hosts")
    emulator: Annotated[Literal["auto", "packet", "message", "netem", "none"], Option(of=RUNS)] = Field(
        "auto",
        description="packet (needs root), message (layers around the transport), none; auto: packet where it can be",
    )
    clock: Annotated[Literal["real", "virtual"], Option()] = Field(
        "real",
        description="virtual: the job runs inside a guest kernel (make guest), whose time stands still while anything "
        "computes",
    )
    limiter: Literal["path", "device"] = Field(
        "path",
        description="where rates hold. path: behind the sender, who learns of a full queue from losses; device: on the "
        "device of a host with one link, as tc-tbf(8) there, where its sockets wait",
    )
    limiter_burst: Annotated[Buffer, Field(ge=MTU)] | None = Field(
        None, description="bytes that a device's limiter sends at once after a pause; without it 1 ms of its rate"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed besides the job's")


# What stands in ``stress.parties`` for all nodes of a tree that are used.
NODES: Final = "nodes"


class StressSection(Section):
    """Load on parties while they work (FedComm section III.C step 4)."""

    cpu: Annotated[float, PlainValidator(_cpu), Words("percent")] | None = Field(
        None, description="percent of CPU that stress-ng takes (99 in FedComm section IV.B)"
    )
    cpu_quota: Annotated[float, PlainValidator(_quota), Words("cores")] | None = Field(
        None, description="cores that a party may use, as 0.2"
    )
    network: PlainRate | None = Field(None, description="bits a second of other TCP traffic (FedComm section IV.B)")
    network_mode: Literal["server", "clients"] = Field(
        "server", description="server: between each party and the server; clients: between pairs of clients"
    )
    parties: Annotated[list[Text], Field(min_length=1)] | None = Field(
        None,
        description="who is under stress, as client-1, server, or nodes: all nodes of a tree that are used; "
        "without it all clients",
    )
