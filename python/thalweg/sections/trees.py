"""The sections of an aggregation tree and of its nodes."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from thalweg.sections import CALIBRATE, TREES, Fraction, Rate, Section, Text, Time
from thalweg.sections.marks import Option, Source, Words


def _workers(value: Any) -> Any:
    """Parse the command line's value: a number, or auto."""
    if value == "auto":
        return None
    return int(value) if isinstance(value, str) and value.isdecimal() else value


Workers: TypeAlias = Annotated[
    Annotated[int, Field(ge=1, le=1024)] | None,
    BeforeValidator(_workers),
    Words('whole number, or "auto"'),
]


def _levels(value: Any) -> Any:
    """Parse a single level that is given without a list, and numbers from the command line."""
    levels = value if isinstance(value, list) else [value]
    return [int(one) if isinstance(one, str) and one.isdecimal() else one for one in levels]


# Maximum number of levels of middle nodes.
MOST_LEVELS: Final = 8
Levels: TypeAlias = Annotated[
    Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(max_length=MOST_LEVELS)],
    BeforeValidator(_levels),
    Words("whole number, or list of them"),
]


class AutoscalerSection(Section):
    """The threshold autoscaler of the systems to compare with; without a key, Knative's number."""

    tick: Time | None = Field(None, description="time between decisions; else 2s")
    stable: Time | None = Field(None, description="window of the calm average; else 60s")
    panic: Time | None = Field(None, description="window of the average in a panic; else 6s")
    threshold: int | None = Field(
        None, ge=1, le=100_000, description="per cent of the ready workers at which a panic begins; else 200"
    )
    target: int | None = Field(
        None, ge=1, le=100, description="per cent of a leaf's inputs that a worker should have under way; else 70"
    )
    grace: Time | None = Field(None, description="time that the last worker stays without work; else 30s")


class CostsSection(Section):
    """What things cost in `thalweg tree simulate`. Without a key, a measurement on a machine of two cores (0046)."""

    fold: int | None = Field(None, ge=1, description="bytes a second of updates that are folded; else 13100000000")
    sums: int | None = Field(
        None,
        ge=1,
        description="bytes a second of sums read and written, once a pass of up to 8 updates; else 22500000000",
    )
    hand_over: Time | None = Field(None, description="time of a note from process to process; else 20us")
    socket: int | None = Field(None, ge=1, description="bytes a second from process to process; else 3300000000")
    broker: int | None = Field(None, ge=1, description="bytes a second through a broker; else 840000000")
    side: int | None = Field(None, ge=1, description="bytes a second through a side process; else 3300000000")
    warm_start: Time | None = Field(None, description="start of a worker from its template; else 1.3ms")
    cold_start: Time | None = Field(None, description="start of a worker as a new process; else 100ms")
    finish: int | None = Field(
        None, ge=1, description="bytes a second of a model that is made of sums; else it takes no time"
    )


