"""The systems of the table: where each script is, its environment, what it can do, and how it is driven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benches.common import MIB

RIVALS: Final = Path(__file__).parent / "rivals"
STAR, ALLREDUCE, TREE = "star", "allreduce", "tree"


@dataclass(frozen=True)
class System:
    """One line of the table.

    ``environment`` is a lock file's name, or None for thalweg's own. ``works`` are the works that the system does.
    ``lacks`` says of other works why not. ``unusable`` says why the system cannot run here at all.
    """

    name: str
    script: str
    environment: str | None
    package: str | None
    works: tuple[str, ...] = (STAR,)
    options: Mapping[str, Any] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    #: The paths that it works over; None for all.
    paths: tuple[str, ...] | None = None
    unusable: str | None = None
    #: The line in the table that this one is tuned from.
    tuned: str | None = None
    #: Seconds that the start and the rounds may take beyond the time of the path.
    slack: float = 180.0
    #: Maximum number of rounds of a turn that count, for a system whose rounds take more than ten seconds on any path.
    most_rounds: int | None = None
    #: Variables of the environment of each party.
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return RIVALS / self.script

    @property
    def ours(self) -> bool:
        return self.environment is None


NO_PEERS: Final = {
    ALLREDUCE: "it has a server and clients; clients do not reach each other",
    TREE: "it has a server and clients; clients do not reach each other",
}
NO_SERVER: Final = {STAR: "it has no server", TREE: "it has no server"}

#: The library of Debian's package libmpich12; mpi4py looks for other names.
MPICH: Final = "/usr/lib/x86_64-linux-gnu/libmpich.so.12"
SHARDCAST: Final = "with our script no client had a version within two minutes; the cause is not found yet"
ONE_WAY: Final = {STAR: "it sends one way", ALLREDUCE: "it sends one way"}


OTHERS: Final = {ALLREDUCE: "the graph does this", TREE: "tasks do this"}


def _thalweg(transport: str, **more: Any) -> System:
    return System(f"thalweg {transport}", "thalweg", None, None, options={"transport": transport}, lacks=OTHERS, **more)


SYSTEMS: Final = {
    system.name: system
    for system in (
        _thalweg("tcp"),
        # For the fault of a link that is away longer than the default of 10 s allows (job.liveness).
        System(
            "thalweg tcp, liveness 60 s",
            "thalweg",
            None,
            None,
            paths=("wan",),
            tuned="thalweg tcp",
            options={"transport": "tcp", "server": {"liveness": 60.0}},
            lacks=OTHERS,
        ),
        _thalweg("grpc"),
        _thalweg("quic"),
        _thalweg("ltp"),
        _thalweg("unifl"),
        _thalweg("shm", paths=("loopback",)),
        System(
            "thalweg graph",
            "thalweg_graph",
            None,
            None,
            works=(ALLREDUCE,),
            options={"transport": "tcp"},
            lacks=NO_SERVER,
        ),
        System(
            "thalweg tasks",
            "thalweg_tasks",
            None,
            None,
            works=(TREE,),
            options={"transport": "tcp"},
            lacks={STAR: "rounds do this", ALLREDUCE: "the graph does this"},
        ),
        System(
            "thalweg tasks, relayed",
            "thalweg_relay",
            None,
            None,
            works=(TREE,),
            options={"transport": "tcp"},
            lacks={STAR: "rounds do this", ALLREDUCE: "the graph does this"},
            tuned="thalweg tasks",
        ),
        System("gRPC", "grpc", "grpc", "grpcio", lacks=NO_PEERS),
        System("gRPC, chunks", "grpc", "grpc", "grpcio", options={"chunk": MIB}, lacks=NO_PEERS, tuned="gRPC"),
        System("HTTP", "http", "http", "aiohttp", lacks=NO_PEERS),
        System("Flower", "flower", "flower", "flwr", lacks=NO_PEERS, most_rounds=2),
        System("torch RPC", "torch_rpc", "torch", "torch", lacks=NO_PEERS),
        System("torchft", "torchft", "torch", "torchft", lacks=NO_PEERS),
        System(
            "torchft, chunks", "torchft", "torch", "torchft", options={"chunks": 4}, lacks=NO_PEERS, tuned="torchft"
        ),
        System("MPI", "mpi", "mpi", "mpi4py", works=(STAR, ALLREDUCE, TREE), options={"library": MPICH}),
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
