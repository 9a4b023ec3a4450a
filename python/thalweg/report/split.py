"""Splits the time of a round into training, communication and waiting, as the mean over clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from thalweg.record.rows import Transfer
    from thalweg.report.source import Run

TRAINING: Final = "training"
COMMUNICATION: Final = "communication"
WAITING: Final = "waiting"
PARTS: Final = (TRAINING, COMMUNICATION, WAITING)

Split = Mapping[str, float]


def splits(run: Run) -> dict[int, Split]:
    """Return the seconds of each part by round, without rounds whose transfers are not recorded.

    A client communicates from the first sent byte of its model or update until the last byte is received. It trains
    between the end of the model and the begin of the update. For the rest of the round it waits, for other clients and
    the server. A graph's node communicates during its exchange, without the time in which it waits for neighbours.
    """
    return _of_nodes(run) if run.iterations else _of_clients(run)


def _of_nodes(run: Run) -> dict[int, Split]:
    by_iteration: dict[int, list[Split]] = defaultdict(list)
    for row in run.iterations:
        training, exchange, waiting = row.train_seconds, row.exchange_seconds, row.wait_seconds
        if training is not None and exchange is not None and waiting is not None:
            by_iteration[row.round].append(_parts(training, max(0.0, exchange - waiting), waiting))
    return {number: _mean(parts) for number, parts in by_iteration.items()}


def _of_clients(run: Run) -> dict[int, Split]:
    ways: dict[int, dict[str, list[Transfer]]] = defaultdict(lambda: defaultdict(list))
    for way in run.transfers:
        ways[way.round][way.client].append(way)
    parts = () if run.trains_nothing else run.participants
    trained = {(part.round, part.client) for part in parts if part.train_seconds is not None}
    by_round = {}
    for row in run.rounds:
        number, total = row.round, row.seconds
        # ``seconds`` of a Flower app's round covers only training, but its transfers include those of the evaluation.
        total = total + (row.evaluation_seconds or 0.0) if total is not None and run.is_flower else total
        clients = [
            _client(own, total, has_trained=run.is_flower or (number, name) in trained)
            for name, own in ways[number].items()
            if total is not None and {one.direction for one in own} == {"down", "up"}
        ]
        if clients:
            by_round[number] = _mean(clients)
    return by_round


def _client(ways: Sequence[Transfer], total: float, *, has_trained: bool) -> Split:
    spans = sorted((*_span(way), way.direction) for way in ways if _is_timed(way))
    communication = training = 0.0
    until, last = float("-inf"), ""
    for start, end, direction in spans:
        if last == "down" and direction == "up" and has_trained:
            training += max(0.0, start - until)
        communication += max(0.0, end - max(start, until))
        until, last = max(until, end), direction
    return _parts(training, communication, max(0.0, total - training - communication))


def _is_timed(way: Transfer) -> bool:
    return None not in _ends(way)


def _ends(way: Transfer) -> tuple[float | None, float | None]:
    start = way.send_start if way.send_start is not None else way.receive_start
    end = way.receive_end if way.receive_end is not None else way.send_end
    return start, end


def _span(way: Transfer) -> tuple[float, float]:
    start, end = _ends(way)
    return float(start or 0.0), float(end or 0.0)


def _parts(training: float, communication: float, waiting: float) -> Split:
    return {TRAINING: training, COMMUNICATION: communication, WAITING: waiting}


def _mean(parts: Sequence[Split]) -> Split:
    return {name: fmean(one[name] for one in parts) for name in PARTS}
