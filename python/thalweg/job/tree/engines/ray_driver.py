"""The process of a run that uses Ray: ``python -m thalweg.job.tree.engines.ray_driver``.

It reads its order from standard input as ``thalweg.job.star.worker`` does, then an order for each node, and at the end
``{"do": "end", "grace": seconds}``. It writes lines of JSON to standard output: ``note``, ``placed`` and ``ended``.
However it ends, a Ray that it started ends with it. On a cluster that it joined, its nodes end with it.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from types import FrameType
from typing import Any, Final

from thalweg import wire
from thalweg.errors import LinkError, RoundError
from thalweg.job.common.farewell import reason
from thalweg.job.common.messages import Failure, Report
from thalweg.job.star import worker
from thalweg.job.tree.engines.ray_actor import NodeActor
from thalweg.job.tree.engines.ray_order import RayOrder, RayPlace
from thalweg.job.tree.order import NodeOrder

LOOK_SECONDS: Final = 0.5
# Seconds to connect to a cluster before it counts as unreachable.
REACH_SECONDS: Final = 5.0
# Maximum number of times that Ray starts a node again, if the plan does not give one.
RESTARTS: Final = 10
# Size of Ray's object store: the least that Ray accepts, since nodes put no objects there.
STORE_BYTES: Final = 80_000_000
# Ray reads 127.0.0.1 as "choose an address", and would then listen where other machines can reach it.
LOOPBACK: Final = "127.0.0.2"

# Ray's reference to each node's final report, with the node's name and its actor. Ray ends an actor that nobody holds.
Nodes = dict[Any, tuple[str, Any]]


def drive(order: RayOrder, note: Callable[[str], None]) -> None:
    """Have Ray run the nodes until all have ended or the run's grace is over. Raises LinkError or RoundError."""
    del note  # Ray's own messages are in the log already
    orders = [NodeOrder.of(wire.plain(sys.stdin.readline())) for _ in range(order.count)]
    ending = Ending()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    with _connected(order):
        nodes = _started(order, orders)
        while nodes and not ending.is_due:
            _look(nodes)


class Ending:
    """Waits, in a thread, for the run's order to end, or for the end of standard input."""

    def __init__(self) -> None:
        self._due: float | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def is_due(self) -> bool:
        """Whether the time that the nodes got to end is over, so that this process waits no longer."""
        return self._due is not None and time.monotonic() >= self._due

    def _listen(self) -> None:
        line = sys.stdin.readline()
        self._due = time.monotonic() + float(wire.plain(line)["grace"] if line else 0.0)


@contextmanager
def _connected(order: RayOrder) -> Iterator[None]:
    """Start Ray for this run alone, or join a cluster; shut it down or leave it at the end. Raises LinkError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if order.cluster is None:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        own = {"_node_ip_address": LOOPBACK, "_temp_dir": order.folder, "include_dashboard": False}
        size = {"num_cpus": order.cores * order.count, "num_gpus": 0, "object_store_memory": STORE_BYTES}
        options = {"address": "local", **own, **size}
    else:
        _reach(order.cluster)
        options = {"address": order.cluster}
    import ray

    try:
        try:
            ray.init(**options, **quiet)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _refused(order.cluster, error) from error
        yield
    finally:
        ray.shutdown()


def _reach(cluster: str) -> None:
    """Raise LinkError if nothing listens at the cluster's address. Ray itself would try for ten minutes."""
    if cluster == "auto":
        return
    host, _, port = cluster.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise LinkError(
            f"no Ray cluster answers at {cluster}: {error}",
            "Give where `ray start --head` says that it listens, as host:6379, with nodes.ray_address",
        ) from error


def _refused(cluster: str | None, error: Exception) -> LinkError:
    first = str(error).strip().partition("\n")[0]
    if cluster is None:
        return LinkError(f"Ray cannot be started: {first}", "See the record's log.txt; or take --engine local")
    return LinkError(
        f"the Ray cluster at {cluster} cannot be joined: {first}",
        "Run `ray status` here: this machine must be one of the cluster's, and have its token (RAY_AUTH_TOKEN, or "
        "~/.ray/auth_token; RAY_AUTH_MODE=disabled for a cluster without) and its releases of Ray and Python",
    )


