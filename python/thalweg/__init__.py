"""thalweg: the fastest path for model updates in federated learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.api import Client, Round, Server, fedavg, rounds
    from thalweg.apps.app import App
    from thalweg.asynchronous import Update, Version, fedbuff, fedbuff_client
    from thalweg.errors import (
        AppError,
        BrokerError,
        CoreError,
        DataError,
        LabError,
        LinkError,
        MetricsError,
        ModelError,
        PackageError,
        PlanError,
        RecordError,
        RoundError,
        ThalwegError,
    )
    from thalweg.feedback import ErrorFeedback
    from thalweg.local_run import RunResult, run
    from thalweg.nodes import Node, Step, dpsgd, step_size
    from thalweg.peers import FragmentApp, Peer, diloco
    from thalweg.plan import Plan
    from thalweg.tasks import Given, Reply, Task, TaskClient, TaskServer, Tensors
    from thalweg.tensors.arena import Arena, layout_of
    from thalweg.training_progress import report_progress

__all__ = [
    "App",
    "AppError",
    "Arena",
    "BrokerError",
    "Client",
    "CoreError",
    "DataError",
    "ErrorFeedback",
    "FragmentApp",
    "Given",
    "LabError",
    "LinkError",
    "MetricsError",
    "ModelError",
    "Node",
    "PackageError",
    "Peer",
    "Plan",
    "PlanError",
    "RecordError",
    "Reply",
    "Round",
    "RoundError",
    "RunResult",
    "Server",
    "Step",
    "Task",
    "TaskClient",
    "TaskServer",
    "Tensors",
    "ThalwegError",
    "Update",
    "Version",
    "diloco",
    "dpsgd",
    "fedavg",
    "fedbuff",
    "fedbuff_client",
    "layout_of",
    "report_progress",
    "rounds",
    "run",
    "step_size",
]

# Each name is imported on first use, so that commands that train nothing start quickly.
_HOMES = {
    "App": "apps.app",
    "AppError": "errors",
    "Arena": "tensors.arena",
    "BrokerError": "errors",
    "Client": "api",
    "CoreError": "errors",
    "DataError": "errors",
    "ErrorFeedback": "feedback",
    "FragmentApp": "peers",
    "Given": "tasks",
    "LabError": "errors",
    "LinkError": "errors",
    "MetricsError": "errors",
    "ModelError": "errors",
    "Node": "nodes",
    "Peer": "peers",
    "PackageError": "errors",
    "Plan": "plan",
    "PlanError": "errors",
    "RecordError": "errors",
    "Reply": "tasks",
    "Round": "api",
    "RoundError": "errors",
    "RunResult": "local_run",
    "Server": "api",
    "Step": "nodes",
    "Task": "tasks",
    "TaskClient": "tasks",
    "TaskServer": "tasks",
    "Tensors": "tasks",
    "ThalwegError": "errors",
    "Update": "asynchronous",
    "Version": "asynchronous",
    "diloco": "peers",
    "dpsgd": "nodes",
    "fedavg": "api",
    "fedbuff": "asynchronous",
    "fedbuff_client": "asynchronous",
    "layout_of": "tensors.arena",
    "report_progress": "training_progress",
    "rounds": "api",
    "run": "local_run",
    "step_size": "nodes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'thalweg' has no attribute {name!r}")
    return getattr(import_module(f"thalweg.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
