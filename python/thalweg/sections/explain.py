"""From pydantic's findings to one error that names the key, its section, the cause and the mend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from thalweg.errors import PlanError

# Kinds of findings -> what was expected.
_EXPECTED: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "dict_type": "a table",
    "list_type": "a list",
    "model_type": "a table",
    "finite_number": "a finite number",
    "string_too_short": "text that is not empty",
}


def plan_error(error: ValidationError, model: type[BaseModel], source: str) -> PlanError:
    """Return the first finding of ``error`` about a plan ``model`` read from ``source`` as a PlanError.

    One about what is there goes before one about what is missing, which may be the same under another name.
    """
    findings = error.errors(include_url=False)
    cause, mend = _explain(min(findings, key=lambda finding: finding["type"] == "missing"), model)
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return PlanError(f"{source}: {cause}{more}", mend)


def _explain(finding: ErrorDetails, model: type[BaseModel]) -> tuple[str, str]:
    owner, place, key = _owner(model, finding["loc"])
    where = f" in {place}" if place else ""
    if finding["type"] == "extra_forbidden":
        return f"unknown key {key!r}{where}", _nearest(key, where, owner, model)
    meaning = owner.model_fields[key].description if key in owner.model_fields else None
    if finding["type"] == "missing":
        return f"{key}{where} is missing", f"Give {key}" + (f": {meaning}" if meaning else "")
    expected = _expected(finding)
    said = f"{key}{where} is {_shown(finding['input'])}, not {expected}"
    return said, f"Give {key} as {expected}" + (f": {meaning}" if meaning else "")


def _nearest(key: str, where: str, owner: type[BaseModel], model: type[BaseModel]) -> str:
    """Say which known key may be meant: one of the same section, else one of that name elsewhere."""
    near = get_close_matches(key, owner.model_fields, n=1)
    homes = [name for name in model.model_fields if key in getattr(_section(model, name), "model_fields", ())]
    guess = f"Did you mean {near[0]!r}? " if near else f"Move it to [{homes[0]}]. " if homes else ""
    return f"{guess}Known{where}: {', '.join(owner.model_fields)}"


def _owner(model: type[BaseModel], location: Sequence[int | str]) -> tuple[type[BaseModel], str, str]:
    """Return the section that holds the key at ``location``, how that section is written, and the key.

    What follows the key are pydantic's own steps.
    """
    steps, number = list(location), 0
    names: list[str] = []
    while steps:
        key = str(steps.pop(0))
        inner = _section(model, key)
        item = steps.pop(0) if inner and steps and _holds_several(model, key) else None
        if inner is None or not steps:
            if isinstance(item, str):
                return model, f"[{'.'.join([*names, key])}]", item
            return model, _place(names, number), key
        model, names = inner, [*names, key, *([item] if isinstance(item, str) else [])]
        number = item + 1 if isinstance(item, int) else number
    return model, _place(names, number), ""


def _place(names: Sequence[str], number: int) -> str:
    """Return how a section is written; in a list of sections, which one it is."""
    path = ".".join(names)
    return f"[[{path}]] {number}" if number else f"[{path}]" if names else ""


def _holds_several(model: type[BaseModel], key: str) -> bool:
    annotation = model.model_fields[key].annotation
    return any(get_origin(kind) in (dict, list) for kind in (annotation, *get_args(annotation)))


def _section(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the section behind a key: one, or each of several by name or in a list."""
    field = model.model_fields.get(key)
    kinds = [] if field is None else [field.annotation]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        kinds += get_args(kind)
    return None


def _expected(finding: ErrorDetails) -> str:
    context: Mapping[str, Any] = finding.get("ctx", {})
    bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "multiple_of": "a multiple of"}
    for bound, words in bounds.items():
        if bound in context:
            return f"{words} {context[bound]}"
    if finding["type"] == "literal_error":
        return str(context["expected"])
    if finding["type"] == "value_error":
        return str(context["error"]).partition(" is not ")[2] or str(context["error"])
    return _EXPECTED.get(finding["type"], finding["msg"])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
