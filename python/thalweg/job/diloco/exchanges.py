"""How DiLoCo's peers get the mean of a fragment: from a server or a tree's node, or from neighbours on a graph.

An exchange runs in a thread of its own, so that training can go on. Exchanges are numbered from 1, and exchange n is of
fragment n - 1 modulo the number of fragments, at all peers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from thalweg import _core, wire
from thalweg.algorithms.diloco import UNIT, Fragments, OuterSteps
from thalweg.algorithms.server_step import Values
from thalweg.job.graph.lines import report_of
from thalweg.tensors.arena import Arena

_log = logging.getLogger("thalweg")
#: Name of the one tensor that peers and their server exchange.
FRAGMENT: Final = "fragment"


@dataclass(frozen=True)
class Exchanged:
    """The result of an exchange.

    ``mean`` is the mean of what all peers sent for ``fragment``, shares included. It is None after the last round of a
    server, or if too few of the neighbours' values arrived. ``status`` is that of this peer's own values: ``accepted``,
    ``rejected``, ``late``, or ``done`` if the job is over. ``others`` are the neighbours whose values are in the mean;
    a server does not report them.
    """

    number: int
    fragment: int
    mean: Values | None
    status: str
    others: tuple[str, ...] = ()


class Exchange(Protocol):
    """Exchanges fragments with the other peers."""

    #: Number of the running exchange, or of the next one.
    number: int
    #: Whether there are no further exchanges.
    over: bool

    @property
    def traffic(self) -> tuple[int, int]: ...
    def join(self, steps: OuterSteps) -> Exchanged | None:
        """Begin to take part, with the values of ``steps``; return the result of the exchange before, if any."""

    @property
    def is_new(self) -> bool:
        """Whether other peers have begun before this one. It then has to take their values first."""

    def give(self, steps: OuterSteps, metrics: str) -> None:
        """Copy this peer's values into the arena from which they are sent."""

    def run(self) -> Exchanged:
        """Exchange the values that ``give`` has copied. Called in a thread of its own."""

    def close(self, reason: str) -> None: ...


class RunningExchange:
    """An exchange that runs in its thread."""

    def __init__(self, exchange: Exchange, began: int) -> None:
        """Start the thread. ``began``: the number of inner steps before the exchange."""
        self.began = began
        self._ended: list[Exchanged | BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(exchange,), daemon=True)
        self._thread.start()

    def _run(self, exchange: Exchange) -> None:
        try:
            self._ended.append(exchange.run())
        except BaseException as error:  # noqa: BLE001 - the training thread raises it in ``result``
            self._ended.append(error)

    def result(self) -> Exchanged:
        """Wait for the end of the exchange; return its result, or raise its exception."""
        self._thread.join()
        ended = self._ended[0]
        if isinstance(ended, BaseException):
            raise ended
        return ended


def arena_for(fragments: Fragments, count: int) -> Arena:
    """Return an arena with room for what is sent for ``count`` fragments."""
    names = [FRAGMENT] if count == 1 else [f"{FRAGMENT}-{one}" for one in range(count)]
    return Arena(_core.Arena(_core.Layout([(name, fragments.kind, [fragments.length]) for name in names])))


class ServerMean:
    """Gets the mean from the rounds of a server, or of a tree: the core's client sends one fragment in each round.

    The model that the server sends in a round is the mean of the round before.
    """

    def __init__(self, fragments: Fragments, connect: Callable[[_core.Arena], _core.Client]) -> None:
        self._count = fragments.count
        self._arena = arena_for(fragments, 1)
        self._core = connect(self._arena.core)
        self._metrics = "{}"
        self.number, self.over = 0, False

    @property
    def traffic(self) -> tuple[int, int]:
        return self._core.traffic

    @property
    def is_new(self) -> bool:
        return self.number > 1

    def join(self, steps: OuterSteps) -> Exchanged | None:
        del steps  # nothing is sent yet: a round number above 1 shows that others have begun
        self._core.join()
        self._next()
        if self.over or not self.is_new:
            return None
        before = self.number - 1
        return Exchanged(before, (before - 1) % self._count, self._arena[FRAGMENT].copy(), "accepted")

    def _next(self) -> None:
        task = self._core.next()
        if task is None:
            self.over = True
        else:
            self.number = task[0]

    def give(self, steps: OuterSteps, metrics: str) -> None:
        steps.fill((self.number - 1) % self._count, self._arena[FRAGMENT])
        self._metrics = metrics

    def run(self) -> Exchanged:
        number = self.number
        status = self._submit()
        if status == "done":
            self.over = True
        else:
            self._next()
        # If rounds have ended without this peer, the server's model is the mean of a later round than this one.
        mean_round = number if self.over else self.number - 1
        mean = None if self.over else self._arena[FRAGMENT].copy()
        return Exchanged(number, (mean_round - 1) % self._count, mean, status)

    def _submit(self) -> str:
        try:
            return self._core.submit(self.number, 1.0, self._metrics)
        except _core.CoreError as error:
            if error.kind != "rejected":
                raise
            _log.warning("round %d: %s", self.number, error)
            return "rejected"

    def close(self, reason: str) -> None:
        self.over = True
        self._core.close(reason)


