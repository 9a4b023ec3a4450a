"""What the nodes of a tree have planned while a job ran, round by round, for the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg.trees.counters import Created, LiveDecision, Reused, Workers


@dataclass(frozen=True)
class WorkersRow:
    """What the workers of a node have done until the end of a round, and the plans that it made since the row before.

    All but ``round``, ``node`` and ``decisions`` are counters of ``thalweg.trees.counters``. ``plans``: how many the
    node has made.
    """

    round: int
    node: str
    leaves: int
    created: Created
    reused: Reused
    retired: int
    died: int
    cpu_seconds: int | float
    plans: int
    decisions: tuple[LiveDecision, ...]


@dataclass
class Watched:
    """Tells plans that are new from those that are in a row already."""

    # For each node, how many of its plans are in a row.
    _seen: dict[str, int] = field(default_factory=dict)

    def rows(self, number: int, nodes: Mapping[str, Workers]) -> Iterator[WorkersRow]:
        """Yield a row for each node that plans its workers. ``number`` is that of the round that has ended."""
        for name, one in nodes.items():
            if one.decisions is None:
                continue
            seen = self._seen.get(name, 0)
            if one.decisions.count < seen:
                seen = 0  # the node was started anew, and counts anew
            self._seen[name] = one.decisions.count
            fresh = tuple(decision for decision in one.decisions.latest if decision.number > seen)
            yield WorkersRow(
                number,
                name,
                one.leaves,
                one.created,
                one.reused,
                one.retired,
                one.died,
                one.cpu_seconds,
                one.decisions.count,
                fresh,
            )


def plan_in_words(decision: Mapping[str, Any]) -> str:
    """Return a line about a plan, which is a ``LiveDecision`` as a table."""
    leaves, before = decision["leaves"], decision["before"]
    changed = f"{leaves} leaves as before" if before == leaves else f"{before} leaves become {leaves}"
    measured = f"a queue of {decision['queue']:.3g} updates, {decision['estimate']:.3g} smoothed"
    if decision["rate"]:
        measured += f" ({decision['rate']:.3g} a second, {1000 * decision['seconds']:.3g} ms each)"
    reasons = "; ".join(decision["reasons"])
    return f"plan {decision['number']} at {decision['at']:.1f} s: {changed}, for {measured}: {reasons}"


def workers_in_words(row: Mapping[str, Any]) -> str:
    """Return a line about a node's workers, from a row of the record."""
    created, reused = row["created"], row["reused"]
    return (
        f"round {row['round']}, {row['node']}: leaves {row['leaves']}; so far leaves created {created['leaf']}, "
        f"middles created {created['middle']}, leaves reused as middle {reused['middle']}, retired {row['retired']}, "
        f"died {row['died']}"
    )
