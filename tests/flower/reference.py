"""Runs an app on Flower's own simulation engine: ``python -m tests.flower.reference APP_DIR --clients 2``.

Link state, grid, engine and aggregation are Flower's. Only the pool of workers is replaced, because Flower would use
Ray, which is large. Here messages are processed in this process, one at a time. Tests compare thalweg's results with
these. This module uses internals of the release of Flower that requirements/dev.lock pins.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.telemetry import EventType

# Import the module by its path, because the package also has a function of this name.
engine = importlib.import_module("flwr.simulation.run_simulation")
RUN = 1
# The table in which the engine looks up the pool of workers.
POOL = "flwr.server.superlink.fleet.vce.backend.raybackend"


class InProcess(Backend):
    """Works on messages in this process, one at a time."""

    def build(self, app_fn: Callable[[], ClientApp]) -> None:
        self.app = app_fn()

    @property
    def num_workers(self) -> int:
        return 1

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        pass

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        return self.app(message, context), context


def component(reference: str) -> Any:
    """Return what ``module:attribute`` names."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("app", type=Path)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--run-config", default="")
    given = parser.parse_args()
    overrides = parse_config_args([given.run_config] if given.run_config else None)
    config = get_fused_config_from_dir(given.app, overrides)
    sys.path.insert(0, str(given.app))
    components = get_project_config(given.app)["tool"]["flwr"]["app"]["components"]
    run = Run.create_empty(RUN)
    run.primary_task_id, run.override_config, run.federation_id = RUN, overrides, engine.NOOP_FEDERATION_ID
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = RUN
    pool = ModuleType(POOL)
    pool.RayBackend = InProcess  # type: ignore[attr-defined]
    sys.modules[POOL] = pool
    logging.getLogger("flwr").setLevel(logging.WARNING)
    engine._main_loop(
        num_supernodes=given.clients,
        backend_name="ray",
        backend_config_stream="{}",
        app_dir=str(given.app),
        is_app=True,
        enable_tf_gpu_growth=False,
        run=run,
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        client_app=component(components["clientapp"]),
        server_app=component(components["serverapp"]),
        server_app_context=Context(RUN, RUN, {}, RecordDict(), config),
    )


if __name__ == "__main__":
    main()
