"""The order of a node of a tree, and what the node's process tells its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import Self

from thalweg.job.common.messages import Line, Order
from thalweg.job.tree.messages import KnownNode
from thalweg.transports.links import Trust

if TYPE_CHECKING:
    from thalweg.plan.options import CoreOptions


@dataclass(frozen=True, kw_only=True)
class NodeOrder(Order):
    """How a node joins its parent at ``url``, and where it listens.

    ``options`` are the core's options of a member. The node listens at ``listen`` for clients, and at ``address`` for
    other nodes. ``trust`` has what it checks clients with and shows them: ``token`` or ``issuer``, and ``tls``.
    ``clients`` is how many clients it has, for a parent that does not know. ``advertise`` is the URL at which clients
    of other nodes reach it, if that is not where it listens. With ``nodes`` it listens for that many nodes instead of
    clients, and with ``away`` it waits at most so many seconds for all of them. ``former`` is where an earlier process
    listened for it, if the run knows: clients, or nodes below it, look for it there. ``known`` are the nodes
    below it if they were started earlier. Those that do not come back are not among the ``nodes``.
    """

    url: str
    listen: str
    options: CoreOptions
    trust: Trust
    address: str = "127.0.0.1"
    clients: int = 1
    advertise: str | None = None
    nodes: int | None = None
    former: str | None = None
    away: float | None = None
    known: Sequence[KnownNode] = ()

    @classmethod
    def of(cls, table: Line) -> Self:
        """Return the order that a table stands for. Raises TypeError for unknown or missing fields."""
        known = [KnownNode.of(one) for one in table.get("known", ())]
        return super().of({**table, "trust": Trust.of(table["trust"]), "known": known})


@dataclass(frozen=True)
class Listening:
    """A line that the process writes: the node listens at ``address`` for its clients, or for the nodes below it."""

    say: ClassVar[str] = "listening"
    address: str

    def table(self) -> dict[str, object]:
        """Return the line's fields."""
        return {"say": self.say, "address": self.address}