class TreeSection(Section):
    """How updates are aggregated by a tree of nodes. `thalweg run` refuses keys that it does not follow."""

    system: Annotated[
        Literal["lifl", "sf", "sl", "sl-h", "sf-mono", "sf-micro", "sl-b"],
        Option(of=("run", *TREES)),
        Source("LIFL section 6"),
    ] = Field("lifl", description="the system whose switches count where a key below is not given")
    placement: Annotated[Literal["best-fit", "worst-fit", "first-fit"] | None, Option(of=("run", *TREES))] = Field(
        None, description="how a client gets its node: the fullest that has room, the emptiest, or the first with room"
    )
    split: Annotated[Literal["clients", "ranges"] | None, Option(of=("run", *TREES, CALIBRATE))] = Field(
        None,
        description="how a node's workers divide its updates. clients: leaves fold whole updates, and a middle their "
        "sums; ranges: each worker folds its own bytes of all updates; else ranges with lifl, and clients with others",
    )
    top: Annotated[Literal["first-finished", "dedicated", "sharded"], Option(of=("run", *TREES))] = Field(
        "first-finished",
        description="where the nodes' sums meet: at the first to finish, at one without clients, or at each for its "
        "share of the bytes",
    )
    timing: Annotated[Literal["eager", "lazy"] | None, Option(of=("run", *TREES))] = Field(
        None,
        description="whether workers fold what is there at once (eager; a run without it), or everything when the last "
        "input is there",
    )
    routes: Annotated[Literal["auto", "kernel", "node"], Option(of=("run", *TREES))] = Field(
        "auto",
        description="who takes notes between a node and its workers: a program in the kernel, or the node over Unix "
        "sockets; auto: the kernel where it can",
    )
    scaling: Annotated[Literal["hierarchy", "fixed", "knative"] | None, Option(of=TREES)] = Field(
        None, description="what decides how many workers there are: the planned hierarchy, nothing, or an autoscaler"
    )
    reuse: bool | None = Field(
        None,
        description="whether a leaf that has finished takes over the middle's work, or a worker of its own has it; "
        "in a simulation also whether a middle takes over that of the top",
    )
    start: Literal["template", "cold", "always"] | None = Field(
        None,
        description="how workers come to be: forked from a template, started anew in a round with their first update "
        "(planned ones with the node's first), or started once by their program",
    )
    container_start: Annotated[Time, Field(le=10.0)] = Field(
        0.0, description="of cold starts: time that a worker waits before its program starts, as for a container"
    )
    data_plane: Literal["pool", "sockets", "broker"] | None = Field(
        None, description="how updates get from process to process on a node"
    )
    side_process: bool | None = Field(None, description="whether a side process mediates what a worker gets and sends")
    levels: Literal["tree", "flat"] | None = Field(
        None, description="whether a node has leaves and a middle, or one aggregator"
    )
    keep: bool = Field(True, description="whether clients stay at their node while they fit")
    inputs: int = Field(2, ge=1, le=100_000, description="updates for each leaf; the paper's I")
    workers: Annotated[Workers, Option(of=("run", *TREES, CALIBRATE), metavar="NUMBER")] = Field(
        None,
        description="maximum number of leaves of a node, which plans how many it has; with tree.split = ranges or "
        "tree.scaling = fixed the number of its workers. auto or without it: 1; in a run with tree.split = clients the "
        "participants divided by tree.inputs, at most one a core",
    )
    history: Fraction = Field(0.7, description="weight of history in the estimate of a node's queue (section 5.2)")
    every: Annotated[Time, Option("plan-every", of=("run",), metavar="TIME")] = Field(
        120.0,
        description="time after which a node plans again how many leaves it has, and the root which clients leave an "
        "overloaded node",
    )
    silence: Time = Field(10.0, description="time without a word after which a node counts as lost")
    between: Time = Field(10.0, description="of a simulation: from the opening of a round to the first update")
    spread: Annotated[Time, Option(of=TREES, metavar="TIME")] = Field(
        0.0, description="of a simulation: time within which clients finish, evenly; 0 means all at once"
    )
    tag: Annotated[Text | None, Option(of=("run", *TREES), metavar="FILE")] = Field(
        None, description="file with a schema of Flame (a Topology Abstraction Graph), whose groups the tree gets"
    )
    costs: CostsSection | None = Field(None)
    autoscaler: AutoscalerSection | None = Field(None)


class NodesSection(Section):
    """The machines of an aggregation tree."""

    count: Annotated[int, Option("nodes", of=("run", *TREES)), Source("LIFL section 6.1")] = Field(
        5, ge=1, le=1000, description="nodes that there may be; a run starts those that get clients"
    )
    middle: Annotated[Levels | None, Option("middle-nodes", of=("run",), metavar="NUMBER")] = Field(
        None,
        description="middle nodes between nodes.count nodes and the root: how many on each level, from the clients "
        "upwards; [4, 2] is two levels",
    )
    capacity: Annotated[int, Option(of=("run", *TREES)), Source("LIFL's MC")] = Field(
        20, ge=1, le=1_000_000, description="updates that a node can hold at once"
    )
    cores: int = Field(2, ge=1, le=10_000, description="cores of a node, in a simulation and with Ray")
    link: Rate | None = Field(
        None,
        description="bits a second of a node's link with the others, in each direction; without it no limit. A run "
        "emulates it where it has a [network]",
    )
    client_link: Rate | None = Field(
        None, description="bits a second from all clients of a node to it; without it no limit. A run likewise"
    )
    restarts: Annotated[int | None, Option("node-restarts", of=("run",), metavar="NUMBER")] = Field(
        None,
        ge=0,
        le=1000,
        description="times that a lost node is started again before its clients move to other nodes; without it 3, and "
        "10 with Ray",
    )
    away: Time = Field(
        60.0,
        description="time after which the clients of a lost node move that Ray, or somebody, has not started again",
    )
    engine: Annotated[Literal["local", "ray"], Option(of=("run",))] = Field(
        "local", description="what starts nodes: the run itself, on this machine, or Ray, on the machines that it has"
    )
    ray_address: Annotated[Text | None, Option("ray-address", of=("run",), metavar="HOST:PORT")] = Field(
        None,
        description="with Ray, the cluster to join, or auto for the one that this machine belongs to; without it the "
        "run starts a Ray of its own on this machine",
    )
    ray_wait: Annotated[Time, Option("ray-wait", of=("run",), metavar="TIME")] = Field(
        60.0, description="with Ray, how long to wait for machines that are free"
    )
    groups: list[Text] | None = Field(
        None, description="groups that nodes serve, dealt out in turn; without it those of the schema"
    )
