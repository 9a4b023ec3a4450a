"""The HTML file of a page: its parts, its scripts, and a content security policy that allows nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Final

from thalweg.report.charts import Chart
from thalweg.report.source import Run
from thalweg.report.text import LONGEST_SENTENCE, embedded, escaped
from thalweg.report.values import RunNumbers
from thalweg.ui import strict_json

# Maximum number of runs whose timelines and links are drawn. Tables and comparisons include all runs.
MOST_RUNS: Final = 12
SCALED: Final = frozenset({"communication-time", "communication-rounds", "round-time"})
# Plotly's basic bundle, from the npm package plotly.js-basic-dist-min (decision 0073).
LIBRARY: Final = "plotly-basic.min.js"
NO_PLOTS: Final = "The plots need JavaScript, and a browser of 2023 or later; the tables need neither."


class Page:
    """Collects the parts of a page in order."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.sections: dict[str, str] = {}
        self.charts: list[dict[str, object]] = []

    def section(self, name: str, title: str, about: str = "") -> None:
        """Begin a section."""
        self.sections[name] = title
        self.parts.append(f'<h2 id="{name}">{escaped(title)}</h2>')
        self.about(about)

    def about(self, text: str) -> None:
        """Add text that explains a plot or a table."""
        self.parts.append(f'<p class="muted">{text}</p>' if text else "")

    def sentence(self, text: str) -> None:
        """Add a sentence in the style of a verdict."""
        self.parts.append(f'<p class="verdict">{escaped(text, LONGEST_SENTENCE)}</p>')

    def chart(self, chart: Chart) -> None:
        """Add a plot, if it has traces, and its notes."""
        if chart.traces:
            plot = f"plot-{len(self.charts)}"
            scale = f'<label class="scale"><input type="checkbox" value="{plot}"> logarithmic</label>'
            self.parts.append(scale if chart.name in SCALED else "")
            self.parts.append(
                f'<div class="plot" id="{plot}" data-chart="{len(self.charts)}" data-axis="{chart.scaled}" '
                f'data-name="{chart.name}" style="height:{chart.height}px"></div>'
            )
            self.charts.append(chart.content())
        self.notes(chart.notes)

    def notes(self, notes: Iterable[str]) -> None:
        """Add remarks."""
        lines = "".join(f"<li>{escaped(note, LONGEST_SENTENCE)}</li>" for note in notes)
        self.parts.append(f'<ul class="notes">{lines}</ul>' if lines else "")

    def folded(self, tables: Sequence[Sequence[str]]) -> None:
        """Add tables, one for each run. Several tables are inside a part that readers can unfold."""
        parts = [part for table in tables for part in table]
        if len(tables) > 1 and parts:
            parts = [f"<details><summary>Tables of {len(tables)} runs</summary>", *parts, "</details>"]
        self.parts += parts

    def each(self, runs: Sequence[Run], make: Callable[[Run, int], Chart]) -> None:
        """Add a plot for each run, with the first one unfolded."""
        for number, run in enumerate(runs[:MOST_RUNS]):
            if len(runs) > 1:
                self.parts.append(f"<details{'' if number else ' open'}><summary>{escaped(run.label)}</summary>")
            self.chart(make(run, len(runs[:MOST_RUNS])))
            self.parts.append("</details>" if len(runs) > 1 else "")
        rest = len(runs) - MOST_RUNS
        self.notes([f"{rest} more runs are not drawn"] if rest > 0 else [])


def document(made: Page, title: str, numbers: Sequence[RunNumbers]) -> str:
    """Return the HTML file: the page's parts, its numbers and plots, and the scripts that draw them."""
    library, script = _file(LIBRARY), _file("page.js")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(library, script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped(title)}</title>\n<style>\n{_file('page.css')}</style>\n</head>\n<body>",
            f"<header><h1>{escaped(title)}</h1>\n<nav>{_navigation(made)}</nav></header>\n<main>",
            *(part for part in made.parts if part),
            f'</main>\n<p class="muted" id="no-plots" hidden>{NO_PLOTS}</p>\n<noscript><p>{NO_PLOTS}</p></noscript>',
            f'<script type="application/json" id="numbers">{embedded(numbers)}</script>',
            f'<script type="application/gzip" id="charts">{packed(strict_json.dumps(made.charts))}</script>',
            f'<script type="application/gzip" id="library">{_library()}</script>',
            f"<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


@cache
def _library() -> str:
    return packed(_file(LIBRARY))


def packed(text: str) -> str:
    """Return text in the form that the page's script unpacks: gzip in base64. The same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _policy(*scripts: str) -> str:
    """Return a policy that allows only these scripts, and loads nothing."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _file(name: str) -> str:
    return resources.files("thalweg.report").joinpath(name).read_text("utf-8")


def _navigation(made: Page) -> str:
    """Return links to the page's sections."""
    return " ".join(f'<a href="#{name}">{escaped(title)}</a>' for name, title in made.sections.items())
