"""The glossary: one line for each word, and places that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/reference/glossary.md"
# The number of rows in the table of ambiguous names. Lower it when you remove a row.
MOST_AMBIGUOUS: Final = 13


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


def test_each_ambiguous_name_is_in_the_code_still() -> None:
    """Whoever renames a name removes its row. Rows may not be added, so the table becomes empty in the end."""
    ambiguous = rows(PAGE.read_text().partition("\n## Words that mean several things\n")[2])
    assert len(ambiguous) <= MOST_AMBIGUOUS
    for today, where, instead in ambiguous:
        name, path = re.fullmatch(r"`(\w+)`", today), re.match(r"`([\w./-]+)`: \w", where)
        assert name is not None, today
        assert path is not None, where
        assert instead, today
        assert re.search(rf"\b(struct|enum|trait|class) {name[1]}\b", (ROOT / path[1]).read_text()), (today, where)
