"""The requests of the root of a tree to its nodes; ``thalweg.trees.answers`` has the answers.

The core has the requests between nodes (``crates/wire/src/tree.rs``).

On the wire each is a JSON object with the fields by name. A field whose default is None is left out while it is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, Generic, TypeAlias, cast

from typing_extensions import Self

from thalweg import wire
from thalweg.plan.options import CoreOptions, chosen
from thalweg.trees import answers
from thalweg.trees.answers import AnyAnswer
from thalweg.trees.merging import Statement
from thalweg.wire import Table

# The first byte of a part of updates, and the one past the last.
Bytes: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class Message:
    """What all requests have in common."""

    def table(self) -> dict[str, object]:
        """Return its fields by name, as they go over the wire."""
        return wire.sparse(self)

    @classmethod
    def of(cls, table: Table) -> Self:
        """Return the message that a table stands for. Raises TypeError for missing fields; ignores unknown ones."""
        return cls(**{one.name: table[one.name] for one in fields(cls) if one.name in table})


@dataclass(frozen=True)
class Request(Message, Generic[AnyAnswer]):
    """A request of the root to a node. ``do`` is its name on the wire, ``form`` is the class of its answer."""

    do: ClassVar[str]
    form: ClassVar[type[answers.Form]]

    def read(self, text: bytes) -> AnyAnswer:
        """Return the answer in a text. Raises JsonError, which names the first wrong field."""
        return cast("AnyAnswer", answers.read(self.form, self.do, text))

    def table(self) -> dict[str, object]:
        """Return its name and its fields."""
        return {"do": self.do, **super().table()}


@dataclass(frozen=True)
class TopOptions(Message):
    """How a node becomes the top: its kind, and the core's options of the top and of the node's server for others."""

    kind: str
    top: CoreOptions
    server: CoreOptions


@dataclass(frozen=True)
class Open(Request[answers.Opened]):
    """Listen for clients, with the options of the core's server. ``listen`` is where the node listened before."""

    do: ClassVar[str] = "open"
    form: ClassVar[type[answers.Form]] = answers.Opened
    options: CoreOptions
    listen: str | None
    layout: Sequence[tuple[str, str, Sequence[int], int]]
    top: TopOptions | None = None
    # Whether more clients take part in a round than updates count, so that the root admits updates.
    admits: bool | None = None

    def is_for_same_job(self, other: Open) -> bool:
        """Return whether a node that was opened with ``other`` need not be opened anew for this request.

        A parent that was started anew knows neither where the node listened nor which clients it has.
        """
        return _unplaced(self) == _unplaced(other)

    @classmethod
    def of(cls, table: Table) -> Self:
        """Return the message that a table stands for."""
        top = table.get("top")
        return super().of({**table, "top": TopOptions.of(top) if isinstance(top, Mapping) else None})


@dataclass(frozen=True)
class Wait(Request[answers.State]):
    """Wait at most ``seconds`` until the node's clients are connected."""

    do: ClassVar[str] = "wait"
    form: ClassVar[type[answers.Form]] = answers.State
    seconds: float


@dataclass(frozen=True)
class Round(Request[answers.Round]):
    """Run a round.

    ``kept``: the nodes keep the last round's model, so none is sent. ``only`` has the clients that take part, by node;
    without it all take part. With ``batch``, its number in the round, only the updates are folded that ``Admit`` names.
    """

    do: ClassVar[str] = "round"
    form: ClassVar[type[answers.Form]] = answers.Round
    round: int
    config: str
    kept: bool | None = None
    only: Mapping[str, Sequence[str]] | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Admit(Request[answers.Arrived]):
    """Fold the updates of these clients in a batch of a round, and tell what has arrived since ``seen`` arrivals.

    The answer comes when something has arrived, or the batch is over. With ``last`` no other clients will be named.
    Without ``enough`` the round has too few updates, so the node waits for clients that are away as long as
    ``job.outage``.
    """

    do: ClassVar[str] = "admit"
    form: ClassVar[type[answers.Form]] = answers.Arrived
    round: int
    batch: int
    clients: Sequence[str]
    last: bool
    seen: int
    enough: bool


@dataclass(frozen=True)
class Resent(Request[answers.Resent]):
    """Return how many TCP segments were retransmitted. The root asks when the rounds are over."""

    do: ClassVar[str] = "resent"
    form: ClassVar[type[answers.Form]] = answers.Resent


@dataclass(frozen=True)
class Proofs(Request[answers.Proofs]):
    """Return the proofs that these clients have shown to the node."""

    do: ClassVar[str] = "proofs"
    form: ClassVar[type[answers.Form]] = answers.Proofs
    clients: Sequence[str]


