"""What a client may report with its update. The sender checks it, and the server checks it again.

Metrics are the app's own figures: a flat map of at most 64 short names to numbers, short strings, and true or false.
Usage is what this package measures of a client's process. They are sent as ``{"metrics": {...}, "usage": {...}}``, at
most 16 KiB of strict JSON. They stay separate, so an app may report a metric ``train_seconds`` of its own. A client
that evaluates its own model adds ``{"evaluation": {"accuracy", "loss"}}``.

The sender raises an error with a hint for a value that does not fit. The server trusts no client: it drops such a
value, and notes the client, the key and the reason once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Final, TypeAlias, cast

from thalweg import _core, wire
from thalweg.apps.values import kind, scalar
from thalweg.errors import MetricsError
from thalweg.outcome import tables
from thalweg.outcome.core import ClientUsage, Evaluation, Outcome, Participant
from thalweg.ui import strict_json

Value: TypeAlias = bool | int | float | str

MOST: Final = 64
LONGEST_NAME: Final = 64
LONGEST_TEXT: Final = 256
LARGEST: Final = 2**63 - 1
# Maximum number of notes on one client, because a client may make up new names in each round.
MOST_NOTES: Final = 8
# The keys of usage, each with its maximum: a year of processor time, a petabyte.
LIMITS: Final[Mapping[str, float]] = {"train_seconds": 1e9, "cpu_seconds": 1e9, "peak_rss_bytes": 2**50}
CONGESTION: Final = "congestion_control"
# The keys of an evaluation that are kept.
EVALUATION: Final = ("accuracy", "loss")
FORM: Final = "Return a number, a short string, or true or false for each: float(loss.mean()), say"


def offered(
    metrics: Mapping[str, object], usage: Mapping[str, object], evaluation: Mapping[str, object] | None = None
) -> str:
    """Return the text of an update's metrics, usage and evaluation; values that are None are left out.

    Scalars of NumPy and PyTorch become Python's numbers. Raises MetricsError for a value that the server would drop.
    """
    kept = returned("train", metrics)
    reported = {name: value for name, value in usage.items() if value is not None}
    report = {"metrics": kept, "usage": reported} | ({"evaluation": evaluated(evaluation)} if evaluation else {})
    text = strict_json.dumps(report, separators=(",", ":"))
    if len(text.encode()) > _core.MAX_METRICS:
        raise MetricsError(
            f"the metrics are {len(text.encode())} bytes long, over {_core.MAX_METRICS}", "Report fewer or shorter ones"
        )
    return text


def evaluated(metrics: Mapping[str, object]) -> dict[str, int | float]:
    """Return ``accuracy`` and ``loss`` of an app's result, if present. Raises MetricsError."""
    return numbers("evaluate", {name: metrics.get(name) for name in EVALUATION})


def numbers(by: str, metrics: Mapping[str, object]) -> dict[str, int | float]:
    """Return the result of an app's ``evaluate``, all numbers, in Python's own types. Raises MetricsError."""
    kept: dict[str, int | float] = {}
    for name, value in returned(by, metrics).items():
        if isinstance(value, (bool, str)):
            raise MetricsError(f"{by} returned {value!r} as {name}", "Return a number")
        kept[name] = value
    return kept


def returned(by: str, metrics: Mapping[str, object]) -> dict[str, Value]:
    """Return the result of an app's ``train`` or ``evaluate`` in Python's own types. Raises MetricsError."""
    own = {name: scalar(value) for name, value in metrics.items() if value is not None}
    kept, refused = checked(own)
    for name, reason in refused.items():
        raise MetricsError(f"{by} returned the metric {_named(name)}, but {reason}", FORM)
    return kept


def checked(metrics: Mapping[str, object]) -> tuple[dict[str, Value], dict[str, str]]:
    """Return the metrics that fit; and the others by name, each with the reason, such as "it is a list"."""
    kept: dict[str, Value] = {}
    refused: dict[str, str] = {}
    for name, value in metrics.items():
        reason = _why_not(name, strict_json.number(value))
        if reason is None and len(kept) == MOST:
            refused[name] = f"there are more than {MOST}"
            break
        if reason is None:
            kept[name] = strict_json.number(value)
        else:
            refused[name] = reason
    return kept, refused


