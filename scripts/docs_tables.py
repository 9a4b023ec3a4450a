"""Generates the tables of docs/reference and the README's lists from the code: plan, commands, transports, ...

Each function returns Markdown: a table, or a list of names for a cell of a table. scripts/check_docs.py compares the
documents with them, and updates the documents with ``--write``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer
from docs_api import api
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from thalweg.algorithms import ALGORITHMS, FUNCTIONS
from thalweg.bench import BenchPlan
from thalweg.bench.axes import SHORT
from thalweg.bench.systems import System
from thalweg.cli import app
from thalweg.data import DATASETS
from thalweg.errors import PlanError
from thalweg.graphs import words as graph_words
from thalweg.models import MODELS
from thalweg.network import profiles
from thalweg.plan import Plan, check_transport
from thalweg.plan.combinations import setting_words
from thalweg.plan.effects import EFFECTS, JOBS
from thalweg.record.rows import TABLES
from thalweg.sections import AggregationSection, LayersSection, RepairSection, toml
from thalweg.sections.marks import Source, Words
from thalweg.sections.network import NetworkSection
from thalweg.sections.trees import NodesSection
from thalweg.transports import registry
from thalweg.transports.registry import Capabilities, Transport

ROOT: Final = Path(__file__).parents[1]
PROFILES: Final = ROOT / "python" / "thalweg" / "network" / "profiles"
CAPABILITIES: Final = ROOT / "crates" / "transport" / "src" / "capabilities.rs"
# The kind of a transport by its capabilities. The first that applies counts.
KINDS: Final[Mapping[str, Callable[[Capabilities], bool]]] = {
    "in one process": lambda can: can.in_process,
    "on one machine": lambda can: not can.remote,
    "between machines": lambda can: can.reliable and not can.broker,
    "in datagrams": lambda can: can.datagrams,
    "masks losses of unchanged TCP senders": lambda can: not can.reliable,
    "through a broker": lambda can: True,
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def plan() -> str:
    """Return a table of keys for every section of a plan."""
    listed: dict[type[BaseModel], str] = {}
    sections = ((name, _model(field.annotation)) for name, field in Plan.model_fields.items())
    return "\n\n".join(_section(f"[{name}]", model, listed) for name, model in sections if model is not None)


def algorithms() -> str:
    """Return the algorithms that a plan can name."""
    return table(
        ("algorithm.name", "what it does", "source"),
        [(f"`{one.name}`", one.meaning, one.source) for one in ALGORITHMS.values()],
    )


# The shapes of jobs as the heads of tables name them.
HEADS: Final[Mapping[str, str]] = {
    "star": "server",
    "tree": "tree of one node",
    "nodes": "tree of nodes",
    "graph": "graph",
    "flower": "Flower app",
}
# The least plan of a job of each shape.
LEAST: Final[Mapping[str, Mapping[str, Mapping[str, object]]]] = {
    "star": {},
    "tree": {"aggregation": {"shape": "tree"}},
    "nodes": {"aggregation": {"shape": "tree"}, "nodes": {"count": 2}},
    "graph": {"job": {"graph": "ring", "clients": 3}},
}


def algorithm_shapes() -> str:
    """Return which shapes of jobs can have which algorithm, and why others cannot."""
    named, functions = list(ALGORITHMS.values()), list(FUNCTIONS)
    refused = [(f"`{one.name}`", one.refused) for one in named]
    refused += [(f"`thalweg.{one.name}`", one.refused) for one in functions]
    own = [f"`{one.name}` cannot train an app of one's own: {one.own_apps}." for one in named if one.own_apps]
    return _matrix(refused, list(JOBS), own)


def transport_shapes() -> str:
    """Return which shapes of jobs go over which transport, as plans are checked, and why others do not."""
    return _matrix([(f"`{one.name}`", _refused(one)) for one in registry.transports()], list(LEAST))


def compression_shapes() -> str:
    """Return which shapes of jobs can compress in which direction, as plans are checked, and why others cannot."""
    return _matrix([(f"`{way}`", EFFECTS[f"compression.{way}"].without) for way in ("scheme", "down")], list(JOBS))


def _refused(transport: Transport) -> Mapping[str, str]:
    """Return the shapes of jobs that a transport cannot carry, each with the reason."""
    refused = {}
    for job, least in LEAST.items():
        table = {"model": {"name": "payload:1KiB"}, "transport": {"url": transport.name}, **least}
        try:
            check_transport(Plan.of(table, "the table"), [replace(transport, available=True)])
        except PlanError as error:
            refused[job] = (
                error.cause.replace(f"the transport {transport.name!r}", "it")
                .replace(repr(transport.name), "it")
                .replace(f"with {transport.name}", "with it")
            )
    return refused


def _matrix(rows: Sequence[tuple[str, Mapping[str, str]]], jobs: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Return a table of yes and no for each row and shape of job, and the reasons below it."""
    reasons = list(dict.fromkeys(refused[job] for _, refused in rows for job in jobs if job in refused))
    marks = {why: f"no ({number})" for number, why in enumerate(reasons, 1)}
    cells = [(name, *(marks[refused[job]] if job in refused else "yes" for job in jobs)) for name, refused in rows]
    below = [*(f"({number}) {why}." for number, why in enumerate(reasons, 1)), *notes]
    return "\n".join((table(("", *(HEADS[job] for job in jobs)), cells), "", *(f"- {note}" for note in below)))


