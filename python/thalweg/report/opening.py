"""The first part of the page of one run: how it ended, how good its model is, and which clients failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from thalweg.report.values import members, unit
from thalweg.ui.phrases import percent
from thalweg.ui.units import format_seconds
from thalweg.ui.verdict import listed

if TYPE_CHECKING:
    from thalweg.report.source import Run
    from thalweg.report.values import RunNumbers

COUNTED: Final = ("whole", "partial")
MOST_NAMES: Final = 5
MOST_LINES: Final = 12


def headline(run: Run, of: RunNumbers) -> str:
    """Return one sentence: what ran, how it ended, and how good its model is."""
    parts = [f"{_what(run, of)}: {_end(of)}", _quality(of), _missed(run)]
    return "; ".join(part for part in parts if part)


def _what(run: Run, of: RunNumbers) -> str:
    parties = f"{members(of.clients, of.shape)} over {of.transport}"
    return f"{run.strategy or 'Flower app'}, {parties}" if run.is_flower else parties


def _end(of: RunNumbers) -> str:
    done, planned = of.rounds, of.rounds_planned
    word = unit([of])
    count = f"{done} {word}{'' if done == 1 else 's'}" if done == planned else f"{done} of {planned} {word}s"
    if of.status == "complete":
        last = of.each_round[-1].elapsed_seconds if of.each_round else None
        return f"complete, {count}" + ("" if last is None else f" in {format_seconds(last)}")
    if of.status == "running":
        return f"not finished, {count} so far: it still runs, or was killed"
    return f"{of.status} after {count}" + (f": {of.reason}" if of.reason else "")


def _quality(of: RunNumbers) -> str:
    return "; ".join(words for words in (_of_server(of), _of_own_clients(of)) if words)


def _of_own_clients(of: RunNumbers) -> str:
    if of.client_accuracy is not None:
        return f"clients' own accuracy {percent(of.client_accuracy)}"
    return "" if of.client_loss is None else f"clients' own loss {of.client_loss:.4g}"


def _of_server(of: RunNumbers) -> str:
    if of.accuracy is None:
        return "" if of.loss is None else f"loss {of.loss:.4g}"
    best = of.best_accuracy
    more = f" (best {percent(best)})" if best is not None and percent(best) != percent(of.accuracy) else ""
    return f"accuracy {percent(of.accuracy)}{more}"


def _missed(run: Run) -> str:
    if run.iterations:
        ended = run.manifest.part("gone").values
        return f"{len(ended)} of its nodes ended early" if ended else ""
    missed = {(part.round, part.client) for part in run.participants if part.state not in COUNTED}
    expected = len(run.participants)
    if not missed:
        return "every update counted" if expected else ""
    if len(missed) == expected:
        return "no update counted"
    clients = len({client for _, client in missed})
    return f"{len(missed)} of {expected} updates did not count, of {clients} client{'' if clients == 1 else 's'}"


def failures(run: Run) -> list[str]:
    """Return who failed, when and why: clients whose update does not count whole, and nodes that ended early."""
    lines = [*_of_clients(run), *_of_nodes(run)]
    rest = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"and {rest} more"] if rest > 0 else [])]


def _of_clients(run: Run) -> Iterator[str]:
    """Yield a line for each reason; reasons of the most rounds come first."""
    rounds: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for part in run.participants:
        if part.state != "whole":
            rounds[part.client, str(part.state), part.reason or "no reason is known"].append(part.round)
    alike: dict[tuple[str, str, tuple[int, ...]], list[str]] = defaultdict(list)
    for (client, state, reason), missed in rounds.items():
        alike[state, reason, tuple(sorted(set(missed)))].append(client)
    for (state, reason, numbers), clients in sorted(alike.items(), key=lambda one: -len(one[0][2])):
        yield f"{_names(clients)}: {state} in {spans(numbers)}: {reason}"


def _of_nodes(run: Run) -> Iterator[str]:
    for name, why in run.manifest.part("gone").values.items():
        yield f"{name} ended early: {why}"


def _names(clients: Sequence[str]) -> str:
    shown, rest = clients[:MOST_NAMES], len(clients) - MOST_NAMES
    return listed([*shown, *([f"{rest} more"] if rest > 0 else [])])


def spans(numbers: Sequence[int]) -> str:
    """Return the text of ascending rounds, such as ``rounds 1 to 3, 5``."""
    runs_of_rounds: list[list[int]] = []
    for number in numbers:
        if runs_of_rounds and number == runs_of_rounds[-1][-1] + 1:
            runs_of_rounds[-1].append(number)
        else:
            runs_of_rounds.append([number])
    words = [str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in runs_of_rounds]
    return f"round{'' if len(numbers) == 1 else 's'} {', '.join(words[:MOST_LINES])}" + (
        ", ..." if len(words) > MOST_LINES else ""
    )
