"""Runs a Flower app's ServerApp without nodes until it sends its first message: ``python -m thalweg.flower.dry``.

This measures the size of an app's messages before a run.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from thalweg import wire
from thalweg.apps import seed_all
from thalweg.flower import compat, fold
from thalweg.flower.app import AppFolder, ConfigValue, read
from thalweg.flower.arrays import bytes_of
from thalweg.flower.sizing import Order, Size

#: The key of the run configuration by which apps give the number of their rounds.
ROUNDS: Final = "num-server-rounds"
_log = logging.getLogger("thalweg")


class Enough(BaseException):
    """Ends the app. It is no ``Exception``, because apps may catch those."""


class Measuring(Grid):
    """A grid whose nodes do not exist. It measures the arrays of the first messages, and then ends the app."""

    def __init__(self, clients: int, config: Mapping[str, ConfigValue]) -> None:
        self._clients, self._config = clients, dict(config)
        #: Size in bytes of the largest arrays of a message so far.
        self.largest = 0
        #: Number of rounds that the app passed to Flower's own loop.
        self.rounds: int | None = None

    def set_run(self, run: Any) -> None:
        pass

    @property
    def run(self) -> Any:
        return compat.new_run(1, self._config)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(range(2, 2 + self._clients))

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        for message in messages:
            self.largest = max(self.largest, bytes_of(message.content))
        raise Enough

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:
        raise Enough

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> NoReturn:
        self.push_messages(messages)

    @contextmanager
    def looping(self, loop: fold.Loop) -> Iterator[None]:
        """Store how many rounds Flower's own loop will run."""
        self.rounds = loop.rounds
        yield


def size_of(folder: AppFolder, options: Mapping[str, ConfigValue], clients: int, seed: int) -> Size:
    """Run an app's ServerApp until it sends a message. Raises AppError if it cannot be imported.

    The size stays unknown for legacy apps, which catch ``Enough``, and for apps that ask a node for the first model.
    """
    config = folder.run_config(options)
    compat.identify(1)
    app, grid = folder.load_server(), Measuring(clients, config)
    seed_all(seed)
    try:
        with fold.installed():
            app(grid, Context(1, compat.SERVER_NODE, {}, RecordDict(), dict(config)))
    except Enough:
        pass
    except Exception as error:  # noqa: BLE001 - the messages that it sent before have been measured
        _log.warning("the ServerApp raised %s: %s", type(error).__name__, error)
    value = config.get(ROUNDS)
    configured = value if type(value) is int else None
    return Size(grid.largest or None, configured if grid.rounds is None else grid.rounds)


def main() -> None:
    """Read an order from standard input, and write the size as the last line of standard output, in JSON."""
    order = wire.decode(Order, sys.stdin.read())
    size = size_of(read(Path(order.folder)), order.options, order.clients, order.seed)
    sys.stdout.write(f"{wire.encode(size)}\n")


if __name__ == "__main__":
    main()
