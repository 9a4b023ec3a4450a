"""docs/reference/api.md, which scripts/docs_api.py generates, has each public name, argument and error."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import thalweg

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"


def entries() -> dict[str, str]:
    _, *parts = re.split(r"^###+ ([\w.]+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def signatures() -> Iterator[tuple[str, str]]:
    """Return name and text of each entry that has a signature."""
    for name, entry in entries().items():
        if "```python" in entry:
            yield name, entry


def test_every_public_name_has_one_entry() -> None:
    names, types = PAGE.read_text().split("\n## Types\n")
    named = re.findall(r"^### (\w+)$", names, flags=re.MULTILINE)
    assert sorted(named) == sorted(thalweg.__all__)
    assert set(named).isdisjoint(re.findall(r"^### (\w+)$", types, flags=re.MULTILINE))


def stated_types() -> Iterator[tuple[str, ast.expr]]:
    """Each type that the page states, with the entry: of arguments, of results, and of attributes and keys."""
    for name, entry in entries().items():
        for block in re.findall(r"```python\n(.*?)\n```", entry, flags=re.DOTALL):
            (function,) = ast.parse(f"def {block}: ...").body
            assert isinstance(function, ast.FunctionDef)
            arguments = [*function.args.args, *function.args.kwonlyargs]
            yield from ((name, one.annotation) for one in arguments if one.annotation is not None)
            if function.returns is not None:
                yield name, function.returns
        attributes = re.findall(r"^- `\w+`: `([^`]+)`", entry, flags=re.MULTILINE)
        alias = re.findall(r"\A\s*`([^`]+)`: ", entry)
        yield from ((name, ast.parse(one, mode="eval").body) for one in [*attributes, *alias])


def named_in(kind: ast.expr) -> Iterator[str]:
    """The names in a type, but not the words of a Literal."""
    if isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name) and kind.value.id == "Literal":
        return
    if isinstance(kind, (ast.Name, ast.Attribute)):
        yield ast.unparse(kind)
        return
    for inner in ast.iter_child_nodes(kind):
        if isinstance(inner, ast.expr):
            yield from named_in(inner)


def test_each_type_that_the_page_names_is_defined_there_or_well_known() -> None:
    known = {*entries(), *dir(builtins), *typing.__all__, *collections.abc.__all__, "Path"}
    found = {(where, name) for where, kind in stated_types() for name in named_in(kind)}
    assert {"Outcome", "Named", "Entry"} <= {name for _, name in found}
    unknown = {(where, name) for where, name in found if name not in known}
    assert {one for one in unknown if not one[1].startswith(("torch.", "npt."))} == set()


@pytest.mark.parametrize("name", thalweg.__all__)
def test_every_public_member_has_a_docstring(name: str) -> None:
    value = getattr(thalweg, name)
    assert inspect.getdoc(value)
    if isinstance(value, type):
        missing = [
            key
            for key, member in vars(value).items()
            if key[0] != "_"
            and (isinstance(member, (property, classmethod, staticmethod)) or inspect.isfunction(member))
            and not inspect.getdoc(member)
        ]
        assert missing == []


@pytest.mark.parametrize(("name", "entry"), [*signatures()], ids=[name for name, _ in signatures()])
def test_an_entry_says_what_each_argument_is(name: str, entry: str) -> None:
    _, code, words = re.split(r"```(?:python)?\n?", entry, maxsplit=2)
    arguments = re.findall(r"(?:[(,\n] *)(\w+): ", code)
    unsaid = [one for one in arguments if not re.search(rf"\b{one}s?\b", words.replace("_", " ").replace("-", " "))]
    assert [one for one in unsaid if f"`{one}`" not in words] == [], words
