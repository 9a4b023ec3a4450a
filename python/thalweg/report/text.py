"""Escapes text of records for its place on a page, because a record may come from an untrusted party."""

from __future__ import annotations

import html
from collections.abc import Container, Iterable, Sequence
from typing import Final

from thalweg.ui import strict_json

LONGEST: Final = 200
# Maximum length of the reason of a failure, in characters.
LONGEST_SENTENCE: Final = 600


def plain(value: object, longest: int = LONGEST) -> str:
    """Return a value as one line without control characters, cut to ``longest`` characters."""
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def escaped(value: object, longest: int = LONGEST) -> str:
    """Return a value as HTML text, also for attributes. Plotly's texts have the same entities and tags."""
    return html.escape(plain(value, longest), quote=True)


def embedded(value: object) -> str:
    """Return JSON that is safe inside a script element."""
    text = strict_json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "", words: Container[str] = ()) -> str:
    """Return an HTML table with escaped cells. The first cell of each row is its heading.

    Columns whose heads are in ``words`` are text; all others are numbers.
    """
    marks = [' class="word"' if name in words else "" for name in head]
    names = "".join(f'<th scope="col"{mark}>{escaped(name)}</th>' for name, mark in zip(head, marks, strict=True))
    top = f"<thead><tr>{names}</tr></thead>\n" if any(head) else ""
    body = "".join(f"<tr>{_cells(cells, marks)}</tr>\n" for cells in rows)
    return f'<div class="wide {kind}" tabindex="0"><table>{top}<tbody>{body}</tbody></table></div>'


def _cells(cells: Sequence[object], marks: Sequence[str]) -> str:
    rest = zip(cells[1:], marks[1:], strict=True)
    return f'<th scope="row">{escaped(cells[0])}</th>' + "".join(f"<td{m}>{escaped(cell)}</td>" for cell, m in rest)


def is_dirty(commit: str | None) -> bool:
    """Whether the commit of a build, as ``git describe --dirty`` writes it, had uncommitted changes."""
    return commit is not None and commit.endswith("-dirty")


def commit_words(commit: str | None) -> str:
    """Return a build's commit. If it is ``-dirty``, say so in words, because nobody can repeat that build."""
    if commit is None:
        return "no commit"
    return f"{commit}, with uncommitted changes" if is_dirty(commit) else commit
