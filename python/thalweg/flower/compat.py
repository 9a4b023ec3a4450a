"""All uses of Flower's internals. Other modules use only Flower's public modules.

A test checks each use (tests/flower/test_compat.py), so that it fails first if a new release of Flower moves something.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any, Final

from flwr.app import Error, Message, Metadata, RecordDict

from thalweg.flower.app import Config
from thalweg.machine.waiting import WAIT_SLICE

#: What Flower calls the node that the ServerApp runs on.
SERVER_NODE: Final = 1
#: The message type of Flower's error about an unknown message.
SYSTEM: Final = "system"
#: The method of Flower that tells a legacy app's client manager about nodes.
_LEGACY_NODES: Final = "flwr.server.compat.app_utils"
#: The modules in which releases of Flower have the class ``Run``, newest first.
_RUNS: Final = ("flwr.supercore.run", "flwr.common.typing")


def identify(run_id: int) -> None:
    """Tell Flower which run this process belongs to. ``Message(...)`` needs that from about release 1.34 on."""
    try:
        identity = importlib.import_module("flwr.supercore.task_identity")
    except ImportError:
        return
    identity.TaskIdentity.task_id = identity.TaskIdentity.node_id = SERVER_NODE
    identity.TaskIdentity.run_id = run_id


def name(message: Message, message_id: str) -> Message:
    """Give a message its id, as Flower's own grids do, and return it."""
    message.metadata.__dict__["_message_id"] = message_id
    return message


def assemble(metadata: Metadata, content: RecordDict | Error) -> Message:
    """Return a message with given metadata, like one that was received."""
    if isinstance(content, Error):
        return Message(metadata=metadata, error=content)  # type: ignore[call-overload,no-any-return]
    return Message(metadata=metadata, content=content)  # type: ignore[call-overload,no-any-return]


def nodes_waited_for(caller: FrameType) -> int:
    """Return how many nodes Flower's ``sample_nodes`` waits for, if that calls ``Grid.get_node_ids``; else 0."""
    sample = getattr(importlib.import_module("flwr.serverapp.strategy.strategy_utils"), "sample_nodes", None)
    count = caller.f_locals.get("min_available_nodes")
    return count if caller.f_code is getattr(sample, "__code__", None) and isinstance(count, int) else 0


def only_looks(caller: FrameType) -> bool:
    """Return whether the caller of ``Grid.get_node_ids`` is the thread of Flower that lists nodes for legacy apps."""
    return caller.f_code.co_name == "update_registered_nodes" and caller.f_globals.get("__name__") == _LEGACY_NODES


@contextmanager
def legacy_waits(watch: Callable[[int], None]) -> Iterator[None]:
    """Within the block, call ``watch`` several times a second while a legacy app waits for nodes, with their number.

    An exception of ``watch`` ends the wait, which otherwise lasts up to a day. Other apps are not affected.
    """
    manager = importlib.import_module("flwr.server").SimpleClientManager
    original = manager.wait_for

    def wait_for(self: object, num_clients: int, timeout: int = 86400) -> bool:
        end = time.monotonic() + timeout
        while not original(self, num_clients, timeout=0):
            watch(num_clients)
            left = end - time.monotonic()
            if left <= 0:
                return False
            original(self, num_clients, timeout=min(WAIT_SLICE, left))
        return True

    manager.wait_for = wait_for
    try:
        yield
    finally:
        manager.wait_for = original


def run_class() -> type[Any] | None:
    """Return Flower's class ``Run``, or None if it is in none of the known modules."""
    for module in _RUNS:
        try:
            run_type = getattr(importlib.import_module(module), "Run", None)
        except ImportError:
            continue
        if isinstance(run_type, type):
            return run_type
    return None


def new_run(run_id: int, config: Config) -> Any:
    """Return a value for ``Grid.run``: Flower's ``Run`` if it can be made, else an object with the same attributes."""
    made = getattr(run_class(), "create_empty", None)
    if made is None:
        return SimpleNamespace(run_id=run_id, override_config=config)
    run = made(run_id)
    run.override_config = dict(config)
    return run
