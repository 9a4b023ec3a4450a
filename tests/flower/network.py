"""A grid and its nodes in one process, over loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from thalweg import _core
from thalweg.flower import compat
from thalweg.flower.client import Apps, Node
from thalweg.flower.grid import ThalwegGrid
from thalweg.tasks import TaskClient, TaskServer

# Seconds after which a hanging test fails.
LIMIT = 60.0
Answer = Callable[[Message, Context], Message]


def echo(message: Message, context: Context) -> Message:
    """Send back the received arrays, with the node's partition as a metric."""
    partition = context.node_config["partition-id"]
    content = RecordDict({"metrics": MetricRecord({"partition": partition, "num-examples": 1 + partition})})
    for key, record in message.content.items():
        if isinstance(record, (ArrayRecord, ConfigRecord)):
            content[key] = record
    return Message(content, reply_to=message)


def app_of(answer: Answer) -> ClientApp:
    """Return a ClientApp that answers messages of any kind with this function."""
    app = ClientApp()
    for kind in (app.train, app.evaluate, app.query):
        kind()(answer)
    app.train("other")(answer)
    return app


def served(node: Node, client: TaskClient) -> None:
    """Serve a node until the server has ended, properly or not."""
    with suppress(_core.CoreError):
        node.serve(client)


class Network:
    """A server of tasks, nodes in threads, and a grid."""

    def __init__(self, stack: ExitStack, **options: Any) -> None:
        self.server = stack.enter_context(TaskServer(**{"grace": 1.0, **options}))
        self._stack = stack
        self.clients: dict[str, TaskClient] = {}

    def add(self, answers: Sequence[Answer]) -> None:
        """Add a node for each answer, all with the same number of partitions."""
        for at, answer in enumerate(answers):
            name = f"client-{at + 1}"
            client = TaskClient(self.server.address, name=name, timeout=2.0)
            app = app_of(answer)
            apps = Apps(lambda app=app: app, seeded=False)  # type: ignore[misc]
            node = Node(name, apps, {"partition-id": at, "num-partitions": len(answers)})
            thread = threading.Thread(target=served, args=(node, client), daemon=True)
            thread.start()
            self._stack.callback(thread.join, LIMIT)
            self.clients[name] = client
        assert self.server.wait(len(answers), LIMIT) == len(answers)

    def grid(self, **options: Any) -> ThalwegGrid:
        return ThalwegGrid(self.server, **{"run_id": 7, "salt": "salt", "config": {"rate": 0.5}, **options})


@contextmanager
def network(answers: Sequence[Answer], **options: Any) -> Iterator[Network]:
    """Yield a function that makes a network with one node for each answer. At the end all networks are closed."""
    compat.identify(7)
    with ExitStack() as stack:
        made = Network(stack, **options)
        made.add(answers)
        # Close the server before joining the threads, which end with it.
        stack.callback(made.server.close)
        yield made