@dataclass(frozen=True)
class ForgetClient(Request[answers.Nothing]):
    """Wait no more for a client."""

    do: ClassVar[str] = "forget"
    form: ClassVar[type[answers.Form]] = answers.Nothing
    client: str
    why: str


@dataclass(frozen=True)
class KnownNode(Message):
    """A node, where clients of other nodes reach it, and its clients. ``gone``: why it takes no part."""

    node: str
    url: str
    clients: Sequence[str]
    expected: int
    gone: str | None


@dataclass(frozen=True)
class AssignClients(Request[answers.Nothing]):
    """Where clients belong. ``after`` and ``counted`` are rounds of clients that have moved (``placement.notice``)."""

    do: ClassVar[str] = "homes"
    form: ClassVar[type[answers.Form]] = answers.Nothing
    nodes: Sequence[KnownNode]
    after: Mapping[str, int]
    counted: Mapping[str, int]

    @classmethod
    def of(cls, table: Table) -> Self:
        """Return the message that a table stands for."""
        nodes = table["nodes"]
        return super().of({**table, "nodes": [KnownNode.of(one) for one in nodes]})  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Confirm(Request[answers.Nothing]):
    """Tell clients whether the node's sums of a round count. Those of the clients ``left_out`` do not in any case."""

    do: ClassVar[str] = "confirm"
    form: ClassVar[type[answers.Form]] = answers.Nothing
    round: int
    counts: bool
    left_out: Sequence[str]


@dataclass(frozen=True)
class ForgetNode(Request[answers.Nothing]):
    """Wait no more for another node."""

    do: ClassVar[str] = "gone"
    form: ClassVar[type[answers.Form]] = answers.Nothing
    node: str
    why: str


@dataclass(frozen=True)
class BecomeTop(Request[answers.Refusable]):
    """Become the top of this round, beginning with the node's own sums. ``claim``: what the root knows of these."""

    do: ClassVar[str] = "lead"
    form: ClassVar[type[answers.Form]] = answers.Refusable
    claim: Statement


@dataclass(frozen=True)
class SendSums(Request[answers.Nothing]):
    """Let the node at this address take the sums of this node's rounds."""

    do: ClassVar[str] = "give"
    form: ClassVar[type[answers.Form]] = answers.Nothing
    to: str


@dataclass(frozen=True)
class ReceiveSums(Request[answers.Taken]):
    """Take the sums of another node."""

    do: ClassVar[str] = "take"
    form: ClassVar[type[answers.Form]] = answers.Taken
    node: str
    claim: Statement


@dataclass(frozen=True)
class ComputeMean(Request[answers.Mean]):
    """Compute the mean of all sums that the node has."""

    do: ClassVar[str] = "finish"
    form: ClassVar[type[answers.Form]] = answers.Mean


@dataclass(frozen=True)
class FoldPart(Request[answers.Shared]):
    """Get each other node's sums of the bytes in this node's part, and fold them."""

    do: ClassVar[str] = "share"
    form: ClassVar[type[answers.Form]] = answers.Shared
    turn: int
    nodes: Mapping[str, Statement]
    parts: Mapping[str, Bytes]
    addresses: Sequence[str]


@dataclass(frozen=True)
class ComputePart(Request[answers.Mean]):
    """Compute the mean of this node's part, and send it to these nodes."""

    do: ClassVar[str] = "settle"
    form: ClassVar[type[answers.Form]] = answers.Mean
    to: Sequence[str]


@dataclass(frozen=True)
class ConfirmParts(Request[answers.Delivered]):
    """Wait until all other nodes have this node's part of the mean."""

    do: ClassVar[str] = "told"
    form: ClassVar[type[answers.Form]] = answers.Delivered


_KINDS: Final[Mapping[str, type[Request[Any]]]] = {
    kind.do: kind
    for kind in (
        Open,
        Wait,
        Round,
        Admit,
        Resent,
        Proofs,
        ForgetClient,
        AssignClients,
        Confirm,
        ForgetNode,
        BecomeTop,
        SendSums,
        ReceiveSums,
        ComputeMean,
        FoldPart,
        ComputePart,
        ConfirmParts,
    )
}


def decode(table: Table) -> Request[Any] | None:
    """Return the root's request whose fields a table has; None if no request has its name.

    Raises KeyError or TypeError for missing fields.
    """
    kind = _KINDS.get(str(table["do"]))
    return None if kind is None else kind.of(table)


def _unplaced(request: Open) -> Open:
    """Return a request to open a node without what depends on the parent's knowledge of the node."""
    options = chosen(request.options, request.options.keys() - {"expected"})
    return replace(request, listen=None, options=options)