def is_usable(share: float, *, is_fresh: bool, is_torn: bool, is_whole: bool, is_alone: bool) -> bool:
    """Return whether the result of a node's exchange is a mean of peers' values.

    ``share`` is the mean of the shares. ``is_fresh``: the node came late, and has its own values wherever nothing of a
    neighbour arrived. ``is_torn``: only a part of some neighbour's values arrived. ``is_whole``: all values of some
    neighbour arrived. ``is_alone``: the node has no neighbour.
    """
    # The share is a single value. If only a part of a neighbour's values arrived, it may be wrong for the others.
    if is_torn and abs(share - 1) > 1e-3:
        return False
    # A newcomer's own values are its model's initial ones. They must not be taken for the peers' values.
    has_own = share > 0 and not is_fresh
    return has_own or is_whole or is_alone


class NeighbourMean:
    """Gets the mean of a node's own values and its neighbours', on a graph without a server.

    In each iteration the core sends one part of the node's arena, and in the next iteration the next part. The parts
    are the fragments.
    """

    def __init__(
        self,
        fragments: Fragments,
        name: str,
        listen: str,
        options: Mapping[str, object],
    ) -> None:
        self._count, self._name = fragments.count, name
        self._arena = arena_for(fragments, fragments.count)
        # What is sent for each fragment. After an exchange it is the mean.
        self._sent = [self._arena[one] for one in self._arena]
        units = fragments.length * fragments.dtype.itemsize // UNIT
        # The share of the arena that a part has. The core rounds its number of units up, so half a unit less gives
        # exactly one fragment.
        share = 1.0 if fragments.count == 1 else (units - 0.5) / (units * fragments.count)
        start = {**options, "share": share, "mixing": "renormalise"}
        self._core = _core.Node(self._arena.core, name, listen, wire.encode(start))
        self._neighbours: list[str] = []
        self._is_new, self._traffic = False, (0, 0)
        self.number, self.over = 1, False

    @property
    def address(self) -> str:
        """The URL that neighbours connect to."""
        return self._core.address

    @property
    def connected(self) -> list[str]:
        """Names of the neighbours that are connected."""
        return wire.decode(list[str], self._core.connected())

    @property
    def traffic(self) -> tuple[int, int]:
        return self._traffic

    @property
    def is_new(self) -> bool:
        return self._is_new

    def connect_to(self, neighbours: Mapping[str, str]) -> None:
        """Add neighbours, each with its URL. The values of each weigh as much as the node's own."""
        self._neighbours += [one for one in neighbours if one not in self._neighbours]
        self._core.meet(wire.encode(dict(neighbours)), self.number, self._weights(), None)

    def _weights(self) -> str:
        return wire.encode(dict.fromkeys([*self._neighbours, self._name], 1.0))

    def gather(self, count: int, seconds: float | None) -> int:
        """Wait until ``count`` neighbours are connected, at most ``seconds``; return how many are connected."""
        return self._core.gather(count, seconds)

    def join(self, steps: OuterSteps) -> Exchanged | None:
        # First, all peers exchange their initial values. A node that comes late sends nothing in its first iteration,
        # and gets its neighbours' mean.
        self.give(steps, "{}")
        return self.run()

    def give(self, steps: OuterSteps, metrics: str) -> None:
        del metrics  # without a server nobody collects them
        for fragment, sent in enumerate(self._sent):
            steps.fill(fragment, sent)

    def run(self) -> Exchanged:
        self._core.begin(self.number, self._weights(), None)
        # If the neighbours are ahead, the core sends the values as a later iteration, perhaps of another fragment.
        number = self._core.ready(self.number)
        text = None
        while text is None:
            text = self._core.wait(number, None)
        report = report_of(wire.plain(text))
        self.number = report.next
        sent_bytes, received = self._traffic
        self._traffic = (sent_bytes + report.bytes_sent, received + report.bytes_received)
        self._is_new |= report.fresh
        fragment = (number - 1) % self._count
        mean = self._sent[fragment].copy()
        whole = tuple(report.whole)
        usable = is_usable(
            float(mean[-1]),
            is_fresh=report.fresh,
            is_torn=any(0 < one.bytes < one.expected for one in report.exchanges),
            is_whole=bool(whole),
            is_alone=not self.connected and not any(one.bytes for one in report.exchanges),
        )
        return Exchanged(number, fragment, mean if usable else None, "accepted", whole)

    def close(self, reason: str) -> None:
        """Leave the job. First send the neighbours this node's last values, if they accept them within ten seconds."""
        from thalweg.job.common.farewell import farewell

        if not self.over:
            self.over = True
            with farewell(self._core, reason):
                self._core.finish_sending()
