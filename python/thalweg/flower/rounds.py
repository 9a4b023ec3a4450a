"""Derives the rounds of a Flower app's run, for the record, from the messages sent and the replies received.

A round begins with training and ends when the next training begins. Flower numbers rounds in several ways. If an app's
messages have no number, each new training begins a round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypedDict

from flwr.app import ConfigRecord, Message, MetricRecord

from thalweg import wire
from thalweg.apps.metrics import checked, checked_usage
from thalweg.flower.answers import CRASHED, MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE
from thalweg.outcome import Entry, Participant, Transfer
from thalweg.outcome.core import Outcome
from thalweg.record import entry

if TYPE_CHECKING:
    from thalweg.flower.fold import Loop, Numbers
    from thalweg.flower.messages import Arrival, Sent

#: Names that apps give to the metrics accuracy and loss.
ACCURACIES: Final = ("accuracy", "acc", "eval_accuracy", "eval_acc", "test_accuracy", "test_acc")
LOSSES: Final = ("loss", "eval_loss", "test_loss")
#: Names of the metric with a reply's number of samples, in replies to strategies and in results of legacy apps.
WEIGHTS: Final = ("num-examples", "num_examples")
#: The state of a participant in the record, by the error code of its reply. Any other error is "rejected".
_STATES: Final = {NODE_UNAVAILABLE: "lost", CRASHED: "lost", MESSAGE_UNAVAILABLE: "late"}


class Row(TypedDict):
    """A round for ``--json``, with the means of the replies' metrics by kind of message, such as ``train``."""

    round: int
    seconds: float
    communication_seconds: float
    replies: int
    errors: int
    folded: bool
    metrics: Mapping[str, Mapping[str, float]]


#: A round's metrics by kind: ``train`` and ``evaluate``, of the clients, and ``server``. ``round`` is its number.
RoundMetrics: TypeAlias = "dict[str, int | Numbers]"


@dataclass(frozen=True)
class _Answer:
    """The part of a reply that the record keeps: everything but its arrays."""

    state: str
    reason: str | None
    numbers: Mapping[str, float]
    usage: object
    #: Share of its arrays that counts, 0 to 1; 0 for an error.
    coverage: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether the reply has content, and is not an error."""
        return self.state in {"whole", "partial"}

    @classmethod
    def of(cls, arrival: Arrival) -> _Answer:
        if arrival.message.has_error():
            error = arrival.message.error
            return cls(_STATES.get(error.code, "rejected"), error.reason, {}, arrival.usage)
        numbers, coverage = dict(_numbers(arrival.message)), arrival.reply.coverage
        if coverage < 1:
            reason = f"{1 - coverage:.2%} of its arrays did not come"
            return cls("partial", reason, numbers, arrival.usage, coverage)
        return cls("whole", None, numbers, arrival.usage, coverage)


_NONE: Final = _Answer("late", "it did not answer in time", {}, {})


@dataclass
class _Phase:
    """The messages of one kind in a round, such as ``train``, and their replies."""

    begin: float
    names: set[str] = field(default_factory=set)
    answers: dict[str, _Answer] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)
    end: float | None = None

    @property
    def seconds(self) -> float:
        return 0.0 if self.end is None else self.end - self.begin

    def errors(self) -> int:
        return sum(not answer.counts for answer in self.answers.values())

    def failure(self, kind: str) -> str | None:
        """Return a sentence with the first reason if all replies to messages of a kind failed, else None."""
        if not self.answers or self.errors() < len(self.answers):
            return None
        count, (name, answer) = len(self.answers), min(self.answers.items(), key=lambda one: one[0])
        return f"{f'all {count} clients' if count > 1 else 'the only client'} failed to {kind}; {name}: {answer.reason}"


@dataclass
class _Round:
    number: int
    phases: dict[str, _Phase] = field(default_factory=dict)
    folded: bool = False

    @property
    def main(self) -> _Phase:
        """The phase whose times become the round's times: training, or else the first phase."""
        return self.phases.get("train") or next(iter(self.phases.values()))


