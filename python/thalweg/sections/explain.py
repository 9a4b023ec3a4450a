"""Turns pydantic's findings into one error that names each wrong key, its section, the cause and the hint."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from thalweg.errors import PlanError
from thalweg.ui.units import UnexpectedValueError

# A plan with more wrong keys than this is another kind of file.
MOST_NAMED: Final = 20
# A form of values that is longer is only in the hint.
LONG: Final = 140
# Kinds of pydantic's errors -> the expected value.
_EXPECTED: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "dict_type": "a table",
    "list_type": "a list",
    "model_type": "a table",
    "finite_number": "a finite number",
    "string_unicode": "UTF-8 text",
    "string_too_short": "text that is not empty",
}


def plan_error(error: ValidationError, model: type[BaseModel], source: str) -> PlanError:
    """Return the findings of ``error`` about the plan ``model`` from ``source`` as one PlanError.

    It names each wrong key once, although a key with several possible types has one finding for each type.
    """
    by_key: dict[tuple[str, str], Finding] = {}
    for details in error.errors(include_url=False):
        finding = _explain(details, model)
        by_key.setdefault((finding.where, finding.key), finding)
    # A finding about a missing key comes last: the key may be present under a wrong name.
    findings = sorted(by_key.values(), key=lambda finding: finding.is_missing)
    if len(findings) == 1:
        (one,) = findings
        return PlanError(f"{source}: {one.alone or one.cause}", f"{one.guess}{one.rest}")
    causes, more = [finding.short for finding in findings[:MOST_NAMED]], len(findings) - MOST_NAMED
    causes += [f"and {more} more"] if more > 0 else []
    return PlanError(f"{source}: {len(findings)} keys are wrong: {'; '.join(causes)}", "Correct each of them")


class Finding(NamedTuple):
    """The error of one key.

    ``where`` is its section as written in TOML. ``guess`` suggests what was meant, and may be empty; ``rest`` is the
    other part of the hint. ``alone``, if not empty, replaces the cause where the hint says the same at length.
    """

    where: str
    key: str
    cause: str
    guess: str
    rest: str
    is_missing: bool = False
    alone: str = ""

    @property
    def short(self) -> str:
        """The cause, with the guess in brackets."""
        guess = self.guess.rstrip(". ")
        return f"{self.cause} ({guess[0].lower()}{guess[1:]})" if guess else self.cause


def _explain(finding: ErrorDetails, model: type[BaseModel]) -> Finding:
    owner, place, key = _owner(model, finding["loc"])
    where = f" in {place}" if place else ""
    if finding["type"] == "extra_forbidden":
        guess, known_keys = _nearest(key, owner, model), f"Known{where}: {', '.join(owner.model_fields)}"
        return Finding(where, key, f"unknown key {key!r}{where}", guess, known_keys)
    meaning = owner.model_fields[key].description if key in owner.model_fields else None
    about = f": {meaning}" if meaning else ""
    if finding["type"] == "missing":
        return Finding(where, key, f"{key}{where} is missing", "", f"Give {key}{about}", is_missing=True)
    expected = _expected(finding)
    found = f"{key}{where} is {_shown(finding['input'])}"
    cause = f"{found}, not {expected}"
    if len(expected) > LONG:
        rest = f"Give {key} as {expected}"
        return Finding(where, key, cause, "", rest, alone=f"{found}, which is no value for it")
    return Finding(where, key, cause, "", f"Give {key} as {expected}{about}")


def _nearest(key: str, owner: type[BaseModel], model: type[BaseModel]) -> str:
    """Say which known key may be meant: one of the same section, else one of that name elsewhere; or nothing."""
    near = get_close_matches(key, owner.model_fields, n=1)
    homes = [name for name in model.model_fields if key in getattr(_section(model, name), "model_fields", ())]
    return f"Did you mean {near[0]!r}? " if near else f"Move it to [{homes[0]}]. " if homes else ""


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
    """Return a section as written in TOML; in a list of sections, with its number."""
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
    context = finding.get("ctx", {})
    bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "multiple_of": "a multiple of"}
    for bound, words in bounds.items():
        if bound in context:
            return f"{words} {context[bound]}"
    if finding["type"] == "literal_error":
        return str(context["expected"])
    if finding["type"] == "value_error":
        error = context["error"]
        return error.expected if isinstance(error, UnexpectedValueError) else str(error)
    return _EXPECTED.get(finding["type"], finding["msg"])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
