"""The minimum time that a plan's rounds need: that of the links for the updates, and that of modelled computing."""

from __future__ import annotations

from thalweg import models
from thalweg.plan import Plan


def update_bytes(plan: Plan) -> int | None:
    """Return the bytes of a plan's update, gaps between tensors included; None if that needs the loaded model."""
    if plan.app is not None or plan.model.tensors is not None:
        return None
    payload = plan.payload
    return models.find(plan.model.name).layout_bytes if payload is None else payload


def least_seconds(plan: Plan, size: int | None = None, rounds: int | None = None) -> float:
    """Return the minimum seconds of a job: those that its links need for updates, and those that payloads compute.

    ``size`` is the size of an update in bytes and ``rounds`` the number of rounds, if the plan does not have them. The
    links' time of a job on a graph is unknown and not included. Raises PlanError if a file that the network names
    cannot be read.
    """
    size, clients = size or update_bytes(plan) or 0, plan.participants
    each = 0.0
    if plan.job.graph is not None:
        each = 0.0
    elif plan.network is not None and plan.network.emulator != "none":
        from thalweg.network import bound
        from thalweg.plan.emulated import network_of

        each = bound.seconds(network_of(plan), size, clients)
    elif plan.layers.throttle is not None:
        each = 2 * size * 8 / plan.layers.throttle
    return (each + (plan.training.compute or 0.0)) * (rounds or plan.job.rounds)


def has_known_links(plan: Plan) -> bool:
    """Return whether the rates of a plan's links are known."""
    emulated = plan.network is not None and plan.network.emulator != "none"
    return emulated or plan.layers.throttle is not None
