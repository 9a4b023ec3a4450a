"""Makes the emulated network of a plan: a whole network at packet level, or layers around links at message level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from thalweg.errors import PlanError
from thalweg.network import message, nodes, spec
from thalweg.plan.on_trees import has_nodes, middle_nodes_of, nodes_of

if TYPE_CHECKING:
    from thalweg.network.spec import Spec
    from thalweg.plan import Plan


def network_of(plan: Plan, homes: Mapping[str, str] | None = None, middle: Sequence[str] = ()) -> Spec:
    """Return the emulated network of a plan. Raises PlanError if it has none, or an impossible one.

    ``homes`` has the tree node of each client, and ``middle`` are the middle nodes above these. Without ``homes``,
    clients are assigned to nodes in turn, and the middle nodes are those of ``nodes.middle``.
    """
    if plan.network is None:
        raise PlanError("the plan has no [network]", "Add [network] with a profile or keys, or give --network")
    own = _nodes_of(plan, homes, middle)
    return spec.build(plan.members, plan.network, plan.job.seed, peers=plan.job.graph is not None, nodes=own)


def _nodes_of(plan: Plan, homes: Mapping[str, str] | None, middle: Sequence[str]) -> nodes.Nodes | None:
    """Return the nodes between clients and server, if there are several."""
    if plan.network is None or plan.nodes is None or not has_nodes(plan):
        return None
    nodes.check(plan.network)
    if homes is None:
        homes, middle = nodes.round_robin(plan.members, nodes_of(plan)), middle_nodes_of(plan)
    return nodes.Nodes(homes, plan.nodes.link, plan.nodes.client_link, middle)


def message_layers(plan: Plan) -> message.EmulateLayer:
    """Return the core's layer that emulates a plan's network at message level.

    Raises PlanError for settings that only packet level can emulate.
    """
    if plan.network is not None:
        message.check(plan.network)
    for key in ("link", "client_link"):
        if has_nodes(plan) and getattr(plan.nodes, key) is not None:
            raise PlanError(
                f"emulation at message level is a layer around one client's link, and nodes.{key} is shared by several",
                f"Remove nodes.{key}, or take network.emulator = 'packet', which needs root",
            )
    return message.layers(network_of(plan))
