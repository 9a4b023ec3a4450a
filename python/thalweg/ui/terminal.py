"""Formats results for a terminal, or for a file if standard output is one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH: Final = 110
BAR: Final = 40
# Characters for the end of a bar, from a whole cell down to an eighth of one.
_EIGHTHS: Final = "█▉▊▋▌▍▎▏"


def console(*, stderr: bool = False) -> Console:
    """Return a console on standard output or error: as wide as the terminal, or ``WIDTH`` columns if it is not one.

    The console interprets no markup: a client may be named ``[red]``, and a reason may contain a link.
    """
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(width=None if terminal else WIDTH, highlight=False, markup=False, emoji=False, stderr=stderr)


def table(*headings: str, right: bool = False, caption: str | None = None) -> Table:
    """Return an empty table that fits the terminal.

    With ``right`` its columns hold numbers: right-aligned, and wrapped only where there is no other way.
    """
    from rich.box import SIMPLE_HEAD

    from thalweg.ui.tables import FittingTable

    made = FittingTable(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    for heading in headings:
        made.add_column(heading, justify="right" if right else "left", no_wrap=right)
    return made


def bars(rows: Sequence[tuple[str, float | None, str]], *, plain: bool | None = None) -> list[str]:
    """Return a bar chart as text. Each row has a label, a value and words; the bar is as long as the value.

    The longest bar has ``BAR`` characters; a row without a value has none. With ``plain`` bars are made of ``#``. That
    is the default if standard output cannot show block characters.
    """
    most = max((value for _, value, _ in rows if value is not None), default=0.0)
    room = max((len(label) for label, _, _ in rows), default=0)
    simple = not _shows_blocks() if plain is None else plain
    lines = []
    for label, value, words in rows:
        share = 0.0 if value is None or not most else value / most
        lines.append(f"{label:<{room}}  {_bar(share, plain=simple):<{BAR}}  {words}".rstrip())
    return lines


def _bar(share: float, *, plain: bool) -> str:
    eighths = round(8 * BAR * share)
    if plain:
        return "#" * max(round(eighths / 8), 1 if eighths else 0)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[8 - rest] if rest else "")


def _shows_blocks() -> bool:
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
