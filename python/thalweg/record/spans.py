"""A round as spans of time, for traces: transfers, the work of a tree's workers, the phases of a graph's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from thalweg.outcome import Entry, RecordedTransfer

Fact: TypeAlias = "str | int | float | bool"
# The party whose span is the round itself, and the one of which a record's worker is if no node is named.
ROUNDS: Final = "rounds"
SERVER: Final = "server"


@dataclass(frozen=True, slots=True)
class Span:
    """What a party did from ``start`` to ``end``, in seconds on the run's clock."""

    party: str
    what: str
    start: float
    end: float
    facts: Mapping[str, Fact] = field(default_factory=dict)


def spans_of(entry: Entry) -> tuple[Span, list[Span]] | None:
    """Return the span of a round, and those within it in the order of their begins; None if no time is known.

    The journal does not have the round's begin: the span begins with the first thing in it, and lasts ``seconds``, or
    until the last thing in it has ended.
    """
    inner = sorted([*_transfers(entry), *_work(entry), *_nodes(entry)], key=lambda span: (span.start, span.end))
    if not inner:
        return None
    start, end = inner[0].start, max(span.end for span in inner)
    facts: dict[str, Fact] = {
        key: value
        for key in ("round", "accuracy", "loss", "participants", "expected", "complete", "bytes_down", "bytes_up")
        if isinstance(value := entry.get(key), (int, float, bool))
    }
    return Span(ROUNDS, f"round {entry['round']}", start, max(end, start + entry["seconds"]), facts), inner


def _span(party: str, what: str, start: object, end: object, facts: Mapping[str, Fact]) -> Iterator[Span]:
    """Yield the span if both of its times are known; times of other machines' clocks may be in no order."""
    if isinstance(start, (int, float)) and isinstance(end, (int, float)) and start <= end:
        yield Span(party, what, float(start), float(end), facts)


def _transfers(entry: Entry) -> Iterator[Span]:
    names = {"down": "receive model", "up": "send update"}
    for transfer in entry["transfers"]:
        # The server times what it does itself: it sends models and receives updates.
        own, other = ("send", "receive") if transfer["direction"] == "down" else ("receive", "send")
        start, end = (_first(transfer, (f"{own}_{which}", f"{other}_{which}")) for which in ("start", "end"))
        facts: dict[str, Fact] = {"direction": transfer["direction"], "bytes": transfer["bytes"]}
        for key in ("missing", "wire_bytes", "retransmissions", "resumed", "complete"):
            value = transfer.get(key)
            if isinstance(value, (int, float, bool)):
                facts[key] = value
        what = names.get(transfer["direction"], transfer["direction"])
        yield from _span(transfer["client"], what, start, end, facts)


def _first(transfer: RecordedTransfer, keys: Iterable[str]) -> float | None:
    """Return the first of these times that is known."""
    values: Mapping[str, object] = transfer
    return next((float(value) for key in keys if isinstance(value := values.get(key), (int, float))), None)


def _work(entry: Entry) -> Iterator[Span]:
    fold = entry.get("fold")
    timeline = None if fold is None or "folded" in fold else fold.get("timeline")
    for work in [] if timeline is None else timeline["did"]:
        party = f"{work.get('node', SERVER)} worker {work['worker']}"
        yield from _span(party, work["what"], work["start"], work["end"], {"updates": work["updates"]})


def _nodes(entry: Entry) -> Iterator[Span]:
    for name, node in entry.get("nodes", {}).items():
        heard: dict[str, Fact] = {"heard": node["heard"], "whole": node["whole"], "bytes_sent": node["bytes_sent"]}
        yield from _span(name, "train", node["begin"], node["ready"], {})
        yield from _span(name, "exchange", node["ready"], node["mixed"], heard)
        evaluation = node.get("evaluation")
        if evaluation:
            yield from _span(name, "evaluate", evaluation["at"] - evaluation["seconds"], evaluation["at"], {})
