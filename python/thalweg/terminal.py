"""How results look on a terminal, and in a file when standard output is one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH: Final = 110


def console() -> Console:
    """Return standard output, as wide as the terminal, or wide enough for tables where it is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def table(*headings: str, right: bool = False, caption: str | None = None) -> Table:
    """Return an empty table. With ``right`` its columns hold numbers: to the right, and never broken."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, caption=caption, caption_justify="left")
    for heading in headings:
        made.add_column(heading, justify="right" if right else "left", no_wrap=right)
    return made