def bench() -> str:
    """Return the keys of a bench plan and the short names of its axes."""
    keys = table(
        ("key", "type", "default", "meaning"), [_key(key, field) for key, field in BenchPlan.model_fields.items()]
    )
    short = table(("short name", "key"), [(f"`{name}`", f"`{key}`") for name, key in SHORT.items()])
    return f"{keys}\n\n{short}"


def bench_systems() -> str:
    """Return the keys of a system in a bench plan."""
    return table(
        ("key", "type", "default", "meaning"), [_key(key, field) for key, field in System.model_fields.items()]
    )


def _section(place: str, model: type[BaseModel], listed: dict[type[BaseModel], str]) -> str:
    """Return a section and its subsections. ``listed`` maps each kind of section to the place that lists its keys."""
    known = next((kind for kind in model.__mro__ if kind in listed), BaseModel)
    fresh = {key: value for key, value in model.model_fields.items() if key not in known.model_fields}
    names = ", ".join(f"`{key}`" for key in known.model_fields)
    same = f"As in `{listed[known]}`: {names}." if names else ""
    for kind in model.__mro__:
        if issubclass(kind, BaseModel) and kind.__module__ != "pydantic.main" and kind.model_fields:
            listed.setdefault(kind, place)
    parts = [f"### {place}", (model.__doc__ or "").strip(), same]
    parts += [table(("key", "type", "default", "meaning"), [_key(key, value) for key, value in fresh.items()])] * bool(
        fresh
    )
    below = ((_place(place, key, value), _model(value.annotation)) for key, value in fresh.items())
    parts += [_section(where, below_section, listed) for where, below_section in below if below_section is not None]
    return "\n\n".join(part for part in parts if part)


def _place(place: str, key: str, field: FieldInfo) -> str:
    """Return the heading of the section below a key."""
    path = f"{place.strip('[]')}.{key}"
    kinds = [get_origin(kind) for kind in (field.annotation, *get_args(field.annotation))]
    return f"[{path}.NAME]" if dict in kinds else f"[[{path}]]" if list in kinds else f"[{path}]"


def _key(key: str, field: FieldInfo) -> tuple[str, str, str, str]:
    inner = _model(field.annotation)
    kind = "table" if inner else _kind(field)
    if inner:
        several = {dict: "table of tables", list: "list of tables"}
        kinds = (get_origin(kind) for kind in (field.annotation, *get_args(field.annotation)))
        kind = next((several[value] for value in kinds if value in several), kind)
    default = f"`{_toml(field.default)}`"
    if field.default is None or field.default_factory is not None:
        default = "none"
    sources = "".join(f" ({mark.text})" for mark in field.metadata if isinstance(mark, Source))
    description = f"{field.description or ''}{sources}"
    return f"`{key}`", kind, "needed" if field.is_required() else default, description


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _kind(field: FieldInfo) -> str:
    """Return a key's type as a plan writes it, with its bounds."""
    annotation: Any = field.annotation
    if type(None) in get_args(annotation):
        annotation = get_args(annotation)[0]
    metadata = [*field.metadata]
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata += more
    if get_origin(annotation) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(annotation))
    kind = next((extra.kind for extra in metadata if isinstance(extra, Words)), None)
    if kind is not None:
        return kind
    if get_origin(annotation) is dict:
        return "table or list"
    if get_origin(annotation) is list:
        return "list"
    unit = any(hasattr(extra, "func") for extra in metadata)
    name = {int: "whole number", float: "number", bool: "true or false", str: "text"}.get(annotation, str(annotation))
    if unit:
        return 'number, or text with a unit as "8MiB"' if "bits" not in (field.description or "") else "rate"
    return name + _bounds(metadata)


