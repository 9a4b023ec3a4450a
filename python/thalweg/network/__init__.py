"""From the words for a network to what an emulator takes: profiles, shapes, topologies, changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.plan import Plan


def message_layers(plan: Plan) -> dict[str, Any]:
    """Return the core's layer for a plan's network at message level. Raises PlanError for what only packets show."""
    from thalweg.network import message, spec

    if plan.network is not None:
        message.check(plan.network)
    return message.layers(spec.build(plan))
