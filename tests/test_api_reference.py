"""docs/reference/api.md, which scripts/docs_api.py generates, has each public name, argument and error."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import thalweg

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"


def entries() -> dict[str, str]:
    _, *found = re.split(r"^###+ ([\w.]+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(found[::2], found[1::2], strict=True))


def signatures() -> Iterator[tuple[str, str]]:
    """Return name and text of each entry that has a signature."""
    for name, entry in entries().items():
        if "```python" in entry:
            yield name, entry


def test_every_public_name_has_one_entry() -> None:
    named = re.findall(r"^### (\w+)$", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(thalweg.__all__)


@pytest.mark.parametrize("name", thalweg.__all__)
def test_every_public_member_has_a_docstring(name: str) -> None:
    found = getattr(thalweg, name)
    assert inspect.getdoc(found)
    if isinstance(found, type):
        missing = [
            key
            for key, member in vars(found).items()
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
