"""The hints of errors, read from the sources. Each is shown on a line of its own, so it must say what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
EMPTY: Final = re.compile(r"(mend|correct|fix|repair|change|solve) (it|that|this|them)\b", re.IGNORECASE)


def python_hints() -> Iterator[tuple[str, str]]:
    """Return the second argument of each error with a cause and a hint."""
    for path in (ROOT / "python/thalweg").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) >= 2):
                continue
            if node.func.id.endswith("Error"):
                texts = (part.value for part in ast.walk(node.args[1]) if isinstance(part, ast.Constant))
                first = next((text for text in texts if isinstance(text, str) and text.strip()), "")
                yield f"{path.relative_to(ROOT)}:{node.lineno}", first


def rust_hints() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "crates").rglob("src/**/*.rs"):
        for hint in re.finditer(r'\.hint\(\s*"([^"]+)"', path.read_text()):
            yield str(path.relative_to(ROOT)), hint[1]


def test_every_hint_names_what_is_to_be_done() -> None:
    hints = [*python_hints(), *rust_hints()]
    assert len(hints) > 300, "they are found"
    assert [where for where, text in hints if EMPTY.match(text)] == []
