"""Refuses settings that a job on a graph cannot have, and those that only such a job can have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from thalweg import algorithms, graphs
from thalweg.algorithms import choco
from thalweg.errors import PlanError
from thalweg.graphs import making, mixing
from thalweg.plan.run_facts import RunFacts

if TYPE_CHECKING:
    from thalweg.graphs import Schedule
    from thalweg.plan import Plan
    from thalweg.transports.registry import Capabilities

# Values of ``job.wait`` whose wait a deadline ends.
TIMED: Final = ("first-chunk", "deadline")


def check(plan: Plan) -> None:
    """Refuse combinations that are impossible on any machine. Raises PlanError."""
    if plan.job.graph is None:
        _check_star(plan)
        return
    _check_keys(plan)
    _check_waiting(plan)
    _check_graph(plan, plan.job.graph)
    _check_exchange(plan, plan.job.graph)
    _check_hosts(plan)


def reach(can: Capabilities) -> str:
    """Return how far a transport that crosses no network reaches: within one process, or one machine."""
    return "one process" if can.in_process else "one machine"


def check_transport(plan: Plan, can: Capabilities) -> None:
    """Refuse a transport that cannot carry a graph's links. ``can`` has its capabilities. Raises PlanError."""
    if plan.job.graph is None:
        return
    # Without [hosts.nodes] all nodes are on the machine of `thalweg run`, so a transport within one machine will do.
    apart = "each node of a graph is a process" if can.in_process else "[hosts.nodes] is for nodes on several machines"
    if not can.remote and (can.in_process or plan.hosts.nodes is not None):
        raise PlanError(
            f"the transport {plan.scheme!r} stays within {reach(can)}, and {apart}",
            "Take another transport, such as tcp",
        )
    if can.broker:
        raise PlanError(
            f"the transport {plan.scheme!r} goes through a broker, and a graph's nodes connect to each other",
            "Take another transport, such as tcp",
        )
    if not can.symmetric:
        raise PlanError(
            f"the two ends of a link over {plan.scheme!r} differ, and a node of a graph may be at either end",
            "Take a symmetric transport, such as tcp or ltp",
        )


def schedule_of(plan: Plan) -> Schedule:
    """Return the graph of a plan. Raises PlanError if the plan has no graph or an impossible one."""
    text = plan.job.graph
    if text is None:
        raise PlanError("the plan has no graph", "Give job.graph, such as ring or 3-regular")
    return graphs.schedule(text, plan.job.clients, plan.job.seed)


def gamma_of(plan: Plan, schedule: Schedule) -> float | None:
    """Return CHOCO-SGD's step size gamma on a plan's graph; None for another algorithm. Raises PlanError."""
    if plan.algorithm.name != choco.NAME:
        return None
    if schedule.changes:
        raise PlanError(
            f"{choco.NAME} needs the same neighbours in every iteration, and {plan.job.graph} changes",
            "Take a graph that does not change, or algorithm.name = 'dpsgd'",
        )
    return plan.algorithm.gamma or choco.step_size(schedule, plan.layers.format)


def graph_line(plan: Plan, schedule: Schedule) -> str:
    """Return one line that describes a plan's graph."""
    degrees = [len(sources) for sources in schedule.at(1).hears]
    least, most = min(degrees), max(degrees)
    gap = mixing.gap(schedule)
    words = [f"graph {plan.job.graph}: {schedule.nodes} nodes", f"{len(schedule.links.edges)} links"]
    words += [f"degree {least}" if least == most else f"degrees {least} to {most}"]
    words += [] if gap is None else [f"spectral gap {gap:.3f}"]
    gamma = gamma_of(plan, schedule)
    return ", ".join([*words, *([] if gamma is None else [f"gamma {gamma:.3g}"])])


def facts_of(plan: Plan, schedule: Schedule, address: str, *, tls: bool) -> RunFacts:
    """Return the facts about a job on a graph for the record's manifest."""
    return {
        "address": address,
        "tls": tls,
        "bound": {"source": "not known for jobs on a graph"},
        "graph": {
            "word": plan.job.graph,
            "nodes": plan.members,
            "edges": [list(edge) for edge in schedule.links.edges],
            "spectral_gap": mixing.gap(schedule),
            "gamma": gamma_of(plan, schedule),
        },
    }


def _check_star(plan: Plan) -> None:
    if plan.algorithm.name in algorithms.GRAPH_ALGORITHMS:
        raise PlanError(f"{plan.algorithm.name} needs a graph", "Give job.graph, such as ring or 3-regular")