def _bounds(metadata: Iterable[object]) -> str:
    texts = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "multiple_of": "multiple of"}
    bounds: dict[str, Any] = {}
    for extra in metadata:
        inner = getattr(extra, "metadata", [extra])
        for one in inner:
            bounds |= {bound: getattr(one, bound) for bound in texts if getattr(one, bound, None) is not None}
    limits = [f"{texts[bound]} {value}" for bound, value in bounds.items() if abs(float(value)) < 1e9]
    return f", {', '.join(limits)}" if limits else ""


def _model(annotation: Any) -> type[BaseModel] | None:
    """Return the section type in an annotation, also in ``Section | None`` and ``list[Section]``."""
    kinds = [annotation]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        kinds += get_args(kind)
    return None


def commands() -> str:
    """Return every command with its arguments and options."""
    return "\n\n".join(_command(name, command) for name, command in leaves())


def leaves(group: Any = None, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the name of each command of a group (default: all), as ``pki init``, and the command."""
    commands_below: list[tuple[str, Any]] = []
    whole: Any = group or typer.main.get_command(app)
    for name, command in whole.commands.items():
        inner = hasattr(command, "commands")
        commands_below += leaves(command, f"{prefix}{name} ") if inner else [(f"{prefix}{name}", command)]
    return commands_below


def params(command: Any) -> list[Any]:
    """Return the parameters of a command, also those that ``PlanCommand`` adds."""
    parameters: list[Any] = command.get_params(typer.Context(command))
    return parameters


def _command(name: str, command: Any) -> str:
    arguments = [p for p in params(command) if p.param_type_name == "argument"]
    options = [p for p in params(command) if p.param_type_name == "option" and "--help" not in p.opts]
    words, given = [_argument(p) for p in arguments], ["[OPTIONS]"] if options else []
    last = command.context_settings.get("allow_interspersed_args", True)
    usage = " ".join([f"thalweg {name}", *([*words, *given] if last else [*given, *words])])
    rows = [(f"`{_argument(p)}`", getattr(p, "help", None) or "") for p in arguments]
    rows += [(f"`{_option(p)}`", p.help or "") for p in options]
    about = " ".join((command.help or "").split())
    return "\n\n".join(
        [f"### thalweg {name}", about, f"```text\n{usage}\n```", table(("argument or option", "meaning"), rows)]
    )


def _argument(param: Any) -> str:
    shown = param.metavar or param.name.upper()
    return shown if param.required else f"[{shown}]"


def _option(param: Any) -> str:
    value = "" if param.is_flag else f" {param.metavar or param.opts[0].strip('-').upper()}"
    return ", ".join([*param.opts, *param.secondary_opts]) + value


def record() -> str:
    """Return the columns of a record's tables."""
    parts = []
    for name, columns in TABLES.items():
        rows = [(f"`{c.name}`", c.type, c.meaning) for c in columns]
        parts.append(f"### {name}.parquet\n\n" + table(("column", "type", "meaning"), rows))
    return "\n\n".join(parts)


def shipped() -> str:
    """Return the shipped profiles."""
    rows = []
    for name in profiles.names():
        profile = profiles.load(name)
        keys = ", ".join(f"{key} = {value}" for key, value in _written(name).items())
        rows.append((f"`{name}`", profile.title, f"`{keys}`", profile.description, "; ".join(profile.source)))
    return table(("name", "what", "keys", "description", "source"), rows)


def _written(name: str) -> dict[str, Any]:
    """Return a profile's keys as in its file."""
    file = PROFILES / f"{name}.toml"
    link: dict[str, Any] = toml.loads(file.read_text(), name)["link"]
    return link


def transports() -> str:
    """Return the transports of this build and what each can do."""
    entries = registry.transports()
    names = [field.name for field in fields(Capabilities)]
    rows = [(f"`{e.name}`", *(_cell(getattr(e.capabilities, name)) for name in names)) for e in entries]
    return table(("transport", *(f"`{name}`" for name in names)), rows)


def settings() -> str:
    """Return the own options of each transport that has any."""
    rows = []
    for entry in registry.transports():
        for setting in entry.settings:
            default = _toml(setting.kind.default)
            rows.append(
                (
                    f"`{entry.name}`",
                    f"`{setting.name}`",
                    setting_words(setting.kind),
                    f"`{default}`",
                    setting.meaning,
                )
            )
    return table(("transport", "option", "type", "default", "meaning"), rows)


def _cell(value: object) -> str:
    return "yes" if value is True else "no" if value is False else str(value)


def capabilities() -> str:
    """Return the meaning of each capability, from the doc comments of the Rust type."""
    rows = [(f"`{name}`", meaning) for name, meaning in documented(CAPABILITIES.read_text(), r"pub (\w+):")]
    return table(("capability", "meaning"), rows)


def documented(text: str, declaration: str) -> list[tuple[str, str]]:
    """Return each declared name of Rust code with its doc comment, whose lines are joined."""
    matches = re.findall(rf"((?:    /// .+\n)+)    {declaration}", text)
    return [(name, " ".join(re.findall(r"/// (.+)\n", doc))) for doc, name in matches]


def named(names: Iterable[str]) -> str:
    """Return a list of names for a cell of a table."""
    return ", ".join(f"`{name}`" for name in names)


def choices(section: type[BaseModel], key: str) -> list[str]:
    """Return the values of a plan's key."""
    kinds: list[Any] = [section.model_fields[key].annotation]
    for kind in kinds:
        if get_origin(kind) is Literal:
            return [str(word) for word in get_args(kind)]
        kinds += get_args(kind)
    raise ValueError(f"{section.__name__}.{key} has no words to choose from")


def transport_kinds() -> str:
    """Return the transports, grouped by kind."""
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for entry in registry.transports():
        can = entry.capabilities
        kinds[next(kind for kind, is_so in KINDS.items() if is_so(can))].append(entry.name)
    clear = [entry.name for entry in registry.transports() if not entry.capabilities.encrypted]
    parts = [f"{named(names)} ({kind})" for kind, names in kinds.items() if names]
    return "; ".join([*parts, f"all but {named(clear)} can be encrypted" if clear else "all can be encrypted"])


def emulators() -> str:
    """Return the emulators of this version."""
    return named(name for name in _emulators() if _is_there(name))


def emulators_missing() -> str:
    """Return the emulators that a plan can name and this version refuses."""
    return named(name for name in _emulators() if not _is_there(name))


def _emulators() -> list[str]:
    return [name for name in choices(NetworkSection, "emulator") if name not in ("auto", "none")]


def _is_there(emulator: str) -> bool:
    try:
        Plan.of({"network": {"emulator": emulator, "rtt": "10ms"}})
    except PlanError as error:
        if "is not there yet" in error.cause:
            return False
        raise
    return True


def extras() -> str:
    """Return the package's extras, as ``thalweg[torch]``."""
    file = ROOT / "pyproject.toml"
    extras_listed: dict[str, Any] = toml.loads(file.read_text(), file.name)["project"]["optional-dependencies"]
    return named(f"thalweg[{name}]" for name in extras_listed)


def beside(part: str) -> Callable[[], str]:
    """Return the function of benches/systems/page.py that makes a part of the comparison with other systems."""

    def make() -> str:
        if str(ROOT) not in sys.path:
            sys.path.append(str(ROOT))
        text: str = getattr(import_module("benches.systems.page"), part)()
        return text

    return make


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "beside_conditions": beside("conditions"),
    "beside_verdict": beside("verdict"),
    "beside_tables": beside("tables"),
    "beside_events": beside("events"),
    "beside_summary": beside("summary"),
    "api": api,
    "plan": plan,
    "algorithms": algorithms,
    "algorithm_shapes": algorithm_shapes,
    "compression_shapes": compression_shapes,
    "transport_shapes": transport_shapes,
    "bench": bench,
    "bench_systems": bench_systems,
    "commands": commands,
    "record": record,
    "profiles": shipped,
    "transports": transports,
    "capabilities": capabilities,
    "settings": settings,
    "transport_kinds": transport_kinds,
    "algorithm_names": lambda: named(ALGORITHMS),
    "shapes": lambda: named(choices(AggregationSection, "shape")),
    "node_engines": lambda: named(choices(NodesSection, "engine")),
    "graphs": lambda: named((*graph_words.PLAIN, *graph_words.DRAWN, "file")),
    "models": lambda: named((*MODELS, "payload:SIZE")),
    "datasets": lambda: named(DATASETS),
    "emulators": emulators,
    "emulators_missing": emulators_missing,
    "clocks": lambda: named(choices(NetworkSection, "clock")),
    "profile_names": lambda: named(profiles.names()),
    "partial": lambda: named(choices(AggregationSection, "partial")),
    "repair_policies": lambda: named(choices(RepairSection, "policy")),
    "layers": lambda: named(LayersSection.model_fields),
    "extras": extras,
}
