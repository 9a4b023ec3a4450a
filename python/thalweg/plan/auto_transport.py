"""Chooses the transport of a run on one machine if its plan names none, or ``auto``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from thalweg.plan import on_trees
from thalweg.transports import registry

if TYPE_CHECKING:
    from thalweg.plan import Plan

AUTO: Final = "auto"
# The transport to choose if the plan needs a network, and the one if it does not.
NETWORK: Final = "tcp"
LOCAL: Final = "shm"


def with_transport(plan: Plan) -> tuple[Plan, str | None]:
    """Return the plan with a transport instead of ``auto`` or of none, and why that transport was chosen.

    It is shared memory, unless the plan needs something that only a network has. A plan that names a transport is
    returned as it is, with None. Only for runs on one machine.
    """
    if plan.transport.url != AUTO and "url" in plan.transport.model_fields_set:
        return plan, None
    why = _why_network(plan)
    chosen = LOCAL if why is None else NETWORK
    reason = why or "all parties are on this machine and no network is emulated"
    return plan.merge({"transport.url": chosen}), reason


def _why_network(plan: Plan) -> str | None:
    """Return why the plan needs a network, or None if shared memory will do."""
    entry = next((one for one in registry.transports() if one.name == LOCAL), None)
    reasons = {
        f"the transport {LOCAL} is not available: {entry.reason if entry else 'this build has none'}": (
            entry is None or not entry.available
        ),
        "a network is emulated": plan.network is not None and plan.network.emulator != "none",
        "links are throttled": plan.layers.throttle is not None,
        "links are given faults": plan.layers.fault is not None,
        "transport.congestion asks for TCP's": plan.transport.congestion is not None,
        "transport.client_congestion asks for TCP's": plan.transport.client_congestion is not None,
        "transport.streams asks for several connections": plan.transport.streams > 1,
        "transport.send_buffer asks for the kernel's": plan.transport.send_buffer is not None,
        "transport.receive_buffer asks for the kernel's": plan.transport.receive_buffer is not None,
        "security.tls is on": plan.security.tls == "on",
        "security.pki encrypts links": plan.security.pki is not None and plan.security.tls != "off",
        f"transport.options has options of {NETWORK}": bool(plan.transport.options),
        "Ray starts the nodes": on_trees.has_nodes(plan) and plan.nodes is not None and plan.nodes.engine == "ray",
    }
    return next((why for why, is_so in reasons.items() if is_so), None)
