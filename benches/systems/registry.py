"""The systems of the table: the script of each, its environment, the work that it can do, and its options."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benches.common import MIB
from benches.systems import environments

RIVALS: Final = Path(__file__).parent / "rivals"
STAR, ALLREDUCE, TREE = "star", "allreduce", "tree"


@dataclass(frozen=True)
class System:
    """A system, as a row of the table.

    ``environment`` is the name of its lock file; None for thalweg's own. ``package`` is the one whose version is shown.
    ``works`` are the kinds of work that it can do, and ``lacks`` has the reasons why it cannot do others. ``unusable``
    says why it cannot run here at all.
    """

    name: str
    script: str
    environment: str | None
    package: str | None
    works: tuple[str, ...] = (STAR,)
    options: Mapping[str, Any] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    #: The paths over which it is measured; None for all.
    paths: tuple[str, ...] | None = None
    unusable: str | None = None
    #: A program outside its environment that its script starts, and the package that has it.
    program: tuple[str, str] | None = None
    #: The row of which this one is a tuned variant.
    tuned: str | None = None
    #: Seconds that the start and the rounds may take in addition to the path's limit.
    slack: float = 180.0
    #: Maximum number of rounds that are measured in a turn, for a slow system; None for no maximum.
    most_rounds: int | None = None
    #: Environment variables of each party.
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return RIVALS / self.script

    @property
    def ours(self) -> bool:
        return self.environment is None

    def obstacle(self) -> str | None:
        """Return why it cannot run here now; None if it can."""
        if self.unusable is None and self.program is not None and shutil.which(self.program[0]) is None:
            return f"{self.program[0]} is not installed; Debian's package {self.program[1]} has it"
        return self.unusable or (environments.missing(self.environment) if self.environment else None)


NO_PEERS: Final = {
    ALLREDUCE: "it has a server and clients; clients do not reach each other",
    TREE: "it has a server and clients; clients do not reach each other",
}
NO_SERVER: Final = {STAR: "it has no server", TREE: "it has no server"}

#: The library of Debian's package libmpich12. mpi4py looks for it under another name, so its script links to it.
MPICH: Final = "/usr/lib/x86_64-linux-gnu/libmpich.so.12"
SHARDCAST: Final = (
    "nodes on one machine write to the same files; though each has a copy of the package, some still got no version"
)
ONE_WAY: Final = {STAR: "it sends one way", ALLREDUCE: "it sends one way"}


# Reasons why a row of thalweg does not do a kind of work: another row of thalweg does it.
OTHERS: Final = {ALLREDUCE: "the graph does this", TREE: "tasks do this"}
NOT_TASKS: Final = {STAR: "rounds do this", ALLREDUCE: "the graph does this"}


def _rounds(transport: str, variant: str = "", options: Mapping[str, Any] | None = None, **more: Any) -> System:
    """Return thalweg's rounds over a transport. ``variant`` with ``options`` is a tuned one."""
    name = f"thalweg {transport}"
    more |= {"tuned": name} if variant else {}
    options = {"transport": transport, **(options or {})}
    return System(f"{name}{variant}", "thalweg", None, None, options=options, lacks=OTHERS, **more)


def _other(
    name: str, script: str, work: str, lacks: Mapping[str, str], *, transport: str = "tcp", **more: Any
) -> System:
    """Return thalweg's row for a kind of work other than rounds."""
    return System(name, script, None, None, works=(work,), options={"transport": transport}, lacks=lacks, **more)


SYSTEMS: Final = {
    system.name: system
    for system in (
        _rounds("tcp"),
        # For a link that is down for longer than the default of job.liveness allows, 10 s.
        _rounds("tcp", ", liveness 60 s", {"server": {"liveness": 60.0}}, paths=("wan",)),
        _rounds("grpc"),
        _rounds("quic"),
        _rounds("ltp"),
        _rounds("unifl"),
        _rounds("shm", paths=("loopback",)),
        _other("thalweg graph", "thalweg_graph", ALLREDUCE, NO_SERVER),
        _other("thalweg graph, shm", "thalweg_graph", ALLREDUCE, NO_SERVER, transport="shm", paths=("loopback",)),
        _other("thalweg tasks", "thalweg_tasks", TREE, NOT_TASKS),
        _other("thalweg tasks, relayed", "thalweg_relay", TREE, NOT_TASKS, tuned="thalweg tasks"),
        _other("thalweg tasks, shm", "thalweg_tasks", TREE, NOT_TASKS, transport="shm", paths=("loopback",)),
        System("gRPC", "grpc", "grpc", "grpcio", lacks=NO_PEERS),
        System("gRPC, chunks", "grpc", "grpc", "grpcio", options={"chunk": MIB}, lacks=NO_PEERS, tuned="gRPC"),
        System("HTTP", "http", "http", "aiohttp", lacks=NO_PEERS),
        System("Flower", "flower", "flower", "flwr", lacks=NO_PEERS, most_rounds=2),
        System("torch RPC", "torch_rpc", "torch", "torch", lacks=NO_PEERS),
        System("torchft", "torchft", "torch", "torchft", lacks=NO_PEERS),
        System(
            "torchft, chunks", "torchft", "torch", "torchft", options={"chunks": 4}, lacks=NO_PEERS, tuned="torchft"
        ),
        System(
            "MPI",
            "mpi",
            "mpi",
            "mpi4py",
            works=(STAR, ALLREDUCE, TREE),
            options={"library": MPICH},
            program=("mpiexec", "mpich"),
        ),
        System("S3", "s3", "s3", "moto", lacks=NO_PEERS),
        System(
            "hivemind",
            "hivemind",
            "torch",
            "hivemind",
            works=(ALLREDUCE,),
            lacks=NO_SERVER,
            most_rounds=2,
        ),
        System(
            "hivemind, short matchmaking",
            "hivemind",
            "torch",
            "hivemind",
            works=(ALLREDUCE,),
            options={"averager": {"min_matchmaking_time": 1.0}},
            tuned="hivemind",
            lacks=NO_SERVER,
        ),
        System(
            "NVFlare",
            "nvflare",
            "nvflare",
            "nvflare",
            lacks=NO_PEERS,
            most_rounds=2,
        ),
        System(
            "shardcast",
            "shardcast",
            "shardcast",
            "shardcast",
            works=(TREE,),
            unusable=SHARDCAST,
            lacks=ONE_WAY,
            most_rounds=2,
            slack=240.0,
        ),
        System(
            "shardcast, small shards",
            "shardcast",
            "shardcast",
            "shardcast",
            works=(TREE,),
            unusable=SHARDCAST,
            lacks=ONE_WAY,
            options={"interval": 1},
            environ={"SHARDCAST_SHARD_SIZE": str(8 * MIB)},
            tuned="shardcast",
        ),
        System("gloo", "gloo", "torch", "torch", works=(STAR, ALLREDUCE, TREE)),
    )
}
