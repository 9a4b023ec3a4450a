"""thalweg: the fastest path for model updates in federated learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.api import App, Client, Round, Server, fedavg
    from thalweg.errors import CoreError, ThalwegError
    from thalweg.nodes import Node, Step, dpsgd, step_size
    from thalweg.plan import Plan
    from thalweg.tasks import Given, Reply, Task, TaskClient, TaskServer, Tensors
    from thalweg.tensors.arena import Arena, layout_of

__all__ = [
    "App",
    "Arena",
    "Client",
    "CoreError",
    "Given",
    "Node",
    "Plan",
    "Reply",
    "Round",
    "Server",
    "Step",
    "Task",
    "TaskClient",
    "TaskServer",
    "Tensors",
    "ThalwegError",
    "dpsgd",
    "fedavg",
    "layout_of",
    "step_size",
]

# Each name is imported on first use, so that commands that train nothing start quickly.
_HOMES = {
    "App": "api",
    "Arena": "tensors.arena",
    "Client": "api",
    "CoreError": "errors",
    "Given": "tasks",
    "Node": "nodes",
    "Plan": "plan",
    "Reply": "tasks",
    "Round": "api",
    "Server": "api",
    "Step": "nodes",
    "Task": "tasks",
    "TaskClient": "tasks",
    "TaskServer": "tasks",
    "Tensors": "tasks",
    "ThalwegError": "errors",
    "dpsgd": "nodes",
    "fedavg": "api",
    "layout_of": "tensors.arena",
    "step_size": "nodes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'thalweg' has no attribute {name!r}")
    return getattr(import_module(f"thalweg.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
