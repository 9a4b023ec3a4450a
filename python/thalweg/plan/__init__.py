"""``Plan``: a TOML file that describes a job completely. The command line overrides it, and the record keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from thalweg import algorithms, graphs, models
from thalweg.apps import computing
from thalweg.errors import PlanError
from thalweg.graphs import mixing
from thalweg.plan import combinations
from thalweg.plan.combinations import check_transport
from thalweg.sections import (
    RUNS,
    AggregationSection,
    AlgorithmSection,
    AppSection,
    CompressionSection,
    DataSection,
    FaultLayer,
    HostsSection,
    JobSection,
    LayersSection,
    ModelSection,
    RecordSection,
    RepairSection,
    Section,
    SecuritySection,
    TrainingSection,
    TransportSection,
    explain,
    toml,
)
from thalweg.sections.marks import Core, Option
from thalweg.sections.network import NetworkSection, StressSection
from thalweg.sections.trees import NodesSection, TreeSection
from thalweg.wire import Table

__all__ = ["FaultLayer", "Plan", "check_transport"]

LARGEST_FILE: Final = 1 << 20
# Keys that a resumed run may change. With other values of these it is still the same experiment.
_MAY_DIFFER: Final = (
    "job.rounds",
    "job.deadline",
    "job.test_every",
    "job.evaluate",
    "job.grace",
    "job.outage",
    "job.liveness",
    "transport",
    "security",
    "layers",
    "hosts",
    "network",
    "stress",
    "record",
    "data.root",
    "training.threads",
    "aggregation.staging",
)
# Keys that must be equal at all nodes of a job on a graph. Others may differ from machine to machine.
_COMMON: Final[Any] = {
    "job": {"rounds", "clients", "graph", "seed", "wait", "share", "exchange"},
    "model": True,
    "data": True,
    "training": True,
    "algorithm": True,
    "aggregation": True,
}


def _app_of(value: Any) -> Any:
    return {"object": value} if isinstance(value, str) else value


class Plan(Section):
    """A complete description of a job. Raises PlanError, ModelError or DataError for an impossible combination.

    Each section is an attribute, as in ``plan.job.rounds``; docs/reference/plan.md has all keys and their units.
    """

    job: JobSection = Field(default_factory=JobSection)
    app: Annotated[AppSection | None, BeforeValidator(_app_of)] = Field(None)
    model: ModelSection = Field(default_factory=ModelSection)
    data: DataSection = Field(default_factory=DataSection)
    training: TrainingSection = Field(default_factory=TrainingSection)
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    transport: TransportSection = Field(default_factory=TransportSection)
    aggregation: AggregationSection = Field(default_factory=AggregationSection)
    repair: Annotated[RepairSection, Core()] = Field(default_factory=RepairSection)
    security: SecuritySection = Field(default_factory=SecuritySection)
    layers: LayersSection = Field(default_factory=LayersSection)
    compression: CompressionSection = Field(default_factory=CompressionSection)
    hosts: HostsSection = Field(default_factory=HostsSection)
    network: Annotated[
        NetworkSection | None,
        Option(
            of=RUNS,
            metavar="NETWORK",
            help="Emulated links: wifi, wan, ..., rate=100mbit,rtt=40ms,loss=1%, or both.",
        ),
    ] = Field(None)
    stress: StressSection | None = Field(None)
    record: RecordSection = Field(default_factory=RecordSection)
    tree: TreeSection | None = Field(None)
    nodes: NodesSection | None = Field(None)

    @model_validator(mode="before")
    @classmethod
    def _count_hosts(cls, table: Any) -> Any:
        """If ``job.clients`` is not given, set it to the number of listed hosts."""
        hosts = table.get("hosts") if isinstance(table, dict) else None
        listed = hosts.get("clients") or hosts.get("nodes") if isinstance(hosts, dict) else None
        job = table.get("job", {}) if isinstance(table, dict) else None
        if isinstance(listed, (dict, list)) and listed and isinstance(job, dict) and "clients" not in job:
            return {**table, "job": {**job, "clients": len(listed)}}
        return table

    @model_validator(mode="before")
    @classmethod
    def _name_algorithm(cls, table: Any) -> Any:
        """If a job on a graph names no algorithm, set the default one."""
        job = table.get("job") if isinstance(table, dict) else None
        on_graph = isinstance(job, dict) and job.get("graph") is not None
        chosen = table.get("algorithm", {}) if on_graph else None
        if isinstance(chosen, dict) and "name" not in chosen:
            return {**table, "algorithm": {**chosen, "name": algorithms.GRAPH_DEFAULT}}
        return table

    @model_validator(mode="after")
    def _possible(self, info: ValidationInfo) -> Plan:
        if info.context is None or info.context["complete"]:
            combinations.check(self)
        return self

    @classmethod
    def of(cls, table: Mapping[str, object], source: str = "the plan", *, complete: bool = True) -> Plan:
        """Return the plan in a table of sections. ``source`` names it in errors.

        If the table is not ``complete``, because options will add values to it, each key and value is checked, but not
        their combination.
        """
        try:
            return cls.model_validate(dict(table), context={"complete": complete})
        except ValidationError as error:
            raise explain.plan_error(error, cls, source) from None

    @classmethod
    def loads(cls, text: str, source: str = "the plan") -> Plan:
        """Return the plan in TOML text; ``source`` as in ``of``."""
        return cls.of(toml.loads(text, source), source)

    @classmethod
    def load(cls, path: Path, *, complete: bool = True) -> Plan:
        """Return the plan in the file ``path``; ``complete`` as in ``of``."""
        return cls.of(read(path), str(path), complete=complete)

    def given(self) -> dict[str, object]:
        """Return the values that were given, as a table without defaults."""
        return self.model_dump(exclude_unset=True)

    def merge(self, overrides: Mapping[str, object], source: str = "the command line") -> Plan:
        """Return this plan with values replaced, as in ``{"job.rounds": 3}``. A value of None changes nothing.

        ``{"network": "wan,loss=2%"}`` overrides keys of [network]; ``thalweg.network.inline`` has the syntax.
        ``source`` names the overrides in errors.
        """
        return Plan.of(overlay(self.given(), overrides), source)

    def to_toml(self) -> str:
        """Return the whole plan, defaults included, as TOML that loads to an equal plan."""
        return toml.dumps(self.model_dump(exclude_none=True, exclude=self._unused()))

    def _unused(self) -> dict[str, bool | set[str]]:
        """Return the keys that have no effect in this job, in the form of pydantic's ``exclude``."""
        training = set(TrainingSection.model_fields)
        if self.app is not None:
            return {"model": {"name"}, "data": True, "training": training - combinations.OF_APPS}
        if self.is_payload:
            return {"data": True, "training": True if self.training.compute is None else training - computing.KEYS}
        return {}

    @property
    def label(self) -> str:
        """The name of the app, or of the model."""
        return self.model.name if self.app is None else self.app.object

    @property
    def payload(self) -> int | None:
        """Bytes of a payload model; None for a neural network."""
        return models.payload_bytes(self.model.name)

    @property
    def is_payload(self) -> bool:
        """Whether the model is a payload: a block of bytes that is not trained."""
        return self.payload is not None

    @property
    def url(self) -> str:
        """The URL at which the server listens, as scheme://host:port."""
        url = self.transport.url
        return url if "://" in url else f"{url}://127.0.0.1:0"

    @property
    def scheme(self) -> str:
        """Name of the transport."""
        return self.url.partition("://")[0]

    @property
    def members(self) -> list[str]:
        """Names of the clients of a run on this machine, or of a graph's nodes in the graph's order."""
        if self.job.graph is None:
            return [f"client-{number}" for number in range(1, self.job.clients + 1)]
        return list(self.hosts.nodes or ()) or [f"node-{number}" for number in range(1, self.job.clients + 1)]

    @property
    def wait(self) -> str:
        """What a node of a graph waits for before it mixes."""
        return self.job.wait or "all"

    @property
    def exchange(self) -> str:
        """How a graph's nodes exchange models, as the core names it. Only those of a full graph may use segments."""
        full = self.job.graph is not None and graphs.parse(self.job.graph).kind == "full"
        return (self.job.exchange or "auto") if full else "whole"

    @property
    def weights(self) -> mixing.Rule:
        """The rule of a graph's mixing weights."""
        return self.aggregation.weights or "metropolis"

    def tests(self, iteration: int) -> bool:
        """Return whether a graph's nodes evaluate their models after this iteration."""
        every, last = self.job.test_every, self.job.rounds
        if every == 0 or self.is_payload:
            return False
        return iteration == last or (every is not None and iteration % every == 0)

    @property
    def algorithm_settings(self) -> dict[str, float | bool | None]:
        """The settings of the plan's algorithm, defaults included. With an app ``lipschitz`` has no default."""
        settings = algorithms.find(self.algorithm.name).chosen(self.algorithm.model_dump())
        if settings.get("lipschitz", 1.0) is None and self.app is None:
            settings["lipschitz"] = 1.0 / self.training.learning_rate
        return settings

    @property
    def chosen(self) -> int | None:
        """Number of clients that are chosen for each round; None if all take part."""
        choose = self.job.choose
        return max(1, round(choose * self.job.clients)) if isinstance(choose, float) else choose

    @property
    def participants(self) -> int:
        """Number of clients that take part in a round."""
        return self.job.clients if self.chosen is None else self.chosen

    @property
    def precision(self) -> str:
        """The accumulator's number format: f32, f64 or exact."""
        chosen = self.aggregation
        return chosen.precision or ("exact" if chosen.deterministic else "f32")

    @property
    def checkpoint_every(self) -> int:
        """Rounds between checkpoints, 0 for none."""
        every = self.record.checkpoint_every
        return every if every is not None else int(not self.is_payload and self.job.graph is None)

    def digest(self) -> str:
        """Return a digest, in hex, of the settings that must be equal at all nodes of a job."""
        common = self.model_dump(include=_COMMON, exclude={"data": {"root"}, "training": {"threads"}})
        return sha256(json.dumps(common, sort_keys=True).encode()).hexdigest()

    def differences(self, other: Plan) -> list[str]:
        """Return the keys whose values make ``other`` another experiment, each as ``key: ours, theirs``."""
        ours, theirs = _flat(self.model_dump()), _flat(other.model_dump())
        keys = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
        return [f"{key}: {ours.get(key)!r}, {theirs.get(key)!r}" for key in keys if not _may_differ(key)]


