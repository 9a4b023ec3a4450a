"""TensorBoard: event files in ``DIR/RECORD``, which ``tensorboard --logdir DIR`` shows."""

from __future__ import annotations

from pathlib import Path

from tensorboardX import SummaryWriter

from thalweg.outcome import Entry
from thalweg.trackers import Run
from thalweg.trackers.figures import figures


class TensorBoard:
    """Writes a scalar for each figure, and the plan as text."""

    def __init__(self, where: str | None) -> None:
        """``where``: the folder that gets a folder for each run."""
        self._folder = Path(where or ".")

    def begin(self, run: Run) -> None:
        # Readers drop what an earlier process wrote of rounds that are run again.
        purge = run.after + 1 if run.after else None
        self._writer = SummaryWriter(str(self._folder / run.name), purge_step=purge, flush_secs=5)
        lines = [f"    {key} = {value!r}" for key, value in run.settings.items()]
        self._writer.add_text("plan", "\n".join(lines), 0)

    def round(self, entry: Entry) -> None:
        for name, value in figures(entry).items():
            self._writer.add_scalar(name, value, entry["round"])
        self._writer.flush()

    def end(self, status: str) -> None:
        self._writer.add_text("status", status, 0)
        self._writer.close()
