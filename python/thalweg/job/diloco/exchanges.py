"""How peers of DiLoCo get the mean of their fragments: from a server or a tree's node, or from neighbours on a graph.

An exchange runs in a thread of its own, so that training goes on meanwhile. Each has a number, which says which
fragment all peers exchange: the first, the second, and so on in turn.
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
    """What an exchange has brought.

    ``place`` is the mean of what all sent for ``fragment``; None if there is none, as after the last round of a server,
    or if too little of the neighbours' values came.
    ``status`` says what became of this peer's own values: ``accepted``, ``rejected``, ``late``, or ``done`` if the job
    is over. ``others`` are the neighbours whose values are in the mean; a server does not say which.
    """

    number: int
    fragment: int
    place: Values | None
    status: str
    others: tuple[str, ...] = ()


class Exchange(Protocol):
    """A way to the other peers."""

    #: Number of the next exchange, or of the one that runs.
    number: int
    #: Whether there are no further exchanges.
    over: bool

    @property
    def traffic(self) -> tuple[int, int]: ...
    def join(self, steps: OuterSteps) -> Exchanged | None:
        """Begin to take part, with the values of ``steps``; return what other peers already have, if anything."""

    @property
    def is_new(self) -> bool:
        """Whether other peers have begun before this one, so that this one has to take their values first."""

    def give(self, steps: OuterSteps, metrics: str) -> None:
        """Copy this peer's values to where they are sent from."""

    def run(self) -> Exchanged:
        """Exchange them. It is called in a thread of its own."""

    def close(self, reason: str) -> None: ...


class Running:
    """An exchange that runs in its thread."""

    def __init__(self, exchange: Exchange, began: int) -> None:
        """Start it; ``began`` is the number of inner steps before it."""
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
        """Wait for its end; return what it brought, or raise what it raised."""
        self._thread.join()
        ended = self._ended[0]
        if isinstance(ended, BaseException):
            raise ended
        return ended


def arena_for(fragments: Fragments, count: int) -> Arena:
    """Return room for ``count`` fragments as they travel."""
    names = [FRAGMENT] if count == 1 else [f"{FRAGMENT}-{one}" for one in range(count)]
    return Arena(_core.Arena(_core.Layout([(name, fragments.kind, [fragments.length]) for name in names])))


class ServerMean:
    """The mean of a server's rounds, or of a tree's: the core's client sends one fragment a round.

    The server's model of a round is the mean of the round before.
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
        del steps  # the server says by the number of its round whether others have begun
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
        # If the server has gone on without this peer, its model is the mean of a later round.
        mean_round = number if self.over else self.number - 1
        place = None if self.over else self._arena[FRAGMENT].copy()
        return Exchanged(number, (mean_round - 1) % self._count, place, status)

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
    """Return whether what a node has after an exchange is a mean of peers' values.

    ``share`` is the mean of their shares. ``is_fresh``: the node came late, so its own values count only where nothing
    of a neighbour arrived. ``is_torn``: only a part of a neighbour's values arrived. ``is_whole``: all values of a
    neighbour arrived. ``is_alone``: the node has no neighbour.
    """
    # The share is one value of a fragment. If only a part of a neighbour's values came, it may not be that of all.
    if is_torn and abs(share - 1) > 1e-3:
        return False
    # A newcomer's own values are those that its model began with. They must not count as the others'.
    has_own = share > 0 and not is_fresh
    return has_own or is_whole or is_alone


class NeighbourMean:
    """The weighted mean of a node's own values and its neighbours', on a graph without a server.

    The core sends in each iteration one part of its arena, and the next part in the next one. The parts are the
    fragments.
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
        self._places = [self._arena[one] for one in self._arena]
        units = fragments.length * fragments.dtype.itemsize // UNIT
        # The core rounds the number of units in a part up, so half a unit less gives exactly one fragment.
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
        """Add neighbours, each with its URL. Each counts as much as the node itself."""
        self._neighbours += [one for one in neighbours if one not in self._neighbours]
        self._core.meet(wire.encode(dict(neighbours)), self.number, self._weights(), None)

    def _weights(self) -> str:
        return wire.encode(dict.fromkeys([*self._neighbours, self._name], 1.0))

    def gather(self, count: int, seconds: float | None) -> int:
        """Wait until ``count`` neighbours are connected, or for ``seconds``; return how many are."""
        return self._core.gather(count, seconds)

    def join(self, steps: OuterSteps) -> Exchanged | None:
        # All peers exchange the values that they begin with. A node that comes late sends nothing in its first
        # iteration, and gets its neighbours' mean.
        self.give(steps, "{}")
        return self.run()

    def give(self, steps: OuterSteps, metrics: str) -> None:
        del metrics  # no party without a server collects them
        for fragment, place in enumerate(self._places):
            steps.fill(fragment, place)

    def run(self) -> Exchanged:
        self._core.begin(self.number, self._weights(), None)
        # If neighbours are ahead, the values are sent under a later number, which may be of another fragment.
        sent = self._core.ready(self.number)
        text = None
        while text is None:
            text = self._core.wait(sent, None)
        report = report_of(wire.plain(text))
        self.number = report.next
        sent_bytes, received = self._traffic
        self._traffic = (sent_bytes + report.bytes_sent, received + report.bytes_received)
        self._is_new |= report.fresh
        fragment = (sent - 1) % self._count
        place = self._places[fragment].copy()
        whole = tuple(report.whole)
        usable = is_usable(
            float(place[-1]),
            is_fresh=report.fresh,
            is_torn=any(0 < one.bytes < one.expected for one in report.exchanges),
            is_whole=bool(whole),
            is_alone=not self.connected and not any(one.bytes for one in report.exchanges),
        )
        return Exchanged(sent, fragment, place if usable else None, "accepted", whole)

    def close(self, reason: str) -> None:
        """Leave; the neighbours get this node's last values first, unless they do not take them for ten seconds."""
        from thalweg.job.common.farewell import farewell

        if not self.over:
            self.over = True
            with farewell(self._core, reason):
                self._core.finish_sending()
