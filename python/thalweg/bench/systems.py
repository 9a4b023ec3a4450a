"""Other systems beside thalweg in a bench: a value of the axis ``system``, and the plans that another system can do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, ValidationError

from thalweg import models
from thalweg.errors import PlanError
from thalweg.plan import Plan
from thalweg.sections import Section, Text, explain
from thalweg.sections.marks import Words
from thalweg.ui.verdict import listed

if TYPE_CHECKING:
    from thalweg.wire import Table

#: The value of the axis that means the plan as thalweg runs it.
OURS: Final = "thalweg"
#: What another system is given of a plan.
GIVEN: Final = ("job.clients", "job.rounds", "job.seed", "model.name", "network", "record.folder")
#: What only tunes thalweg: it may be in a plan, and another system does without it.
TUNING: Final = ("transport", "job.liveness", "job.grace", "job.outage", "aggregation.staging")
FORM: Final = 'Write {name = "gRPC", command = ["PYTHON", "party.py"]}'


class System(Section):
    """Another system: a program that keeps the contract of ``thalweg/bench/contract``."""

    name: Text = Field(description="what it is called in tables and plots")
    command: list[Text] = Field(
        min_length=1,
        description="program of a party, with its arguments; two more follow: the run's folder and the party's number",
    )
    options: Annotated[dict[str, Any], Words("table")] = Field(
        default_factory=dict, description="what the program gets as `job.options`"
    )
    environ: Annotated[dict[str, str], Words("table of texts")] = Field(
        default_factory=dict, description="environment variables of each party"
    )

    @property
    def program(self) -> str | None:
        """The path of its program; None if there is no such program on this machine."""
        return shutil.which(self.command[0])


def of(value: object) -> System | None:
    """Return the system that a value of the axis names; None for thalweg itself. Raises PlanError."""
    if value == OURS:
        return None
    if not isinstance(value, Mapping):
        raise PlanError(f"the system {value!r} is not {OURS}, and has no command", FORM)
    try:
        return System.model_validate(dict(value))
    except ValidationError as error:
        raise explain.plan_error(error, System, f"the system {value.get('name', '')!s}".rstrip()) from None


def fitted(table: Table) -> dict[str, object]:
    """Return the table of a plan without what only thalweg's own transport uses.

    So two cells of another system that differ in such settings alone have equal plans.
    """
    return {**table, "transport": {"url": "tcp"}}


def check(plan: Plan, system: System) -> None:
    """Raise PlanError if a plan asks for something that another system does not do."""
    payload = models.payload_of(plan.model.name) if plan.app is None else None
    if payload is None:
        raise PlanError(
            f"{system.name} moves bytes and trains nothing, and {plan.label} is trained",
            "Take as many bytes as a model has: model = 'payload:vgg5', or 'payload:8MiB'",
        )
    if payload.dtype != "F32":
        raise PlanError(f"{system.name} moves float32 values, and {plan.label} has others", "Take one without f64")
    if plan.job.graph is not None:
        raise PlanError(f"{system.name} has a server and clients here, and no graph", "Remove job.graph")
    unknown = [key for key in _differing(plan) if not _is_below(key, (*GIVEN, *TUNING))]
    if unknown:
        raise PlanError(
            f"{system.name} knows nothing of {listed(unknown)}",
            "Remove that, or give it to thalweg alone: case = [{name = 'thalweg', ...}, {name = ..., system = ...}]",
        )
    network = plan.network
    if network is not None and network.clock == "virtual":
        raise PlanError(f"{system.name} has no virtual time", "Take network.clock = 'real'")
    if network is not None and network.emulator == "message":
        raise PlanError(
            f"the links of {system.name} can be emulated at packet level only",
            "Take network.emulator = 'packet', which needs root",
        )


def _differing(plan: Plan) -> list[str]:
    """Return the keys of a plan that have another value than their default."""
    defaults = dict(_flat(Plan().model_dump()))
    return [key for key, value in _flat(plan.model_dump()) if value != defaults.get(key)]


def _flat(table: Table, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _is_below(key: str, places: tuple[str, ...]) -> bool:
    return any(key == place or key.startswith(f"{place}.") for place in places)
