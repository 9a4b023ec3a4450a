"""A process of ``thalweg flower run`` that serves nodes: ``python -m thalweg.flower.worker``.

It reads its order (``thalweg.flower.process_order``) and writes a final report as ``thalweg.job.star.worker`` does.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg import _core, wire
from thalweg.flower.process_order import ProcessOrder
from thalweg.job.common.farewell import farewell
from thalweg.job.star import worker
from thalweg.tasks import TaskClient

if TYPE_CHECKING:
    from thalweg.flower.client import Node
    from thalweg.tensors.watching import Note


def serve(order: ProcessOrder, note: Note) -> None:
    """Run the nodes of an order until the run is over. Raises CoreError if the server is lost."""
    from thalweg.flower import app
    from thalweg.flower.client import Apps, Node

    # Do not seed inside the server's process: the ServerApp uses the same random generators there.
    folder = app.read(Path(order.app))
    apps = Apps(folder.load_client, seeded=order.parent != os.getpid(), folder=folder.path)
    nodes = [(Node(one.name, apps, one.config, _noting(one.name, note)), one) for one in order.nodes]
    with ExitStack() as stack:
        clients = []
        for node, one in nodes:
            core = _core.TaskClient(order.url, node.name, wire.encode(one.options))
            stack.enter_context(farewell(core, "the node is done"))
            clients.append(TaskClient.over(core, node.name))
        _serve_all([node for node, _ in nodes], clients)


def _serve_all(nodes: list[Node], clients: list[TaskClient]) -> None:
    """Run the first node in this thread and the others in new ones, until all are done. Raises the first failure."""
    failures: list[Exception] = []

    def work(node: Node, client: TaskClient) -> None:
        try:
            node.serve(client)
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=pair, daemon=True) for pair in zip(nodes[1:], clients[1:], strict=True)
    ]
    for thread in threads:
        thread.start()
    work(nodes[0], clients[0])
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _noting(name: str, note: Note) -> Note:
    return lambda text: note(f"{name}: {text}")


def run() -> int:
    """Be a process that serves nodes. Returns the exit code."""
    return worker.main(lambda: (ProcessOrder, serve))


if __name__ == "__main__":
    sys.exit(run())
