"""The tables of docs/reference, made from what they describe: plan, commands, record, transports.

Each returns Markdown. scripts/check_docs.py holds the documents against them, and with ``--write`` puts them in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from thalweg import registry
from thalweg.cli import app
from thalweg.plan import Plan
from thalweg.record.tables import TABLES

ROOT: Final = Path(__file__).parents[1]
CAPABILITIES: Final = ROOT / "crates" / "transport" / "src" / "capabilities.rs"
ERRORS: Final = ROOT / "crates" / "transport" / "src" / "error.rs"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def plan() -> str:
    """Return every section of a plan with its keys."""
    sections = ((name, _model(field.annotation)) for name, field in Plan.model_fields.items())
    return "\n\n".join(_section(name, model) for name, model in sections if model is not None)


def _section(name: str, model: type[BaseModel]) -> str:
    inner = {key: found for key, value in model.model_fields.items() if (found := _model(value.annotation))}
    rows = [_key(key, value, inner.get(key)) for key, value in model.model_fields.items()]
    parts = [f"### [{name}]", (model.__doc__ or "").strip(), table(("key", "type", "default", "meaning"), rows)]
    parts += [_section(f"{name}.{key}", found) for key, found in inner.items()]
    return "\n\n".join(parts)


def _key(key: str, field: FieldInfo, inner: type[BaseModel] | None) -> tuple[str, str, str, str]:
    kind = "table" if inner else _kind(field)
    default = "none" if field.default is None else f"`{_toml(field.default)}`"
    return f"`{key}`", kind, default, field.description or ""


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


def _kind(field: FieldInfo) -> str:
    """Return a key's type in a plan's words, bounds included."""
    annotation: Any = field.annotation
    if type(None) in get_args(annotation):
        annotation = get_args(annotation)[0]
    metadata = [*field.metadata]
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata += more
    if get_origin(annotation) is Literal:
        return " or ".join(f'"{value}"' for value in get_args(annotation))
    if get_origin(annotation) is dict:
        return "table or list"
    unit = any(hasattr(extra, "func") for extra in metadata)
    name = {int: "whole number", float: "number", bool: "true or false", str: "text"}.get(annotation, str(annotation))
    if unit:
        return 'number, or text with a unit as "8MiB"' if "bits" not in (field.description or "") else "rate"
    return name + _bounds(metadata)


def _bounds(metadata: Iterable[object]) -> str:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "multiple_of": "multiple of"}
    found: dict[str, Any] = {}
    for extra in metadata:
        inner = getattr(extra, "metadata", [extra])
        for one in inner:
            found |= {word: getattr(one, word) for word in words if getattr(one, word, None) is not None}
    limits = [f"{words[word]} {value}" for word, value in found.items() if abs(float(value)) < 1e9]
    return f", {', '.join(limits)}" if limits else ""


def _model(annotation: Any) -> type[BaseModel] | None:
    candidates = (annotation, *get_args(annotation))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def commands() -> str:
    """Return every command with its arguments and options."""
    return "\n\n".join(_command(name, command) for name, command in leaves())


def leaves() -> list[tuple[str, Any]]:
    """Return the name of each command, as ``pki init``, and the command."""
    group: Any = typer.main.get_command(app)
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        found += [(name, command)] if inner is None else [(f"{name} {key}", value) for key, value in inner.items()]
    return found


def _command(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and "--help" not in p.opts]
    usage = " ".join([f"thalweg {name}", *(_argument(p) for p in arguments), *(["[OPTIONS]"] if options else [])])
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
    return ", ".join(param.opts) + value


def record() -> str:
    """Return the columns of a record's tables."""
    parts = []
    for name, columns in TABLES.items():
        rows = [(f"`{c.name}`", c.type, c.meaning) for c in columns]
        parts.append(f"### {name}.parquet\n\n" + table(("column", "type", "meaning"), rows))
    return "\n\n".join(parts)


def transports() -> str:
    """Return the transports of this build and what each can do."""
    entries = registry.transports()
    names = list(entries[0]["capabilities"])
    rows = [(f"`{e['name']}`", *(_cell(e["capabilities"][name]) for name in names)) for e in entries]
    return table(("transport", *(f"`{name}`" for name in names)), rows)


def _cell(value: object) -> str:
    return "yes" if value is True else "no" if value is False else str(value)


def capabilities() -> str:
    """Return what each capability means, from the Rust type's docs."""
    rows = [
        (f"`{name}`", meaning) for meaning, name in re.findall(r"/// (.+)\n    pub (\w+):", CAPABILITIES.read_text())
    ]
    return table(("capability", "meaning"), rows)


def errors() -> str:
    """Return the kinds of a transport's errors, from the Rust type's docs."""
    text = ERRORS.read_text().partition("pub enum ErrorKind {")[2].partition("\n}")[0]
    retried = re.findall(r"ErrorKind::(\w+)", ERRORS.read_text().partition("matches!(self,")[2].partition("\n")[0])
    found = re.findall(r"/// (.+)\n    (\w+),", text)
    rows = [(f"`{name.lower()}`", meaning, "yes" if name in retried else "no") for meaning, name in found]
    return table(("kind", "meaning", "may succeed later"), rows)


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "plan": plan,
    "commands": commands,
    "record": record,
    "transports": transports,
    "capabilities": capabilities,
    "errors": errors,
}
