"""The program of a node that is killed at the step that a test chooses.

The variable ``MORTAL`` holds a JSON object. ``program`` is the module that the process runs. ``folder`` has files that
count starts. ``deaths`` has for each node's name the steps at which its first, second, ... process is killed: at its
``start``, or just before the step of that name.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from thalweg.job.common.messages import Note
from thalweg.job.graph import node
from thalweg.job.graph.lines import NodeLine
from thalweg.job.graph.order import NodeOrder
from thalweg.job.star import worker
from thalweg.job.tree import node as tree_node
from thalweg.job.tree.messages import Open
from thalweg.job.tree.order import NodeOrder as TreeNodeOrder
from thalweg.trees import answers


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def death_of(name: str) -> str | None:
    """Return the step at which this process is to be killed, or None."""
    printed = json.loads(os.environ["MORTAL"])
    folder = Path(printed["folder"])
    starts = len(list(folder.glob(f"{name}.*")))
    (folder / f"{name}.{starts}").touch()
    deaths: list[str] = printed["deaths"].get(name, [])
    return deaths[starts] if starts < len(deaths) else None


def run_graph_node(order: NodeOrder, note: Note) -> None:
    """Run a node of a graph. It prints its steps: ``here``, ``met``."""
    death, send = death_of(order.name), node._send

    def send_or_die(line: NodeLine) -> None:
        if line.say == death:
            die()
        send(line)

    if death == "start":
        die()
    node._send = send_or_die
    node.take_part(order, note)


def run_tree_node(order: TreeNodeOrder, note: Note) -> None:
    """Run a node of a tree. Its steps: ``connected``, ``opening``, and ``opened`` (when the root has its answer)."""
    death = death_of(order.name)

    class Mortal(tree_node.Gateway):
        def _serve(self) -> None:
            if death == "connected":
                die()
            super()._serve()

        def _open(self, request: Open) -> answers.Opened:
            if death == "opening":
                die()
            return super()._open(request)

        def _open_middle(self, request: Open, nodes: int) -> answers.Form:
            if death == "opening":
                die()
            return super()._open_middle(request, nodes)

        def _about_clients(self, server: Any, request: tree_node.AboutClients) -> answers.Form:
            if death == "opened":
                die()
            return super()._about_clients(server, request)

    if death == "start":
        die()
    Mortal(order, note, tree_node.tell_run).serve()


def run() -> int:
    if json.loads(os.environ["MORTAL"])["program"] == "thalweg.job.graph.node":
        return worker.main(lambda: (NodeOrder, run_graph_node))
    return worker.main(lambda: (TreeNodeOrder, run_tree_node))
