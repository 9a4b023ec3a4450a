"""In which shapes of jobs a key of a plan has an effect. A key without an effect is refused, with the reason.

``EFFECTS`` has an entry for each key, or one for a whole section. ``tests/plan/test_effects.py`` checks that no key
lacks an entry, that a key is refused where its entry says so, and that it changes something elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from thalweg import algorithms, apps
from thalweg.errors import PlanError
from thalweg.plan.systems import has_leaves, has_load, has_middle, switches
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.transports import registry
from thalweg.ui.phrases import listed

if TYPE_CHECKING:
    from thalweg.plan import Plan

# Shapes of jobs: a server and its clients; a tree of one node; a tree of several nodes; a graph; a Flower app.
JOBS: Final = ("star", "tree", "nodes", "graph", "flower")
IN: Final = {
    "star": "in a job with a server",
    "tree": "in a tree of one node",
    "nodes": "in a tree of several nodes",
    "graph": "on a graph",
    "flower": "for a Flower app",
}
# The end of the hint: how to get a job of another shape, in which the key has an effect.
OTHER_JOB: Final = {
    "star": ", or take a job with a server",
    "tree": ", or set aggregation.shape = 'tree'",
    "nodes": ", or take several nodes (--nodes)",
    "graph": ", or give job.graph",
    "flower": "",
}
# Sections that `thalweg tree` reads too. It runs no job, so only a run refuses their keys (`check_tree`).
OF_TREES: Final = ("tree", "nodes")


@dataclass(frozen=True)
class Need:
    """A further condition for a key to have an effect. ``met`` tests it, ``unmet`` is the reason if it is not met."""

    met: Callable[[Plan], bool]
    unmet: str


@dataclass(frozen=True)
class Effect:
    """Where a key has an effect: in all shapes of jobs except those in ``without``, which has the reason for each."""

    without: Mapping[str, str]
    need: Need | None = None


def _except(need: Need | None = None, **without: str) -> Effect:
    """Return the entry of a key that has an effect in all shapes of jobs except ``without``, with the reasons."""
    return Effect(without, need)


def _served(graph: str, flower: str, need: Need | None = None) -> Effect:
    """Return the entry of a key that needs a server of rounds. ``graph`` and ``flower`` are the reasons there."""
    return Effect({"graph": graph, "flower": flower}, need)


def _of_graphs(why: str) -> Effect:
    """Return the entry of a key that has an effect only on a graph. ``why`` is the reason elsewhere."""
    return Effect({job: why for job in JOBS if job != "graph"})


def _of_trees(nodes: str | None = None, tree: str | None = None, need: Need | None = None) -> Effect:
    """Return the entry of a key of aggregation trees.

    ``nodes`` and ``tree`` are the reasons if it has no effect with several nodes, or with one node.
    """
    folded = "the server folds updates itself"
    reasons = {"star": folded, "graph": "no server adds updates up", "flower": "workers do not fold its replies yet"}
    own = {"tree": tree, "nodes": nodes}
    return Effect({**reasons, **{job: why for job, why in own.items() if why is not None}}, need)


def _simulated(why: str) -> Effect:
    """Return the entry of a key that only `thalweg tree simulate` uses. ``why`` is the reason for runs."""
    return _of_trees(nodes=why, tree=why)


def _tree(plan: Plan) -> TreeSection:
    return plan.tree or TreeSection()


def _has_leaves(plan: Plan) -> bool:
    return has_leaves(_tree(plan))


def _has_choice(plan: Plan) -> bool:
    """Return whether `tree.scaling` has an effect: a node has leaves, or an autoscaler sets its number of workers."""
    own = _tree(plan).model_copy(update={"scaling": None})
    return _has_leaves(plan) or switches(own)["scaling"] == "knative" or _is_scaled(plan)


def _is_scaled(plan: Plan) -> bool:
    return bool(switches(_tree(plan))["scaling"] == "knative")


def _setting(key: str) -> Effect:
    """Return the entry of a key that is a setting of some algorithms with a server."""
    names = [one.name for one in algorithms.ALGORITHMS.values() if key in one.settings]
    values = "the value" if len(names) == 1 else "values"
    need = Need(
        lambda plan: key in algorithms.find(plan.algorithm.name).settings,
        f"it is for {listed(names)}, {values} of algorithm.name",
    )
    return _served("no server takes a step of its own", _STRATEGY, need)


def _is_network(test: Callable[[Any], object]) -> Callable[[Plan], bool]:
    return lambda plan: plan.network is not None and bool(test(plan.network))


_LEAVES: Final = Need(
    _has_choice, "it is for leaves, which a node has with tree.split = 'clients' and tree.levels = 'tree'"
)
_INPUTS: Final = Need(
    lambda plan: _has_leaves(plan) or _is_scaled(plan), "it is for leaves, which a node has with tree.split = 'clients'"
)
_LOAD: Final = Need(
    lambda plan: has_load(_tree(plan), plan.nodes),
    "it is for planned leaves, which a node has with tree.split = 'clients' and tree.scaling = 'hierarchy', and for "
    "moves between several nodes without an autoscaler and without middle nodes",
)
_COLD: Final = Need(
    lambda plan: switches(_tree(plan))["start"] == "cold", "it is for workers that start cold: tree.start = 'cold'"
)
_MIDDLE: Final = Need(
    lambda plan: has_middle(_tree(plan)),
    "it is for leaves that share memory with their node: tree.split = 'clients', tree.data_plane = 'pool' and no side "
    "process",
)
_AUTOSCALER: Final = Need(_is_scaled, "it is for an autoscaler, which a node has with tree.scaling = 'knative'")
_RAY: Final = Need(
    lambda plan: plan.nodes is not None and plan.nodes.engine == "ray",
    "it is for Ray, and nodes.engine is 'local'",
)
_BROKER: Final = Need(
    lambda plan: plan.transport.url == "auto" or registry.can(plan.scheme).broker,
    "the transport goes through no broker",
)
_DEVICE: Final = Need(_is_network(lambda network: network.limiter == "device"), "network.limiter is 'path'")
_TIMES: Final = Need(
    _is_network(lambda network: network.changes or network.trace), "the network has no changes and no trace"
)
_COMPUTES: Final = Need(lambda plan: plan.training.compute is not None, "training.compute does not say how long")
_TRAINED: Final = Need(lambda plan: not plan.is_payload, "a payload is not trained")
_KEPT: Final = Need(
    lambda plan: plan.checkpoint_every > 0,
    "no checkpoints are written (record.checkpoint_every is 0, the default of payloads)",
)
_TRAFFIC: Final = Need(
    lambda plan: plan.stress is not None and plan.stress.network is not None, "stress.network does not say how much"
)
_REAL: Final = Need(
    lambda plan: plan.network is None or plan.network.clock == "real",
    "in virtual time the job is inside a guest, which has no network to the outside",
)

# Reasons that several keys share.
_ONE: Final = "there is one node"
_ALL_TAKE_PART: Final = "all nodes take part in each iteration"
_STRATEGY: Final = "its strategy decides that"
_OWN: Final = "the app has its own"
_REPLIES: Final = "lost parts of its replies are sent again, or are left out where replies are folded"
_MIXING: Final = "it decides how nodes of a graph mix their models"
_STANDS_IN: Final = "aggregation.weights decides what stands in for a missing chunk"
_ONCE: Final = "a run places its clients once"

# Keys of [network] that have an effect in every job with a network.
LINKS: Final = (
    "rate",
    "delay",
    "jitter",
    "delay_correlation",
    "clamp",
    "keep_order",
    "loss",
    "loss_correlation",
    "burst",
    "reorder",
    "reorder_correlation",
    "duplicate",
    "duplicate_correlation",
    "queue",
    "down",
    "profile",
    "rtt",
    "up",
    "topology",
    "clients",
    "bottleneck",
    "mtu",
    "switches",
    "links",
    "changes",
    "trace",
    "tcp",
    "emulator",
    "clock",
    "limiter",
    "seed",
)
EFFECTS: Final[Mapping[str, Effect]] = {
    "job.rounds": _except(flower="its own configuration sets the number of rounds"),
    "job.clients": _except(),
    "job.graph": _except(flower="its nodes only talk to its ServerApp"),
    "job.wait": _of_graphs("no node waits for its neighbours"),
    "job.ahead": _of_graphs("no node waits for its neighbours"),
    "job.share": _of_graphs("no node sends its model to neighbours"),
    "job.exchange": _of_graphs("no node sends its model to neighbours"),
    "job.test_every": _of_graphs("the server evaluates after each round"),
    "job.evaluate": _served("each node evaluates its own model; job.test_every says when", _STRATEGY, _TRAINED),
    "job.choose": _served(_ALL_TAKE_PART, _STRATEGY),
    "job.seed": _except(),
    "job.enough": _served("nobody counts updates; job.wait says what a node waits for", _STRATEGY),
    "job.goal": _except(
        graph="nobody counts updates; job.wait says what a node waits for",
        flower=_STRATEGY,
    ),
    "job.deadline": _except(flower="its messages have a time to live of their own"),
    "job.grace": _except(graph="nodes do not wait for a lost node"),
    "job.outage": _served("nodes do not wait for a lost node", _STRATEGY),
    "job.liveness": _except(),
    "app": _except(),
    "model.name": _except(flower=_OWN),
    "model.tensors": _except(flower="its ClientApps say what they send"),
    "data.name": _except(flower=_OWN),
    "data.partition": _except(flower=_OWN),
    "data.root": _except(flower=_OWN),
    "data.samples": _except(flower=_OWN),
    "data.test_samples": _except(flower=_OWN),
    "training.batch": _except(flower=_OWN),
    "training.learning_rate": _except(flower=_OWN),
    "training.momentum": _except(flower=_OWN),
    "training.decay_round": _except(flower=_OWN),
    "training.decay": _except(flower=_OWN),
    "training.local_epochs": _except(flower=_OWN),
    "training.local_steps": _except(flower=_OWN),
    "training.threads": _except(),
    "training.compute": _except(flower=_OWN),
    "training.compute_load": _except(_COMPUTES, flower=_OWN),
    "algorithm.name": _except(flower=_STRATEGY),
    **{f"algorithm.{key}": _setting(key) for key in algorithms.SETTINGS},
    "algorithm.gamma": _of_graphs("it is for the algorithm choco, which needs a graph"),
    "transport.url": _except(),
    "transport.congestion": _except(),
    "transport.client_congestion": _except(),
    "transport.streams": _except(),
    "transport.send_buffer": _except(),
    "transport.receive_buffer": _except(),
    "transport.fanout": _served("no server sends a model to all", "its messages are sent in the app's order"),
    "transport.gather": _served("a node receives only from its neighbours", "its replies are received as they arrive"),
    "transport.chunk": _except(),
    "transport.options": _except(),
    "aggregation.shape": _served("no server adds updates up", "workers do not fold its replies yet"),
    "aggregation.partial": _except(
        tree="workers fold whole updates",
        nodes="workers fold whole updates",
        graph="the part of a model that arrived is always used; aggregation.weights decides how",
        flower="to the app, the reply of a lost node is an error",
    ),
    "aggregation.stale": _except(
        graph="late parts of a model are mixed into no other iteration",
        flower=_STRATEGY,
        tree="a tree adds up the updates of one round",
        nodes="a tree adds up the updates of one round",
    ),
    "aggregation.precision": _except(),
    "aggregation.deterministic": _except(graph="the mean depends on lost and late parts of models"),
    "aggregation.weights": _of_graphs(_MIXING),
    "aggregation.staging": _except(graph="models are folded as they arrive"),
    "repair.resend": _except(graph=_STANDS_IN),
    "repair.policy": _served(_STANDS_IN, _REPLIES),
    "repair.spread": _served(_STANDS_IN, _REPLIES),
    "repair.critical": _served(_STANDS_IN, _REPLIES),
    "repair.budgets": _served(_STANDS_IN, _REPLIES),
    "repair.refuse": _served(_STANDS_IN, _REPLIES),
    "security.tls": _except(),
    "security.clients": _except(),
    "security.pki": _except(),
    "security.token_file": _except(),
    "security.login_file": _except(),
    "layers.throttle": _except(),
    "layers.fault": _except(),
    "layers.seal": _except(graph="it is for updates to a server; security.tls encrypts links"),
    "layers.compress": _except(),
    "compression.scheme": _except(
        graph="algorithm.name = 'choco' with layers.compress sends later what rounding leaves out",
        flower="the app's own strategy adds up its replies; layers.compress rounds them",
    ),
    "compression.down": _except(
        nodes="each node would round a model of its own, and its clients would train another one",
        graph="nodes send each other their models; there is no way down",
        flower="the app's own strategy makes what it sends; layers.compress rounds it",
    ),
    "hosts.server": _served(
        "there is no server; hosts.nodes says where nodes listen", "its address is an option of `thalweg flower server`"
    ),
    "hosts.clients": _served(
        "there are no clients; hosts.nodes says where nodes listen", "its nodes connect by themselves, under any name"
    ),
    "hosts.nodes": _of_graphs("there are clients; hosts.clients says where they are"),
    **{f"network.{key}": _except() for key in LINKS},
    "network.broker": _except(
        _BROKER, nodes="the clients of each node are a star around it", graph="nodes connect to each other"
    ),
    "network.time_scale": _except(_TIMES),
    "network.limiter_burst": _except(_DEVICE),
    "stress.cpu": _except(),
    "stress.cpu_quota": _except(),
    "stress.network": _except(nodes="it is between clients and one server"),
    "stress.network_mode": _except(_TRAFFIC, nodes="it is between clients and one server"),
    "stress.parties": _except(),
    "record.folder": _except(),
    "record.checkpoint_every": _except(flower="a Flower app keeps its own state"),
    "record.checkpoint_to": _served(
        "nodes of a graph keep their models in the record, each its own", "a Flower app keeps its own state", _KEPT
    ),
    "record.metrics": _except(_REAL, flower="its rounds are counted by no server of rounds"),
    "record.track": _except(_REAL),
    "tree.system": _of_trees(),
    "tree.placement": _of_trees(tree=_ONE),
    "tree.split": _of_trees(),
    "tree.top": _of_trees(tree="the sums of one node meet at its server"),
    "tree.timing": _of_trees(),
    "tree.routes": _of_trees(),
    "tree.scaling": _of_trees(need=_LEAVES),
    "tree.reuse": _of_trees(need=_MIDDLE),
    "tree.start": _of_trees(),
    "tree.container_start": _of_trees(need=_COLD),
    "tree.data_plane": _of_trees(),
    "tree.side_process": _of_trees(),
    "tree.levels": _of_trees(),
    "tree.keep": _simulated(_ONCE),
    "tree.inputs": _of_trees(need=_INPUTS),
    "tree.workers": _of_trees(),
    "tree.history": _of_trees(need=_LOAD),
    "tree.every": _of_trees(need=_LOAD),
    "tree.silence": _simulated("a node is lost when its link is, which job.liveness decides"),
    "tree.between": _simulated("only a simulation uses it"),
    "tree.spread": _simulated("only a simulation uses it"),
    "tree.tag": _of_trees(tree="groups of clients have nodes of their own, and there is one node"),
    "tree.costs": _simulated("only a simulation uses it"),
    "tree.autoscaler": _of_trees(need=_AUTOSCALER),
    "nodes.count": _of_trees(),
    "nodes.middle": _of_trees(tree=_ONE),
    "nodes.capacity": _of_trees(tree=_ONE),
    "nodes.cores": _of_trees(tree=_ONE, need=_RAY),
    "nodes.link": _of_trees(tree=_ONE),
    "nodes.client_link": _of_trees(tree=_ONE),
    "nodes.restarts": _of_trees(tree=_ONE),
    "nodes.away": _of_trees(tree=_ONE),
    "nodes.engine": _of_trees(tree="it places nodes, and the job has one"),
    "nodes.ray_address": _of_trees(tree=_ONE, need=_RAY),
    "nodes.ray_wait": _of_trees(tree=_ONE, need=_RAY),
    "nodes.groups": _of_trees(tree="groups of clients have nodes of their own, and there is one node"),
}


def job_of(plan: Plan) -> str:
    """Return the shape of a plan's job."""
    if plan.app is not None and plan.app.object.startswith(apps.FLOWER):
        return "flower"
    if plan.job.graph is not None:
        return "graph"
    if plan.aggregation.shape != "tree":
        return "star"
    return "nodes" if (plan.nodes or NodesSection(count=1)).count > 1 else "tree"