def _check_keys(plan: Plan) -> None:
    if plan.algorithm.name not in algorithms.GRAPH_ALGORITHMS:
        raise PlanError(
            f"a job with a graph cannot have the algorithm {plan.algorithm.name}: "
            + algorithms.find(plan.algorithm.name).refused["graph"],
            f"Remove algorithm.name, which is then {algorithms.GRAPH_DEFAULT}, or job.graph",
        )
    _check_replicas(plan)


def _check_replicas(plan: Plan) -> None:
    """Refuse settings that would make a neighbour's replica of a model differ from the node's own. Raises PlanError."""
    if plan.algorithm.name != choco.NAME:
        if plan.algorithm.gamma is not None:
            raise PlanError(
                f"algorithm.gamma is for {choco.NAME}, and the algorithm is {plan.algorithm.name}",
                f"Remove it, or take algorithm.name = {choco.NAME!r}",
            )
        return
    if plan.wait != "all":
        raise PlanError(
            f"{choco.NAME} cannot have job.wait = {plan.wait!r}: a difference that is lost stays missing for ever",
            "Remove job.wait, which is then all, or take algorithm.name = 'dpsgd'",
        )
    if plan.job.share not in (None, 1.0):
        raise PlanError(
            f"{choco.NAME} sends differences of whole models, and job.share is {plan.job.share}",
            "Remove job.share, or take algorithm.name = 'dpsgd'",
        )
    if plan.weights != "metropolis":
        raise PlanError(
            f"{choco.NAME} needs the weights of the graph itself, and aggregation.weights is {plan.weights}",
            "Remove aggregation.weights, or take algorithm.name = 'dpsgd'",
        )


def _check_waiting(plan: Plan) -> None:
    deadline = plan.job.deadline
    if deadline is not None and plan.wait not in TIMED:
        raise PlanError(
            f"job.wait is {plan.wait}, which no deadline ends", "Remove job.deadline, or take job.wait = 'deadline'"
        )
    if deadline is None and plan.wait == "first-chunk":
        raise PlanError(
            "job.wait = first-chunk needs a deadline, because no chunk may arrive from a neighbour that is lost",
            "Give job.deadline; the udp-dpsgd paper has 0.4 s",
        )


def _check_graph(plan: Plan, text: str) -> None:
    word = graphs.parse(text)
    # A file that a plan names may be on another machine, so its content is checked when the plan runs.
    if word.kind != "file":
        making.check(word, plan.job.clients)
    if word.kind == "one-peer" and plan.weights == "symmetric":
        raise PlanError(
            "symmetric weights use what neighbours sent each other, and on a one-peer graph models are sent one way",
            "Take metropolis or renormalise, or the graph exponential",
        )


def _check_exchange(plan: Plan, text: str) -> None:
    """Refuse to exchange by segments where a node needs whole models. Raises PlanError."""
    if plan.job.exchange != "segments":
        return
    compressed = plan.layers.compress is not None or plan.compression.scheme is not None
    obstacle = None
    if graphs.parse(text).kind != "full":
        obstacle = "job.graph", text, "full"
    elif plan.wait != "all":
        obstacle = "job.wait", plan.wait, "all"
    elif plan.weights not in ("metropolis", "renormalise"):
        obstacle = "aggregation.weights", plan.weights, "metropolis or renormalise"
    elif compressed:
        obstacle = "compression", "on", "none, because it would round the mean differently at each node"
    if obstacle is not None:
        key, value, need = obstacle
        raise PlanError(
            f"job.exchange = segments needs {key} = {need}, and it is {value}",
            f"Change {key}, or remove job.exchange, which is then auto",
        )


def _check_hosts(plan: Plan) -> None:
    named = plan.hosts.nodes
    if plan.url.rpartition(":")[2] != "0":
        raise PlanError(
            f"transport.url is {plan.url}, and each node listens on a port of its own",
            f"Give transport.url = {plan.scheme!r}; hosts.nodes says where nodes of several machines listen",
        )
    if named is None:
        return
    if len(named) != plan.job.clients:
        raise PlanError(
            f"[hosts.nodes] names {len(named)} nodes where job.clients is {plan.job.clients}",
            "Make them agree, or leave job.clients out",
        )
    for name, host in named.items():
        if "://" in host or not host.rpartition(":")[2].isdecimal():
            raise PlanError(
                f"[hosts.nodes] has {host!r} for {name}, where host:port belongs", "Write it as 10.0.0.7:7070"
            )
