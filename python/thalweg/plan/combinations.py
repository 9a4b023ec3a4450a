"""Combinations of choices that cannot be, each refused with what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from thalweg import data, models
from thalweg.errors import PlanError

if TYPE_CHECKING:
    from thalweg.plan import Plan


def check(plan: Plan) -> None:
    """Refuse what cannot be, whatever the machine. Raises PlanError, ModelError or DataError."""
    _names(plan)
    _payload(plan)
    _round(plan)
    _aggregation(plan)
    _hosts(plan)


def check_transport(plan: Plan, registry: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a transport that is unknown, not available, or cannot do what the plan asks of it.

    ``registry`` is the list that ``thalweg transports --json`` prints. Raises PlanError.
    """
    known = {entry["name"]: entry for entry in registry}
    name = plan.scheme
    if name not in known:
        near = get_close_matches(name, known, n=1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        raise PlanError(f"unknown transport {name!r}", f"{guess}Known: {', '.join(known)}")
    entry = known[name]
    if not entry["available"]:
        raise PlanError(f"the transport {name!r} is not available: {entry['reason']}", "Choose another transport")
    can = entry["capabilities"]
    asked = {
        "a congestion control": (plan.transport.congestion is not None, can["congestion"], "transport.congestion"),
        "several streams": (plan.transport.streams > 1, can["remote"], "transport.streams"),
        "TLS": (plan.security.tls == "on", can["encrypted"], "security.tls"),
    }
    for what, (wanted, able, key) in asked.items():
        if wanted and not able:
            raise PlanError(f"the transport {name!r} has no choice of {what}", f"Remove {key}, or take another one")


def _names(plan: Plan) -> None:
    if models.payload_bytes(plan.model.name) is None:
        models.find(plan.model.name)
        data.find(plan.data.name)
        data.parse_partition(plan.data.partition)


def _payload(plan: Plan) -> None:
    given = [section for section in ("data", "training") if getattr(plan, section).model_fields_set]
    if plan.is_payload and given:
        raise PlanError(
            f"{plan.model.name} is not trained, but the plan has [{given[0]}]",
            f"Remove [{given[0]}], or name a network as vgg5",
        )
    if plan.is_payload and plan.record.checkpoint_every:
        raise PlanError("a payload has no state to check-point", "Remove record.checkpoint_every")


def _round(plan: Plan) -> None:
    job = plan.job
    if job.enough is not None and job.enough > job.clients:
        raise PlanError(
            f"a round cannot have enough with {job.enough} updates of {job.clients} clients",
            "Make job.enough at most job.clients",
        )


def _aggregation(plan: Plan) -> None:
    chosen = plan.aggregation
    if chosen.deterministic and chosen.precision not in (None, "exact"):
        raise PlanError(
            f"deterministic needs precision exact, not {chosen.precision}",
            "Remove aggregation.precision, or aggregation.deterministic",
        )
    if chosen.partial == "keep" and chosen.staging is not None:
        raise PlanError(
            "partial = keep folds on arrival and stages nothing", "Remove aggregation.staging, or take discard"
        )


def _hosts(plan: Plan) -> None:
    named = plan.hosts.clients
    if named is not None and len(named) != plan.job.clients:
        raise PlanError(
            f"[hosts] names {len(named)} clients where job.clients is {plan.job.clients}",
            "Make them agree, or leave job.clients out",
        )
