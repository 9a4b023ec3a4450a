"""A node's process of ``thalweg run`` on a graph: ``python -m thalweg.job.node``, from its order to its last line.

It says its address, and hears those of its neighbours; says that it has met them, and hears when to begin. Then it says
each iteration as it ends. What it says are lines of JSON on standard output, what it hears lines on standard input:

- says ``{"say": "here", "address", "update_bytes", "tensors", "parameters"}``, hears ``{"neighbours": {name: url}}``
- says ``{"say": "met"}``, hears ``{"begin": clock}``: the monotonic clock at which the run begins
- says ``{"say": "iteration", ...}`` as ``Iteration.line`` has it, and ``{"say": "note", "text"}``
- says ``{"say": "done"}`` after the last one

It keeps its model in the record before it says the iteration, where that is due.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from thalweg import _core
from thalweg.algorithms import choco
from thalweg.errors import LinkError
from thalweg.job import seats
from thalweg.job.farewell import farewell
from thalweg.job.iterating import Iteration, Turns, iterate, turns_of
from thalweg.job.parties import bytes_of, round_config
from thalweg.job.peer import Peer, peer_of
from thalweg.record import checkpoint, of_nodes
from thalweg.record.of_nodes import Due

if TYPE_CHECKING:
    from thalweg.plan import Plan

Note = Callable[[str], None]
# Seconds of a try to gather neighbours, after which what happened meanwhile is told.
GATHER_SLICE: Final = 0.5


@dataclass(frozen=True)
class Standing:
    """A node that listens: its core's end, its model, and the core's clock on this machine's monotonic one."""

    plan: Plan
    name: str
    node: _core.Node
    peer: Peer
    clock: float

    def meet(
        self,
        neighbours: Mapping[str, str],
        turns: Turns,
        note: Note,
        *,
        done: int = 0,
        patience: float | None = None,
    ) -> None:
        """Connect to neighbours, given by name with their URL. Returns when all are there.

        ``done`` is the last iteration that is over, so models of the next are taken from neighbours who begin first.
        Raises LinkError if they are not after ``patience`` seconds, CoreError if one refuses this node.
        """
        self.node.meet(json.dumps(dict(neighbours)), done + 1, *turns.told(done + 1, self.node.ahead))
        end = None if patience is None else time.monotonic() + patience
        while self.node.gather(len(neighbours), GATHER_SLICE) < len(neighbours):
            self.tell(note)
            if end is not None and time.monotonic() > end:
                away = sorted(set(neighbours) - set(json.loads(self.node.connected())))
                raise LinkError(
                    f"{self.name} has not met {', '.join(away[:8])} after {patience:g} s",
                    "Start them, or see whether their addresses can be reached from here",
                )

    def tell(self, note: Note) -> None:
        """Tell what happened to the node's links since the last time."""
        for event in json.loads(self.node.events()):
            note(f"{event['peer']} {event['text'] or event['kind']}".lstrip())  # a stranger has no name

    def iterations(
        self, turns: Turns, gamma: float | None, threads: Callable[[], int] | None = None, *, done: int = 0
    ) -> Iterator[Iteration]:
        """Run all iterations after ``done`` and yield each, with ``gamma`` those of CHOCO-SGD.

        ``threads`` says how many threads the next training has.
        """
        plan, names = self.plan, self.plan.members
        swap = None if gamma is None else choco.Replicas(self.peer.arena, gamma, plan.layers.format, alike=not done)

        def config(number: int) -> Mapping[str, Any]:
            if threads is not None:
                seats.limit(threads())
            return round_config(plan, number, names)

        return iterate(
            self.node,
            self.peer,
            turns,
            plan.job.rounds,
            config=config,
            tests=plan.tests,
            first=done + 1,
            swap=swap,
        )

    def keep(self, record: Path, due: Due, number: int) -> int | None:
        """Keep the model in a record if that is due after iteration ``number``; return under which it was kept."""
        kept = due.after(number)
        if kept is not None:
            arena = self.peer.arena
            place = self.plan.members.index(self.name) + 1
            of_nodes.write(record, place, kept, arena.layout.tensors, bytes_of(arena))
        return kept


@contextmanager
def standing(
    plan: Plan,
    name: str,
    listen: str,
    options: Callable[[Peer], Mapping[str, Any]],
    note: Note,
    *,
    start: Path | None = None,
    done: str = "the node is done",
) -> Iterator[Standing]:
    """Listen with the plan's model; at the end leave, with what was raised if anything was.

    ``options`` are the core's, made when the model is there. ``start`` is a checkpoint to begin with instead of the
    model that all nodes begin with. Raises RecordError, PlanError, DataError, ModelError, AppError, and
    CoreError if it cannot listen.
    """
    peer = peer_of(plan, name, note)
    if start is not None:
        checkpoint.read(start, peer.arena.layout.tensors, bytes_of(peer.arena))
    node = _core.Node(peer.arena, name, listen, json.dumps(options(peer)))
    # The core's clock began a moment ago.
    clock = time.monotonic()
    with farewell(node, done):
        yield Standing(plan, name, node, peer, clock)
        node.finish_sending()


def take_part(order: Mapping[str, Any], note: Note) -> None:
    """Take part as an order of ``thalweg.job.on_graph`` says. Raises what a node can meet."""
    from thalweg.plan import Plan

    plan, name = Plan.of(order["plan"], "the order"), order["name"]
    record, done = Path(order["record"]), order["done"]
    start = None if order["start"] is None else Path(order["start"])
    due = Due(plan.checkpoint_every, plan.job.rounds, done=done)

    def options(peer: Peer) -> Mapping[str, Any]:
        return {**order["options"], "start": peer.checksum() if start is None else None}

    with standing(plan, name, order["url"], options, note, start=start) as here:
        layout = here.peer.arena.layout
        facts = {
            "update_bytes": len(here.peer.arena),
            "tensors": len(layout.tensors),
            "parameters": here.peer.parameters,
        }
        _say({"say": "here", "address": here.node.address, **facts})
        turns = _turns(plan, order)
        here.meet(_heard("neighbours"), turns, note, done=done)
        _say({"say": "met"})
        clock = here.clock - _heard("begin")
        for iteration in here.iterations(turns, order["gamma"], done=done):
            here.keep(record, due, iteration.number)
            _say({"say": "iteration", **iteration.line(clock)})
            here.tell(note)
        _say({"say": "done"})


def _turns(plan: Plan, order: Mapping[str, Any]) -> Turns:
    """Return the turns that the order has; those of a graph that changes for ever each node draws itself."""
    given: Sequence[Mapping[str, float]] | None = order["turns"]
    if given is not None:
        return Turns(given, sends=order["sends"])
    from thalweg.plan.on_graphs import schedule_of

    return turns_of(schedule_of(plan), plan.members, order["name"], plan.weights)


def _say(said: Mapping[str, Any]) -> None:
    # On a line of its own, whatever an app has printed.
    print("\n" + json.dumps(said), flush=True)  # noqa: T201 - the parent reads it


def _heard(key: str) -> Any:
    """Return what the parent says next under ``key``. Raises LinkError if it says nothing more."""
    line = sys.stdin.readline()
    if not line:
        raise LinkError("the run ended before this node began", "See why in its log")
    return json.loads(line)[key]


if __name__ == "__main__":
    from thalweg.job import worker

    sys.exit(worker.main(lambda: take_part))
