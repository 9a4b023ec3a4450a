"""Trackio: a run in its local store, which ``trackio show`` draws. ``TRACKIO_DIR`` says where the store is."""

from __future__ import annotations

import trackio

from thalweg.outcome import Entry
from thalweg.trackers import PROJECT, Run
from thalweg.trackers.figures import figures


class Trackio:
    """Logs the figures of each round as a step of one run. A resumed job continues its run."""

    def __init__(self, where: str | None) -> None:
        """``where``: the project, else thalweg."""
        self._project = where or PROJECT

    def begin(self, run: Run) -> None:
        settings = dict(run.settings)
        self._run = trackio.init(project=self._project, name=run.name, config=settings, resume="allow", embed=False)

    def round(self, entry: Entry) -> None:
        self._run.log(figures(entry), step=entry["round"])

    def end(self, status: str) -> None:
        self._run.log({"status": status})
        self._run.finish()
