"""From a plan to the network that is emulated: at packet level a whole network, at message level layers of links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.errors import PlanError
from thalweg.network import message, spec

if TYPE_CHECKING:
    from thalweg.network.spec import Spec
    from thalweg.plan import Plan


def network_of(plan: Plan) -> Spec:
    """Return the network of a plan. Raises PlanError if it has none, or one that cannot be."""
    if plan.network is None:
        raise PlanError("the plan has no [network]", "Add [network] with a profile or keys, or give --network")
    return spec.build(plan.members, plan.network, plan.job.seed, peers=plan.job.graph is not None)


def message_layers(plan: Plan) -> dict[str, Any]:
    """Return the core's layer for a plan's network at message level. Raises PlanError for what only packets show."""
    if plan.network is not None:
        message.check(plan.network)
    return message.layers(network_of(plan))
