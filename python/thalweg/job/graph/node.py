"""A node's process of ``thalweg run`` on a graph: ``python -m thalweg.job.graph.node``.

The node reads its order. Then it exchanges lines of JSON with the run's process (``thalweg.job.graph.run``): it writes
to standard output, and reads standard input.

1. The node writes ``{"say": "here", "address", "update_bytes", "tensors", "parameters"}`` when it listens.
2. The run answers ``{"neighbours": {name: url}}``, and the node connects to its neighbours.
3. The node writes ``{"say": "met"}`` when all are connected.
4. The run answers ``{"begin": clock}``: the reading of the monotonic clock at which the run begins.
5. The node writes ``{"say": "iteration", ...}`` after each iteration (``lines.Finished``), and ``{"say": "done"}`` at
   the end.

If a checkpoint is due after an iteration, the node writes its model to the record before it reports the iteration.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg import _core, wire
from thalweg.algorithms import choco
from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import LinkError
from thalweg.job.common import core_shares
from thalweg.job.common.farewell import farewell
from thalweg.job.common.parties import bytes_of, round_config
from thalweg.job.graph import lines
from thalweg.job.graph.iterations import Iteration, IterationWeights, iterate, iteration_weights_of
from thalweg.job.graph.lines import Done, Listening, Met, NodeLine
from thalweg.job.graph.order import NodeOrder
from thalweg.job.graph.peer import Peer, peer_of
from thalweg.machine.waiting import WAIT_SLICE
from thalweg.plan.options import CoreOptions
from thalweg.record import checkpoint, of_nodes
from thalweg.record.of_nodes import Due

if TYPE_CHECKING:
    from thalweg.plan import Plan

Note = Callable[[str], None]


@dataclass(frozen=True)
class ListeningNode:
    """A node that listens, with its model. ``clock`` is the monotonic time at which the core's clock was 0."""

    plan: Plan
    name: str
    node: _core.Node
    peer: Peer
    clock: float

    def meet(
        self,
        neighbours: Mapping[str, str],
        weights: IterationWeights,
        note: Note,
        *,
        done: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Connect to neighbours, given as URLs by name. Return when all are connected.

        ``done`` is the last finished iteration. The node accepts models of the next one at once, because a neighbour
        may begin that earlier. Raises LinkError if a neighbour is missing after ``timeout`` seconds, CoreError if one
        refuses this node.
        """
        self.node.meet(wire.encode(dict(neighbours)), done + 1, *weights.core_weights(done + 1, self.node.ahead))
        end = None if timeout is None else time.monotonic() + timeout
        while self.node.gather(len(neighbours), WAIT_SLICE) < len(neighbours):
            self.report_events(note)
            if end is not None and time.monotonic() > end:
                away = sorted(set(neighbours) - set(wire.plain(self.node.connected())))
                raise LinkError(
                    f"{self.name} is not connected to {', '.join(away[:8])} after {timeout:g} s",
                    "Start them, or check whether their addresses can be reached from here",
                )

    def report_events(self, note: Note) -> None:
        """Pass to ``note`` what has happened on the node's links since the last call."""
        for event in wire.plain(self.node.events()):
            note(f"{event['peer']} {event['text'] or event['kind']}".lstrip())  # the peer of a "note" is ""

    def iterations(
        self, weights: IterationWeights, gamma: float | None, threads: Callable[[], int] | None = None, *, done: int = 0
    ) -> Iterator[Iteration]:
        """Run all iterations after ``done`` and yield each: D-PSGD, or CHOCO-SGD with step size ``gamma`` if given.

        ``threads`` returns how many threads the next training may use.
        """
        plan, names = self.plan, self.plan.members
        swap = None if gamma is None else choco.Replicas(self.peer.arena, gamma, plan.layers.format, alike=not done)

        def config(number: int) -> ReceivedConfig:
            if threads is not None:
                core_shares.limit(threads())
            return ReceivedConfig(round_config(plan, number, names).table())

        return iterate(
            self.node,
            self.peer,
            weights,
            plan.job.rounds,
            config=config,
            evaluates_after=plan.tests,
            first=done + 1,
            swap=swap,
        )

    def keep(self, record: Path, due: Due, number: int) -> int | None:
        """Write the model to the record if a checkpoint is due after iteration ``number``.

        Returns the iteration that the checkpoint is named after, or None if none was due.
        """
        kept = due.after(number)
        if kept is not None:
            arena = self.peer.arena
            place = self.plan.members.index(self.name) + 1
            of_nodes.write(record, place, kept, arena.layout.tensors, bytes_of(arena))
        return kept


@contextmanager
def listening_node(
    plan: Plan,
    name: str,
    listen: str,
    options: Callable[[Peer], CoreOptions],
    note: Note,
    *,
    start: Path | None = None,
    done: str = "the node is done",
) -> Iterator[ListeningNode]:
    """Build the plan's model and listen with it. When the block ends, finish sending and leave.

    If the block raises, the neighbours get the reason. ``options`` makes the core's options once the model is built.
    ``start`` is a checkpoint to load instead of the common initial model. Raises RecordError, PlanError,
    DataError, ModelError, AppError, and CoreError if the node cannot listen.
    """
    peer = peer_of(plan, name, note)
    if start is not None:
        checkpoint.read(start, peer.arena.layout.tensors, bytes_of(peer.arena))
    node = _core.Node(peer.arena, name, listen, wire.encode(options(peer)))
    # The core's clock started a moment ago, when the node was made.
    clock = time.monotonic()
    with farewell(node, done):
        yield ListeningNode(plan, name, node, peer, clock)
        node.finish_sending()


def take_part(order: NodeOrder, note: Note) -> None:
    """Take part in a job as the order of ``thalweg.job.graph.run`` says.

    Raises LinkError if the run ends before this node begins, and what ``listening_node``, ``ListeningNode.meet`` and
    ``ListeningNode.iterations`` raise.
    """
    from thalweg.plan import Plan

    plan, name = Plan.of(order.plan, "the order"), order.name
    record, done = Path(order.record), order.done
    start = None if order.start is None else Path(order.start)
    due = Due(plan.checkpoint_every, plan.job.rounds, done=done)

    def options(peer: Peer) -> CoreOptions:
        return {**order.options, "start": peer.checksum() if start is None else None}

    with listening_node(plan, name, order.url, options, note, start=start) as here:
        layout = here.peer.arena.layout
        _send(Listening(here.node.address, len(here.peer.arena), len(layout.tensors), here.peer.parameters))
        weights = _iteration_weights(plan, order)
        here.meet(_receive("neighbours"), weights, note, done=done)
        _send(Met())
        clock = here.clock - _receive("begin")
        for iteration in here.iterations(weights, order.gamma, done=done):
            here.keep(record, due, iteration.number)
            _send(iteration.line(clock))
            here.report_events(note)
        _send(Done())


def _iteration_weights(plan: Plan, order: NodeOrder) -> IterationWeights:
    """Return the node's weights: those of the order, or those of a graph that is drawn anew in each iteration."""
    if order.weights is not None:
        return IterationWeights(order.weights, sends=order.sends)
    from thalweg.plan.on_graphs import schedule_of

    return iteration_weights_of(schedule_of(plan), plan.members, order.name, plan.weights)


def _send(line: NodeLine) -> None:
    # The leading newline ends a line that an app may have left unfinished on standard output.
    print("\n" + wire.encode(lines.encode(line)), flush=True)  # noqa: T201 - the parent reads it


def _receive(key: str) -> Any:
    """Read the parent's next line and return its value of ``key``. Raises LinkError at the end of standard input."""
    line = sys.stdin.readline()
    if not line:
        raise LinkError("the run ended before this node began", "See why in its log")
    return wire.plain(line)[key]


def run() -> int:
    """Be a node's process. Returns the exit code."""
    from thalweg.job.star import worker

    return worker.main(lambda: (NodeOrder, take_part))


if __name__ == "__main__":
    sys.exit(run())
