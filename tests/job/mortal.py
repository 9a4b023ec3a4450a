"""The program of a node that is killed at the step that a test chooses.

The variable ``MORTAL`` holds a JSON object. ``program`` is the module that the process runs. ``folder`` has files that
count starts. ``deaths`` has for each node's name the steps at which its first, second, ... process is killed: at its
``start``, or just before the step of that name.

The folder has a file ``NAME.N`` with the id of a node's Nth process, counted from 0, and ``NAME.N.STEP`` once that
process of a tree had a ``round``, or ``died``.
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
from thalweg.job.tree.messages import Open, Round
from thalweg.job.tree.order import NodeOrder as TreeNodeOrder
from thalweg.trees import answers


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def starts_of(folder: Path, name: str) -> int:
    """Return how often a node's process was started."""
    return sum(path.name.removeprefix(f"{name}.").isdecimal() for path in folder.glob(f"{name}.*"))


def death_of(name: str) -> str | None:
    """Return the step at which this process is to be killed, or None."""
    printed = json.loads(os.environ["MORTAL"])
    folder = Path(printed["folder"])
    starts = starts_of(folder, name)
    (folder / f"{name}.{starts}").write_text(str(os.getpid()))
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


class InRounds(tree_node.Gateway):
    """A node of a tree that is killed when a round begins, if its ``death`` is about rounds."""

    def until(self, death: str | None) -> InRounds:
        self.death, self.folder = death, Path(json.loads(os.environ["MORTAL"])["folder"])
        self.process = f"{self._name}.{starts_of(self.folder, self._name) - 1}"
        return self

    def _round(self, server: Any, number: int, request: Round, model: Any) -> Any:
        if self.dies_in(request.round):
            (self.folder / f"{self.process}.died").touch()
            die()
        (self.folder / f"{self.process}.round").touch()
        return super()._round(server, number, request, model)

    def dies_in(self, number: int) -> bool:
        what, _, which = (self.death or "").partition(" ")
        if what == "after":
            return (self.folder / which).exists()
        first, _, other = which.partition(" with ")
        if what != "round" or number < int(first):
            return False
        if other:
            last = self.folder / f"{other}.{starts_of(self.folder, other) - 1}"
            os.kill(int(last.read_text()), signal.SIGKILL)
        return True


def run_tree_node(order: TreeNodeOrder, note: Note) -> None:
    """Run a node of a tree.

    Its steps: ``connected``, ``opening``, ``opened`` (when the root has its answer), and ``round N`` (that round, or
    its first one after it). At ``round N with NAME`` it kills another node first, and at ``after FILE`` it is killed in
    the first round that begins once this file is there.
    """
    death = death_of(order.name)

    class Mortal(InRounds):
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
    Mortal(order, note, tree_node.tell_run).until(death).serve()


def run() -> int:
    if json.loads(os.environ["MORTAL"])["program"] == "thalweg.job.graph.node":
        return worker.main(lambda: (NodeOrder, run_graph_node))
    return worker.main(lambda: (TreeNodeOrder, run_tree_node))