def read(path: Path) -> dict[str, object]:
    """Read a plan file as a table, without checking keys. Raises PlanError if it cannot be read."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror}", "Give the path of a TOML file") from error
    if len(content) > LARGEST_FILE:
        raise PlanError(f"{path} has more than {LARGEST_FILE} bytes", "Give the path of a plan")
    try:
        return toml.loads(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is not text in UTF-8", "Save it as UTF-8") from error


def overlay(table: Table, overrides: Table) -> dict[str, object]:
    """Return ``table`` with values replaced, as in ``{"job.rounds": 3}``. A value of None changes nothing.

    A network in words, such as ``{"network": "wan,loss=2%"}``, overrides keys of the table's network. Raises PlanError
    if the words are invalid.
    """
    merged = _copy(table)
    for path, value in overrides.items():
        *sections, key = path.split(".")
        if path == "network" and isinstance(value, str):
            merged[path] = _network_over(merged.get(path), value)
        elif value is not None:
            _section(merged, sections)[key] = value
    return merged


def _copy(table: Table) -> dict[str, object]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def _section(table: dict[str, object], path: Sequence[str]) -> dict[str, object]:
    """Return the section at ``path``, and create it if it is missing."""
    for name in path:
        if table.get(name) is None:
            table[name] = {}
        inner = table[name]
        table = inner if isinstance(inner, dict) else {}
    return table


def _network_over(table: object, text: str) -> dict[str, object]:
    from thalweg.network import inline

    return inline.over(table if isinstance(table, Mapping) else {}, text)


def _may_differ(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in _MAY_DIFFER)


def _flat(table: Table, prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat
