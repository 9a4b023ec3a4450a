"""The glossary: one line for each word, and places that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/reference/glossary.md"


def rows(text: str) -> list[list[str]]:
    lines = [
        line for line in text.splitlines() if line.startswith("|") and not line.startswith(("| word", "| today", "|-"))
    ]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_word_has_one_meaning_and_a_place_that_is_there() -> None:
    words = rows(PAGE.read_text().partition("\n## Words that mean several things\n")[0])
    names = [name for name, _, _ in words]
    assert len(names) > 70
    assert sorted(set(names)) == sorted(names)
    assert all(meaning for _, meaning, _ in words)
    places = [place for *_, where in words for place in re.findall(r"`([\w./-]+/[\w./-]+)`", where)]
    assert len(places) > 50
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_each_meaning_of_an_ambiguous_word_gets_a_word() -> None:
    again = rows(PAGE.read_text().partition("\n## Words that mean several things\n")[2])
    assert len(again) > 20
    assert all(len(row) == 3 and all(row) for row in again)