def checked_usage(usage: object) -> tuple[tables.ClientUsage, dict[str, str]]:
    """Return the parts of usage with possible values, and for each other part why its value is impossible."""
    kept: dict[str, int | float | str] = {}
    refused: dict[str, str] = {}
    for name, value in usage.items() if isinstance(usage, dict) else ():
        if name == CONGESTION:
            fits = isinstance(value, str) and _why_not(name, value) is None
        else:
            fits = _is_number(value) and 0 <= value <= LIMITS.get(name, -1)
        if fits:
            kept[name] = int(value) if name.endswith("_bytes") else value
        else:
            refused[name] = "no client's process uses that"
    return cast("tables.ClientUsage", kept), refused


def _checked_evaluation(evaluation: object) -> tuple[tables.Evaluation, dict[str, str]]:
    """Return ``accuracy`` and ``loss`` from a client's evaluation, and for each other key why it is not kept."""
    figures = (
        {name: strict_json.number(value) for name, value in evaluation.items()} if isinstance(evaluation, dict) else {}
    )
    kept = {name: value for name, value in figures.items() if name in EVALUATION and _is_number(value)}
    refused = dict.fromkeys(map(str, figures.keys() - kept.keys()), "it is no accuracy or loss")
    return cast("tables.Evaluation", kept), refused


def of_clients(outcome: Outcome) -> dict[str, float]:
    """Return ``client_accuracy`` and ``client_loss`` of a round: means over the clients whose update counts.

    A figure that no client reported is left out.
    """
    evaluations = [part.evaluation for part in outcome.counting if part.evaluation is not None]
    reported = {
        "client_accuracy": [one.accuracy for one in evaluations if one.accuracy is not None],
        "client_loss": [one.loss for one in evaluations if one.loss is not None],
    }
    return {figure: fmean(values) for figure, values in reported.items() if values}


class Intake:
    """Checks the outcomes of rounds as they arrive from the core. Its memory grows only with the number of clients."""

    def __init__(self) -> None:
        self._reported: dict[str, set[str]] = {}

    def outcome(self, text: str) -> tuple[Outcome, list[str]]:
        """Return the core's outcome with what each participant sent checked, and notes."""
        outcome, notes = wire.decode(Outcome, text), list[str]()
        checked_parts = []
        for part in outcome.participants:
            kept, dropped = self._checked(part)
            checked_parts.append(kept)
            notes += dropped
        return replace(outcome, participants=tuple(checked_parts)), notes

    def _checked(self, part: Participant) -> tuple[Participant, list[str]]:
        whole = part.metrics if isinstance(part.metrics, dict) else {}
        own = whole.get("metrics", {})
        metrics, refused = checked(own) if isinstance(own, dict) else ({}, {"metrics": "they are no object"})
        usage, untrue = checked_usage(whole.get("usage", {}))
        evaluation, unfit = _checked_evaluation(whole.get("evaluation", {}))
        untrue |= unfit
        keys = {"metrics", "usage", "evaluation"}
        other = dict.fromkeys(whole.keys() - keys, "it is neither metrics nor usage nor an evaluation")
        if not isinstance(part.metrics, dict):
            other["metrics"] = "they are no JSON object"
        kept = replace(part, metrics=metrics, usage=ClientUsage(**usage), evaluation=Evaluation(**evaluation))
        return kept, self._notes(part.client, refused | other | untrue)

    def _notes(self, client: str, refused: Mapping[str, str]) -> list[str]:
        reported = self._reported.setdefault(client, set())
        notes = []
        for name, reason in refused.items():
            short = _named(name)
            if short in reported or len(reported) > MOST_NOTES:
                continue
            reported.add(short)
            more = "; what else it reports amiss is dropped without a word" if len(reported) > MOST_NOTES else ""
            notes.append(f"{client}: its metric {short} is dropped: {reason}{more}")
        return notes


def _why_not(name: object, value: object) -> str | None:
    """Return why a metric cannot be kept, or None if it can."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not _is_plain(name):
        return f"a name is 1 to {LONGEST_NAME} characters that can be seen"
    if isinstance(value, str):
        plain = len(value) <= LONGEST_TEXT and _is_plain(value)
        return None if plain else f"a string is one line of at most {LONGEST_TEXT} characters that can be seen"
    if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
        return "a whole number has at most 63 bits"
    return None if isinstance(value, (bool, int, float)) else f"it is {kind(value)}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_plain(text: str) -> bool:
    try:
        return _core.plain_text(text, 4 * len(text)) == text
    except UnicodeEncodeError:  # one half of a surrogate pair of UTF-16
        return False


def _named(name: object) -> str:
    shown = str(name).encode(errors="replace").decode()
    return f'"{_core.plain_text(shown, LONGEST_NAME)}"'
