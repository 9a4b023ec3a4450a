"""Trackers: programs that collect the figures of many runs. ``--track tensorboard:DIR`` gives them a job's.

Each tracker has a process of its own (``thalweg.trackers.process``), which reads the run's journal as it grows. So its
imports, its memory, its waits and its failures are not the job's: a tracker that fails is noted, and the job goes on.

| tracker | module | what it gets |
|---|---|---|
| ``tensorboard:DIR`` | ``tensorboard`` | event files in a folder of DIR |
| ``wandb[:PROJECT]`` | ``wandb`` | a run of Weights & Biases; offline with ``WANDB_MODE=offline`` |
| ``mlflow[:URI]`` | ``mlflow`` | a run in the store at URI, else ``MLFLOW_TRACKING_URI`` |
| ``trackio[:PROJECT]`` | ``trackio`` | a run in Trackio's local store |
| ``otlp[:URL]`` | ``otlp`` | a trace a round, of OpenTelemetry, to a collector |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol, TypeAlias, cast

from thalweg import extras
from thalweg.outcome import Entry
from thalweg.sections.tracking import Chosen

# A setting of a plan, as trackers keep it.
Setting: TypeAlias = "str | int | float | bool"
# The project, or experiment, of runs whose tracker is not told of another.
PROJECT: Final = "thalweg"


@dataclass(frozen=True)
class Run:
    """What a tracker learns of a run when it begins.

    ``name`` is the record's. ``settings`` are the plan's values by key, such as ``job.rounds``. ``began`` is the time
    (seconds since 1970) at which the run's clock reads 0, or None. ``after`` is the round after which a resumed job
    goes on, else 0: what a tracker has of later rounds is of an earlier process.
    """

    name: str
    settings: Mapping[str, Setting]
    began: float | None = None
    after: int = 0


class Tracker(Protocol):
    """What writes to one tracker. Any of these methods may raise; the job goes on without the tracker."""

    def begin(self, run: Run) -> None:
        """Begin a run, or continue the run of that name where the tracker can."""

    def round(self, entry: Entry) -> None:
        """Add a round, or an iteration on a graph."""

    def end(self, status: str) -> None:
        """End the run and write all that waits. ``status``: complete, failed, interrupted or killed."""


# The class of each tracker, in the module of its name, and the package that it needs.
_CLASSES: Final[Mapping[str, tuple[str, str]]] = {
    "tensorboard": ("TensorBoard", "tensorboardX"),
    "wandb": ("Wandb", "wandb"),
    "mlflow": ("Mlflow", "mlflow"),
    "trackio": ("Trackio", "trackio"),
    "otlp": ("Otlp", "opentelemetry"),
}


def require(trackers: Sequence[str]) -> None:
    """Raise PackageError if a package that one of these trackers needs is not installed."""
    for words in trackers:
        name = Chosen.of(words).name
        extras.require(f"the tracker {name}", _CLASSES[name][1])


def tracker_of(words: str) -> Tracker:
    """Return the tracker of these words. Raises ImportError, and whatever its package raises."""
    chosen = Chosen.of(words)
    made = getattr(import_module(f"thalweg.trackers.{chosen.name}"), _CLASSES[chosen.name][0])
    return cast("Tracker", made(chosen.where))