class Rounds:
    """Collects messages and replies, from any thread, and hands over each round when the next one begins."""

    def __init__(
        self, keep: Callable[[Entry, Row], None], begin: Callable[[int], None], note: Callable[[str], None]
    ) -> None:
        """``keep`` gets a round's entry for the journal and its row for ``--json``.

        ``begin`` gets the number of a new round, and ``note`` a line for each reply that is an error.
        """
        self._keep, self._begin, self._note = keep, begin, note
        self._round: _Round | None = None
        self._lock = threading.RLock()
        #: Flower's own loop of rounds; None if an app has a loop of its own.
        self.loop: Loop | None = None
        self.rows: list[Row] = []
        #: A sentence for each round in which all replies to messages of a kind were errors, with the first reason.
        self.failures: list[str] = []

    def sent(self, sent: Sent) -> None:
        """Add messages that were sent. A higher round number closes the last round."""
        kind = sent.message.metadata.message_type.partition(".")[0]
        with self._lock:
            self.loop = sent.loop or self.loop
            number = self._number(sent, kind)
            if self._round is None or number > self._round.number:
                self._close()
                self._round = _Round(number)
                self._begin(number)
            phase = self._round.phases.setdefault(kind, _Phase(sent.at))
            phase.begin = min(phase.begin, sent.at)  # threads may call this in another order than they sent
            phase.names.update(sent.names)
            self._round.folded = self._round.folded or sent.folds

    def replied(self, arrival: Arrival) -> None:
        """Add a reply. A reply to a message of an earlier round is ignored."""
        kind = arrival.message.metadata.message_type.partition(".")[0]
        with self._lock:
            phase = None if self._round is None else self._round.phases.get(kind)
            if self._round is None or phase is None or arrival.sent.at < phase.begin:
                return
            phase.answers[arrival.name] = answer = _Answer.of(arrival)
            if not answer.counts:
                self._note(f"{arrival.name}: {kind}: {answer.reason}")
            phase.end = arrival.at
            phase.transfers += arrival.transfers

    def waited(self, sent: Sent, at: float) -> None:
        """Mark that the app stopped waiting for replies to messages at the time ``at`` (``time.monotonic``)."""
        kind = sent.message.metadata.message_type.partition(".")[0]
        with self._lock:
            phase = None if self._round is None else self._round.phases.get(kind)
            if phase is not None and sent.at >= phase.begin:
                phase.end = at

    @property
    def expected(self) -> int | None:
        """How many rounds Flower's own loop will have; None if that is not known."""
        return None if self.loop is None else self.loop.rounds

    def state(self) -> str:
        """Return each client's state in the last phase, as JSON for the progress bars."""
        with self._lock:
            phases = [] if self._round is None else list(self._round.phases.values())
            waiting = {name: name in phase.answers for phase in phases[-1:] for name in sorted(phase.names)}
        clients = {name: {"phase": "whole" if there else "working"} for name, there in waiting.items()}
        return wire.encode({"clients": clients})

    def close(self) -> None:
        """Hand over the last round. Idempotent."""
        with self._lock:
            self._close()
            self._round = None

    def metrics(self) -> list[RoundMetrics]:
        """Return each round's metrics: the strategy's results if Flower's own loop ran, else means over replies."""
        rows: list[RoundMetrics] = [{"round": row["round"], **row["metrics"]} for row in self.rows]
        if self.loop is None:
            return rows
        if 0 in self.loop.server_metrics:
            rows.insert(0, {"round": 0})  # the server's evaluation before the first round
        made: dict[str, Mapping[int, Numbers]] = {"server": self.loop.server_metrics}
        if self.loop.result is not None:
            made["train"] = self.loop.result.train_metrics_clientapp
            made["evaluate"] = self.loop.result.evaluate_metrics_clientapp
        return [
            {**row, **{kind: dict(by_round[number]) for kind, by_round in made.items() if number in by_round}}
            for row in rows
            if isinstance(number := row["round"], int)
        ]

    def _number(self, sent: Sent, kind: str) -> int:
        """Return the number of a message's round."""
        stated = round_of(sent)
        current = 0 if self._round is None else self._round.number
        if stated is not None:
            return max(1, stated, current)
        trained = self._round is not None and "train" in self._round.phases and self._round.phases["train"].answers
        return max(1, current + 1 if kind == "train" and trained else current)

    def _close(self) -> None:
        done = self._round
        if done is None:
            return
        metrics = {kind: means(list(phase.answers.values())) for kind, phase in done.phases.items()}
        row = self._row(done, metrics)
        self.rows.append(row)
        failures = [failure for kind, phase in done.phases.items() if (failure := phase.failure(kind))]
        self.failures += failures[:1]
        evaluated = {**metrics.get("evaluate", {}), **self._server_metrics(done.number)}
        quality = {"accuracy": _first(evaluated, ACCURACIES), "loss": _first(evaluated, LOSSES)}
        if quality["accuracy"] is not None and not 0 <= quality["accuracy"] <= 1:
            quality["accuracy"] = None
        figures = {name: value for name, value in quality.items() if value is not None}
        evaluation = done.phases.get("evaluate") if done.main is not done.phases.get("evaluate") else None
        self._keep(entry(_outcome(done, row), figures, None if evaluation is None else evaluation.seconds), row)

    def _server_metrics(self, number: int) -> Numbers:
        return {} if self.loop is None else self.loop.server_metrics.get(number, {})

    def _row(self, done: _Round, metrics: Mapping[str, Mapping[str, float]]) -> Row:
        """Return a round's row for ``--json``."""
        phases = done.phases.values()
        return {
            "round": done.number,
            "seconds": done.main.seconds,
            "communication_seconds": under_way(done.main.transfers),
            "replies": sum(len(phase.answers) - phase.errors() for phase in phases),
            "errors": sum(phase.errors() for phase in phases),
            "folded": done.folded,
            "metrics": metrics,
        }


