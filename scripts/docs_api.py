"""Generates docs/reference/api.md from the signatures and docstrings of the public names. See docs_tables.py."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

import thalweg
from thalweg import _core, outcome, tasks
from thalweg import api as public
from thalweg.algorithms import torch_rule
from thalweg.errors import ThalwegError
from thalweg.graphs import mixing
from thalweg.outcome import core
from thalweg.tensors import named

# Heading of a part of the page -> the public names in it. Errors have a part that is not listed here.
PARTS: Final = {
    "Whole jobs": ("run", "RunResult", "Plan"),
    "Server and clients": ("App", "Server", "Client", "Round", "fedavg", "rounds", "report_progress"),
    "Low communication": ("diloco", "Peer", "FragmentApp"),
    "Asynchronous rounds": ("fedbuff", "fedbuff_client", "Version", "Update"),
    "Tasks": ("TaskServer", "TaskClient", "Task", "Given", "Reply", "Tensors", "ErrorFeedback"),
    "Nodes of a graph": ("Node", "Step", "dpsgd", "step_size"),
    "Tensors in memory": ("Arena", "layout_of"),
}
# Types that entries name, but that users do not import from ``thalweg``: aliases with their meaning, and TypedDicts.
ALIASES: Final = {
    "Metrics": (public.Metrics, "figures of an app by name, such as `accuracy` and `loss`"),
    "AppMetrics": (
        core.AppMetrics,
        "what an app reported, after it was checked ([metrics](../how-to/own-model.md#metrics))",
    ),
    "Named": (named.Named, "NumPy arrays or PyTorch tensors by name"),
    "Judge": (
        tasks.Judge,
        "gets a member's name, and the head and the weight of its result; refuses the result if it returns a reason",
    ),
    "MakeOptimizer": (
        torch_rule.MakeOptimizer,
        "makes an optimizer of the list of the model's trained tensors ([how to](../how-to/algorithms.md))",
    ),
    "Rule": (mixing.Rule, "the rule of a graph's mixing weights ([graphs](../how-to/decentralized.md))"),
}
DICTS: Final = (
    *("Outcome", "Participant", "ClientUsage", "Evaluation", "Transfer", "Loss"),
    *("Fold", "Timeline", "WorkSpan", "TreeFold", "NodePart", "NodeShare", "ReplyFold"),
    *("IterationReport", "NeighbourExchange", "Absence"),
    *("Entry", "RecordedTransfer", "NodeEntry", "NodeEvaluation", "ClientRound"),
    *("Summary", "SummaryRound", "PeakMemory", "GraphSummary"),
)
# Modules whose names are shown without the module.
PREFIX: Final = re.compile(r"\b(?:_core|mixing|typing|collections\.abc)\.")
# If a constructor takes an object of this module, only thalweg calls it.
INTERNAL: Final = "_core."
LONGEST: Final = 100


def api() -> str:
    """Return an entry for each public name, by part, and at the end one for each other type that they name."""
    errors = [name for name in thalweg.__all__ if is_error(getattr(thalweg, name))]
    parts = {**PARTS, "Errors": ("ThalwegError", *(name for name in errors if name != "ThalwegError"))}
    found = [f"## {part}\n\n" + "\n\n".join(map(entry, names)) for part, names in parts.items()]
    return "\n\n".join([*found, "## Types\n\n" + "\n\n".join(types())])


def types() -> Iterator[str]:
    """Yield an entry for each type that the other entries name and that users do not import from ``thalweg``."""
    yield "[outcome](outcome.md), [record](record.md) and [json](json.md) say what the keys of these dicts mean."
    for name in DICTS:
        found = getattr(outcome, name)
        yield "\n\n".join([f"### {name}", text(found), "\n".join(keys(found))])
    for name, (alias, meaning) in ALIASES.items():
        yield f"### {name}\n\n`{PREFIX.sub('', str(alias))}`: {meaning}."
    yield "\n\n".join(["### Layout", text(_core.Layout), "\n".join(stated("Layout"))])


def keys(found: Any) -> Iterator[str]:
    """Yield a line for each key of a TypedDict."""
    for name, kind in found.__annotations__.items():
        whole = kind.__forward_arg__
        inner = whole.removeprefix("NotRequired[").removesuffix("]") if whole.startswith("NotRequired[") else whole
        yield f"- `{name}`: `{inner}`" + ("" if inner == whole and found.__total__ else ", may be missing")


def stated(name: str) -> Iterator[str]:
    """Yield a line for each property of a class of the core, with the type that the stub states."""
    stub = ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text())
    (found,) = (one for one in stub.body if isinstance(one, ast.ClassDef) and one.name == name)
    for one in found.body:
        if isinstance(one, ast.FunctionDef) and one.decorator_list and one.returns is not None:
            doc = text(getattr(getattr(_core, name), one.name))
            yield f"- `{one.name}`: `{ast.unparse(one.returns)}`. {' '.join(doc.split())}"


def is_error(value: object) -> bool:
    """Return whether a public name is an error."""
    return isinstance(value, type) and issubclass(value, ThalwegError)


def entry(name: str) -> str:
    """Return the entry of a public name."""
    value = getattr(thalweg, name)
    parts = [f"### {name}"]
    if not isinstance(value, type):
        return "\n\n".join([*parts, code(name, inspect.signature(value)), text(value)])
    constructor = vars(value)["__init__"] if has_constructor(value) else None
    parts += [] if constructor is None else [code(name, without_self(constructor))]
    parts += [text(one) for one in (value, constructor) if one is not None and one.__doc__]
    if rows := [*attributes(value)]:
        parts.append("\n".join(rows))
    parts += [
        f"#### {name}.{method}\n\n{code(method, signature)}\n\n{doc}" for method, signature, doc in methods(value)
    ]
    return "\n\n".join(parts)


def has_constructor(kind: type) -> bool:
    """Return whether users make objects of a class."""
    made = is_dataclass(kind) or issubclass(kind, BaseModel) or getattr(kind, "_is_protocol", False)
    return not made and "__init__" in vars(kind) and is_public(without_self(vars(kind)["__init__"]))


def is_public(signature: inspect.Signature) -> bool:
    """Return whether a signature has no objects of the core or of private classes, so that users can call it."""
    kinds = [str(one.annotation) for one in signature.parameters.values()]
    return not any(INTERNAL in kind or kind.startswith("_") for kind in kinds)


def without_self(function: Any) -> inspect.Signature:
    """Return the signature of a method as its caller sees it; of a constructor without what it returns."""
    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    ends = inspect.Signature.empty if function.__name__ == "__init__" else signature.return_annotation
    return signature.replace(parameters=parameters, return_annotation=ends)


def attributes(owner: type) -> Iterator[str]:
    """Yield a line for each attribute: the fields of a dataclass, and properties with their docstrings."""
    if is_dataclass(owner):
        yield from (f"- `{one.name}`: `{one.type}`" for one in fields(owner) if not one.name.startswith("_"))
    for name, member in vars(owner).items():
        if isinstance(member, property) and not name.startswith("_"):
            kind = inspect.signature(member.fget).return_annotation  # type: ignore[arg-type]
            yield f"- `{name}`: `{PREFIX.sub('', str(kind))}`. {' '.join(text(member).split())}"


def methods(kind: type) -> Iterator[tuple[str, inspect.Signature, str]]:
    """Yield name, signature and text of each public method, in the order of the code."""
    for name, member in vars(kind).items():
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        signature = inspect.signature(function) if isinstance(member, staticmethod) else without_self(function)
        if is_public(signature):
            yield name, signature, text(function)


def text(value: Any) -> str:
    """Return a docstring as Markdown. A path below docs becomes a link from docs/reference."""
    plain = re.sub("``(.+?)``", r"`\1`", inspect.getdoc(value) or "", flags=re.DOTALL)
    return re.sub(r"\bdocs/([\w/]*?)([\w-]+)\.md", r"[\2](../\1\2.md)", plain)


def code(name: str, signature: inspect.Signature) -> str:
    """Return a signature as a block, on several lines if it is long."""
    parameters = list(shown(signature))
    empty = signature.return_annotation is signature.empty
    ends = "" if empty else f" -> {PREFIX.sub('', str(signature.return_annotation))}"
    whole = f"{name}({', '.join(parameters)}){ends}"
    if len(whole) > LONGEST:
        whole = f"{name}(\n" + "".join(f"    {line},\n" for line in parameters) + f"){ends}"
    return f"```python\n{whole}\n```"


def shown(signature: inspect.Signature) -> Iterator[str]:
    """Yield each parameter as code, with ``*`` before the keyword-only ones."""
    named = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not named:
            named = True
            yield "*"
        yield f"{one.name}: {PREFIX.sub('', str(one.annotation))}" + (
            "" if one.default is one.empty else f" = {one.default!r}"
        )