def check(plan: Plan) -> None:
    """Refuse keys that have no effect in a plan's job, except those that ``check_tree`` checks. Raises PlanError."""
    _refuse(plan, [path for path in EFFECTS if path.partition(".")[0] not in OF_TREES])


def check_tree(plan: Plan) -> None:
    """Refuse keys of [tree] and [nodes] that have no effect in a run of a plan. Raises PlanError."""
    _refuse(plan, [path for path in EFFECTS if path.partition(".")[0] in OF_TREES])


def _refuse(plan: Plan, paths: Collection[str]) -> None:
    job = job_of(plan)
    faults = [(path, why, hint) for path in paths if is_given(plan, path) for why, hint in _faults(plan, job, path)]
    if not faults:
        return
    causes = "; ".join(f"{path} has no effect {IN[job]}: {why}" for path, why, _ in faults)
    raise PlanError(causes, "; ".join(hint for _, _, hint in faults))


def _faults(plan: Plan, job: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield cause and hint if the key ``path`` has no effect in a ``job`` of this shape."""
    effect = EFFECTS[path]
    if job in effect.without:
        # The hint names another shape of job. A Flower app cannot have another shape.
        others = [other for other in JOBS if other not in effect.without and job != "flower"]
        yield effect.without[job], f"Remove {path}{OTHER_JOB[others[0]] if others else ''}"
    elif effect.need is not None and not effect.need.met(plan):
        yield effect.need.unmet, f"Remove {path}"


def is_given(plan: Plan, path: str) -> bool:
    """Return whether a plan sets a key or a section, such as ``job.choose``, to something else than the default."""
    *sections, key = path.split(".")
    value: Any = plan
    for name in sections:
        value = getattr(value, name)
        if value is None:
            return False
    default = type(value).model_fields[key].get_default(call_default_factory=True)
    return bool(getattr(value, key) != default)
