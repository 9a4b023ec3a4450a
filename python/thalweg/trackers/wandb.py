"""Weights & Biases. Its environment variables count: ``WANDB_API_KEY``, ``WANDB_MODE=offline``, ``WANDB_DIR``."""

from __future__ import annotations

import os

import wandb

from thalweg.outcome import Entry
from thalweg.trackers import PROJECT, Run
from thalweg.trackers.figures import figures


class Wandb:
    """Logs the figures of each round as a step of one run. A resumed job continues its run."""

    def __init__(self, where: str | None) -> None:
        """``where``: the project; else ``WANDB_PROJECT``, or thalweg."""
        self._project = where or os.environ.get("WANDB_PROJECT") or PROJECT

    def begin(self, run: Run) -> None:
        self._run = wandb.init(
            project=self._project,
            name=run.name,
            id=run.name,
            resume="allow",
            config=dict(run.settings),
            settings=wandb.Settings(console="off", silent=True),
        )

    def round(self, entry: Entry) -> None:
        self._run.log(figures(entry), step=entry["round"])

    def end(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "complete" else 1)