def round_of(sent: Sent) -> int | None:
    """Return the round number in a message: ``server-round`` of a ConfigRecord, else its group id; None without one."""
    for record in sent.message.content.values():
        number = record.get("server-round") if isinstance(record, ConfigRecord) else None
        if isinstance(number, int) and not isinstance(number, bool):
            return number
    group = sent.message.metadata.group_id
    return int(group) if group.isdecimal() and len(group) < 10 else None


def _outcome(done: _Round, row: Row) -> Outcome:
    """Return a round's outcome in the core's form (docs/reference/outcome.md)."""
    phase = done.main
    transfers = [one for each in done.phases.values() for one in each.transfers]
    participants = [_participant(name, phase.answers.get(name, _NONE)) for name in sorted(phase.names)]
    ways = {way: [one for one in transfers if one["direction"] == way] for way in ("down", "up")}
    outcome = {
        **{name: row[name] for name in ("round", "seconds", "communication_seconds")},
        "bytes_down": sum(_wire(one) for one in ways["down"]),
        "bytes_up": sum(_wire(one) for one in ways["up"]),
        "participants": participants,
        "expected": len(participants),
        "complete": all(one["state"] == "whole" for one in participants),
        "fold": {"folded": row["folded"], "replies": row["replies"], "errors": row["errors"]},
        "transfers": transfers,
        "start": None,
        "congestion_control": None,
    }
    return wire.made(Outcome, outcome)


def _wire(way: Transfer) -> int:
    return int(way.get("wire_bytes") or way["bytes"])


def _participant(name: str, answer: _Answer) -> Participant:
    weight = _first(answer.numbers, WEIGHTS)
    return {
        "client": name,
        "state": answer.state,
        "samples": int(weight) if weight is not None and 0 <= weight < 2**63 else None,
        "coverage": answer.coverage,
        "reason": answer.reason,
        "metrics": checked(answer.numbers)[0],
        "usage": checked_usage(answer.usage)[0],
    }


def _numbers(message: Message) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a reply's metrics. Legacy results have some of them in a ConfigRecord."""
    for key, record in message.content.items():
        if isinstance(record, MetricRecord) or (isinstance(record, ConfigRecord) and key.endswith("res.metrics")):
            yield from ((name, one) for name, one in record.items() if isinstance(one, (int, float)))


def means(answers: Sequence[_Answer]) -> dict[str, float]:
    """Return the mean of each metric over replies, weighted by their samples; unweighted if any number is missing."""
    tables = [answer.numbers for answer in answers if answer.counts]
    weights = [_first(numbers, WEIGHTS) for numbers in tables]
    even = any(weight is None or weight < 0 for weight in weights) or not sum(weight or 0 for weight in weights)
    sums: dict[str, list[float]] = {}
    for numbers, weight in zip(tables, weights, strict=True):
        share = 1.0 if even or weight is None else float(weight)
        for name, value in numbers.items():
            if name not in WEIGHTS:
                total = sums.setdefault(name, [0.0, 0.0])
                total[0] += value * share
                total[1] += share
    return {name: total / share for name, (total, share) in sums.items() if share}


def _first(numbers: Mapping[str, object], names: Sequence[str]) -> float | None:
    candidates = (numbers.get(name) for name in names)
    return next((one for one in candidates if isinstance(one, (int, float)) and not isinstance(one, bool)), None)


def under_way(transfers: Sequence[Transfer]) -> float:
    """Return the seconds during which at least one transfer was under way."""
    spans = []
    for way in transfers:
        starts = [at for at in (way.get("send_start"), way.get("receive_start")) if at is not None]
        ends = [at for at in (way.get("send_end"), way.get("receive_end")) if at is not None]
        if starts and ends:
            spans.append((min(starts), max(ends)))
    seconds, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return seconds
