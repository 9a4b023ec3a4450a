"""MLflow: a run in a tracking store, such as ``mlflow:sqlite:///mlflow.db`` or ``mlflow:http://host:5000``."""

from __future__ import annotations

import os
import re
import time
from typing import Final

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from thalweg.outcome import Entry
from thalweg.trackers import PROJECT, Run
from thalweg.trackers.figures import figures

# Limits of MLflow: parameters in a call and in a value, and the characters of a metric's name.
_PARAMETERS: Final = 100
_LONGEST: Final = 6000
# What the part of a metric's name after the first "/" cannot have: MLflow takes names for paths, and refuses "..".
_UNNAMED: Final = re.compile(r"^\.+|[^A-Za-z0-9_\-. ]")
_STATUS: Final = {"complete": "FINISHED", "interrupted": "KILLED", "killed": "KILLED"}


class Mlflow:
    """Logs the plan as parameters and the figures as metrics. A resumed job continues its run."""

    def __init__(self, where: str | None) -> None:
        """``where``: the URI of the store; else MLflow's own setting, ``MLFLOW_TRACKING_URI``."""
        self._client = MlflowClient(tracking_uri=where)

    def begin(self, run: Run) -> None:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        ours = f"tags.`thalweg.record` = '{run.name}'"
        earlier = self._client.search_runs([number], filter_string=ours, max_results=1)
        if earlier:
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(number, run_name=run.name, tags={"thalweg.record": run.name}).info.run_id
        settings = [Param(key, str(value)[:_LONGEST]) for key, value in run.settings.items()]
        for at in range(0, len(settings), _PARAMETERS):
            self._client.log_batch(self._id, params=settings[at : at + _PARAMETERS])

    def round(self, entry: Entry) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(_name_of(name), value, now, entry["round"]) for name, value in figures(entry).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, status: str) -> None:
        self._client.log_batch(self._id, tags=[RunTag("thalweg.status", status)])
        self._client.set_terminated(self._id, _STATUS.get(status, "FAILED"))


def _name_of(figure: str) -> str:
    """Return a figure's name as MLflow takes it: a client may call its metric anything."""
    kind, _, name = figure.partition("/")
    return f"{kind}/{_UNNAMED.sub('_', name) or '_'}"
