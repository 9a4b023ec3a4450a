"""A table that fits a narrow terminal: no cell loses a character."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

#: Where long words of headings are divided.
DIVIDED: Final = {
    "communication": "communi-\ncation",
    "participants": "partici-\npants",
    "retransmitted": "retrans-\nmitted",
}
_WIDE: Final = 10_000


class FittingTable(Table):
    """A table that takes up less room, step by step, until it is as narrow as the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render it, fitted to the width that there is."""
        for step in self._steps():
            if self._wanted(console, options) <= options.max_width:
                break
            step()
        yield from super().__rich_console__(console, options)

    def _wanted(self, console: Console, options: ConsoleOptions) -> int:
        """Return how many columns of the terminal the table wants."""
        return Measurement.get(console, options.update(width=_WIDE), self).maximum

    def _steps(self) -> list[Callable[[], None]]:
        return [self._divide_headings, self._remove_space, self._wrap]

    def _divide_headings(self) -> None:
        for column in self.columns:
            words = str(column.header).split()
            column.header = "\n".join(DIVIDED.get(word, word) for word in words)

    def _remove_space(self) -> None:
        self.padding = (0, 0)
        self.show_edge = False

    def _wrap(self) -> None:
        for column in self.columns:
            column.no_wrap, column.overflow = False, "fold"
