"""With collected replies, an app has the same results over a grid of plain calls and over thalweg's, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from tests.flower.test_run import APPS, ran
from thalweg.apps import seed_all
from thalweg.flower import app, compat

NODES = 4


class Plain(Grid):
    """A grid that calls a ClientApp with each message, one after the other."""

    def __init__(self, client: ClientApp, config: dict[str, Any]) -> None:
        self._client = client
        self._contexts = {
            2 + at: Context(1, 2 + at, {"partition-id": at, "num-partitions": NODES}, RecordDict(), dict(config))
            for at in range(NODES)
        }

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    def create_message(self, *args: Any, **given: Any) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def push_messages(self, messages: Any) -> Any:
        raise NotImplementedError

    def pull_messages(self, message_ids: Any) -> Any:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        named = (compat.name(message, str(at)) for at, message in enumerate(messages))
        return [self._client(message, self._contexts[message.metadata.dst_node_id]) for message in named]


@pytest.mark.e2e
def test_a_model_is_that_of_plain_calls(tmp_path: Path) -> None:
    plain, collected, folded = (tmp_path / f"{name}.npz" for name in ("plain", "collected", "folded"))
    app_folder = app.read(APPS / "numpy_messages")
    config = app_folder.run_config({"output": str(plain)})
    compat.identify(1)
    client, server = app_folder.load_client(), app_folder.load_server()
    seed_all(0)  # because strategies draw the order of nodes
    server(Plain(client, config), Context(1, 1, {}, RecordDict(), config))
    for output, fold in ((collected, "off"), (folded, "auto")):
        ran("numpy_messages", tmp_path, f"output='{output}'", **{"app.fold": fold})
    expected, ours, mean = (dict(np.load(output)) for output in (plain, collected, folded))
    assert list(expected) == list(ours) == list(mean)
    for key, value in expected.items():
        np.testing.assert_array_equal(ours[key], value)
        assert ours[key].dtype == value.dtype == mean[key].dtype
        np.testing.assert_allclose(mean[key], value, rtol=2e-6)
