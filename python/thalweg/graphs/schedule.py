"""The schedule of a graph: which nodes send to which nodes in each iteration."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Final

from thalweg.graphs import making
from thalweg.graphs.words import Word, parse

# Number of iterations whose graphs are kept, because nodes may be in different iterations.
KEPT: Final = 8


@dataclass(frozen=True)
class Exchange:
    """The transfers of one iteration: ``sends[i]`` are the nodes to which node i sends its model, in order."""

    sends: tuple[tuple[int, ...], ...]

    @cached_property
    def hears(self) -> tuple[tuple[int, ...], ...]:
        """The nodes whose model each node receives, in order."""
        sources: list[list[int]] = [[] for _ in self.sends]
        for node, targets in enumerate(self.sends):
            for target in targets:
                sources[target].append(node)
        return tuple(map(tuple, sources))

    @property
    def is_mutual(self) -> bool:
        """Whether each node receives from exactly the nodes to which it sends."""
        return self.sends == self.hears


class Schedule:
    """The exchanges of a job: who sends to whom in iteration 1, 2 and so on."""

    def __init__(self, word: Word, nodes: int, seed: int) -> None:
        """Draw the graph. Raises PlanError for an impossible graph."""
        self.word, self.nodes, self._seed = word, nodes, seed
        self._kept: OrderedDict[int, Exchange] = OrderedDict()
        first = making.make(word, nodes, seed)
        #: All edges that any iteration uses.
        self.links = making.make(parse("full"), nodes, seed) if word.dynamic else first
        self._first = Exchange(first.neighbours)

    @property
    def changes(self) -> bool:
        """Whether the exchanges differ between iterations."""
        return self.word.dynamic or self.word.kind == "one-peer"

    @property
    def period(self) -> int | None:
        """The number of iterations after which the exchanges repeat; None if they never do."""
        if self.word.dynamic:
            return None
        return len(making.offsets(self.nodes)) if self.word.kind == "one-peer" else 1

    def digest(self) -> str:
        """Return a digest, in hex. Two schedules have the same digest if all their iterations are the same."""
        first = self._first.sends
        said = repr((self.word.text if self.word.path is None else "file", self.nodes, self._seed, first))
        return sha256(said.encode()).hexdigest()

    def at(self, iteration: int) -> Exchange:
        """Return the exchange of ``iteration``, from 1."""
        if self.word.kind == "one-peer":
            return self._one_peer(iteration)
        return self._drawn(iteration) if self.word.dynamic else self._first

    def _one_peer(self, iteration: int) -> Exchange:
        """Each node sends to one node: to the one 1, 2, 4, ... places after it, a new distance in each iteration."""
        steps = making.offsets(self.nodes)
        step = steps[(iteration - 1) % len(steps)]
        return Exchange(tuple(((node + step) % self.nodes,) for node in range(self.nodes)))

    def _drawn(self, iteration: int) -> Exchange:
        if iteration not in self._kept:
            made = making.make(self.word, self.nodes, self._seed, iteration - 1)
            self._kept[iteration] = Exchange(made.neighbours)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._kept[iteration]


def schedule(text: str, nodes: int, seed: int) -> Schedule:
    """Return the schedule of a graph by name. Raises PlanError for unknown names and impossible graphs."""
    return Schedule(parse(text), nodes, seed)
