"""The root's side of a sharded top, where each node is the top for its own part of the bytes.

The nodes' side is ``thalweg.job.tree.shard``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

import numpy as np

from thalweg import _core
from thalweg.errors import RoundError
from thalweg.job.tree.messages import ComputePart, ConfirmParts, FoldPart
from thalweg.job.tree.tops import Ask, Node, Received
from thalweg.outcome.core import NodeShare
from thalweg.trees import answers
from thalweg.trees.merging import Mean, Part

# The nodes that have sums, with their parts in the round; and the range of bytes that each node is the top for.
Counting = Mapping[str, tuple[Part, Node]]
Shares = Mapping[str, tuple[int, int]]


class Sharded:
    """Has each node fold the sums of its range of bytes, and send that part of the mean to all nodes and to the root.

    All parts of the mean contain the same updates: those of the nodes that had sums when all nodes had finished. If one
    of these nodes is lost before the root has all parts of the mean, the remaining nodes begin again without it.
    """

    def __init__(self, model: _core.Arena, ask: Ask, here: Callable[[], Sequence[Node]]) -> None:
        """Keep ``model``, to which ``finish`` writes the mean. ``here`` returns the nodes that get the mean too."""
        self._model, self._ask, self._here = model, ask, here
        self._turns = count(1)
        self._parts: list[tuple[Part, Node]] = []

    def begin(self) -> None:
        """Forget the nodes' parts in the round before."""
        self._parts = []

    def take(self, part: Part, received: Received[answers.Round]) -> None:
        """Note that a node has sums. The node keeps them until all nodes have finished."""
        if received.head is None or not received.head.held:
            part.reason = part.reason or "it has no sums"
            return
        self._parts.append((part, received.node))

    def finish(self, check: Callable[[], None]) -> Mean:
        """Have all nodes share and settle, and write the parts of the mean to the model."""
        check()
        while counting := {node.name: (part, node) for part, node in self._parts if part.outcome is not None}:
            shares = dict(zip(counting, self._model.layout.parts(len(counting)), strict=False))
            mean = self._settled(counting, shares) if self._shared(counting, shares) else None
            if mean is not None:
                return mean
            check()
        raise RoundError("no node has the round's sums any more", "See the record's log.txt for who was lost")

    def _shared(self, counting: Counting, shares: Shares) -> bool:
        """Have each node take the sums of its range from all nodes that count; return whether all succeeded."""
        here = self._here()
        request = FoldPart(
            turn=next(self._turns),
            nodes={name: part.statement for name, (part, _) in counting.items()},
            parts=shares,
            addresses=[counting[name][1].peers for name in shares],
        )
        received = {one.node.name: one for one in self._ask(request, here)}
        for name, (part, node) in counting.items():
            answer = received.get(name)
            if answer is None or answer.head is None:
                part.drop(
                    node.reason or f"its node {name} could not be a top: {answer.reason if answer else 'it is gone'}"
                )
                continue
            part.between = [*part.between, *answer.head.between]
        for name, (part, _) in counting.items():
            # If two nodes refuse each other, drop only one: a node that was dropped above refuses nobody.
            for other, why in _refused(received.get(name)).items() if part.outcome is not None else ():
                refused, node = counting[other]
                if refused.outcome is not None:
                    refused.drop(node.reason or f"the sums of its node {other} were refused by {name}: {why}")
        return all(part.outcome is not None for part, _ in counting.values())

    def _settled(self, counting: Counting, shares: Shares) -> Mean | None:
        """Have each node compute the mean of its range; return the whole mean, or None if a part is missing."""
        here = self._here()
        request = ComputePart([node.name for node in here])
        received = {one.node.name: one for one in self._ask(request, [counting[name][1] for name in shares])}
        for name in shares:
            part, node = counting[name]
            answer = received[name]
            start, end = shares[name]
            if answer.head is None or answer.tensors is None or len(answer.tensors) < end - start:
                part.drop(node.reason or f"its node {name} gave no part of the mean: {answer.reason}")
                continue
            part.between = [*part.between, *answer.between]
        if any(part.outcome is None for part, _ in counting.values()):
            return None
        model = np.asarray(self._model)
        for name, (start, end) in shares.items():
            model[start:end] = np.asarray(received[name].tensors)[: end - start]
        means = [one.head for one in received.values() if one.head is not None]
        return Mean(
            uncovered_bytes=sum(mean.fold.uncovered_bytes or 0 for mean in means),
            shares=tuple(NodeShare(name, end - start) for name, (start, end) in shares.items()),
            done=max(mean.done for mean in means),
            has=self._delivered(counting, shares, here),
        )

    def _delivered(self, counting: Counting, shares: Shares, here: Sequence[Node]) -> list[str]:
        """Wait until the nodes have sent each other their parts of the mean; return the nodes that have all parts."""
        has = {node.name: {node.name} for node in here}
        for received in self._ask(ConfirmParts(), [counting[name][1] for name in shares]):
            part, node = counting[received.node.name]
            if received.head is not None:
                part.between = [*part.between, *received.head.between]
                for name in has.keys() & set(received.head.has):
                    has[name].add(node.name)
        return [name for name, parts in has.items() if parts >= set(shares)]


def _refused(received: Received[answers.Shared] | None) -> Mapping[str, str]:
    return {} if received is None or received.head is None else received.head.refused