def _started(order: RayOrder, orders: list[NodeOrder]) -> Nodes:
    """Place all nodes and start them, and report each node's place. Raises RoundError."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group, places = _placed(order, len(orders))
    restarts = RESTARTS if order.restarts is None else order.restarts
    actor = ray.remote(num_cpus=order.cores, max_restarts=restarts, max_task_retries=-1)(NodeActor)
    nodes: Nodes = {}
    for number, (order_text, place) in enumerate(zip(orders, places, strict=True)):
        own = order_text if order.cluster is None else _elsewhere(order_text, place.address)
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        made = actor.options(scheduling_strategy=strategy).remote(wire.encode(own), version("thalweg"))
        nodes[made.serve.remote()] = (own.name, made)
        _send("placed", own.name, place=place)
    return nodes


def _placed(order: RayOrder, count: int) -> tuple[Any, list[RayPlace]]:
    """Reserve CPUs for each node; return the placement group, and each node's machine. Raises RoundError.

    In a cluster each node gets a machine of its own. A Ray that this run started has one machine for all.
    """
    import ray
    from ray.util.placement_group import placement_group, placement_group_table

    cores = order.cores
    strategy = "PACK" if order.cluster is None else "STRICT_SPREAD"
    group = placement_group([{"CPU": cores}] * count, strategy=strategy)
    machines = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    fit = sum(node["Resources"].get("CPU", 0) >= cores for node in machines.values())
    if fit < count and strategy == "STRICT_SPREAD":
        _send("note", text=f"waiting for Ray: {count} machines with {cores} CPUs are needed, and {fit} are there")
    if not group.wait(order.wait):
        raise RoundError(
            f"Ray has no {count} machines with {cores} free CPUs each: {len(machines)} in all, {fit} with so many "
            "CPUs, of which some may be taken",
            "Start more with `ray start --address`, or lower nodes.count or nodes.cores",
        )
    machines = {node["NodeID"]: node for node in ray.nodes()}
    at = placement_group_table(group)["bundles_to_node_id"]
    return group, [RayPlace(machines[at[n]]["NodeManagerAddress"], at[n]) for n in range(count)]


def _elsewhere(order: NodeOrder, address: str) -> NodeOrder:
    """Return a node's order with addresses for its machine: it listens there, and connects to the root here."""
    import ray

    return replace(
        order,
        url=_at(order.url, ray.util.get_node_ip_address()),
        listen=_at(order.listen, address),
        address=address,
    )


def _at(url: str, host: str) -> str:
    scheme, _, authority = url.partition("://")
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{authority.rpartition(':')[2]}"


def _look(nodes: Nodes) -> None:
    """Wait ``LOOK_SECONDS`` at most, and report a node that has ended."""
    import ray

    done, _ = ray.wait(list(nodes), timeout=LOOK_SECONDS)
    for one in done:
        name, _ = nodes.pop(one)
        try:
            report = Report.of(wire.plain(ray.get(one)))
        except ray.exceptions.RayError as error:
            report = Report(error=_died(error), log=f"{error}\n")
        # This process's standard error goes to the record's log.
        sys.stderr.write(report.log)
        _send("ended", name, report=replace(report, log=""))


def _died(error: Exception) -> Failure:
    """Return why a node's actor has ended, from Ray's exception."""
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayTaskError):
        return Failure(reason(error.cause), "See the record's log.txt for where it was raised")
    if isinstance(error, RayActorError) and error.actor_init_failed:
        # Ray keeps no more of the actor's exception than its traceback, whose last line is the exception.
        cause = f"its machine cannot start it: {str(error).rstrip().splitlines()[-1]}"
        return Failure(cause, "Install the same release of thalweg on all machines of the cluster")
    return Failure(str(error).partition("\n")[0], "See `ray logs actor` for what it printed")


def _send(kind: str, node: str | None = None, **fields: object) -> None:
    with suppress(BrokenPipeError):  # the run has ended, and this process is about to end too
        print(wire.encode({"say": kind, "node": node, **fields}), flush=True)  # noqa: T201 - the run reads it


def _terminated(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(1)


def run() -> int:
    """Be the driver's process. Returns the exit code."""
    return worker.main(lambda: (RayOrder, drive))


if __name__ == "__main__":
    sys.exit(run())
