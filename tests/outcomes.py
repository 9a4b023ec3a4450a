"""Makes outcomes of rounds for tests. A test names only the fields that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from thalweg import wire
from thalweg.outcome.core import Outcome, Participant, Transfer

T = TypeVar("T")
_TIMES = dict.fromkeys(("send_start", "send_end", "receive_start", "receive_end"))
_WAY: Mapping[str, Any] = {
    "round": 1, "client": "c", "direction": "up", "bytes": 1, "missing": 0, "losses": [], "repair": None,
    "wire_bytes": 1, **_TIMES, "retransmissions": None, "duplicates": 0, "corrupt": 0, "copied": 0,
    "records_lost": None, "resumed": 0, "complete": True,
}  # fmt: skip
_PART: Mapping[str, Any] = {
    "client": "c", "state": "whole", "samples": 1, "metrics": {}, "coverage": 1.0, "reason": None
}  # fmt: skip
_OUTCOME: Mapping[str, Any] = {
    "round": 1, "expected": 1, "complete": True, "start": 0.0, "seconds": 1.0, "communication_seconds": 0.5,
    "bytes_down": 1, "bytes_up": 1, "participants": [], "transfers": [], "congestion_control": None,
    "fold": {"uncovered_bytes": 0, "completion_seconds": None, "finish_seconds": 0.0},
}  # fmt: skip


def transfer_table(**known: Any) -> dict[str, Any]:
    """Return a transfer in the form in which the core reports it."""
    return {**_WAY, **known}


def outcome_table(**known: Any) -> dict[str, Any]:
    """Return an outcome in the form of the core's report. Participants and transfers may have only some fields."""
    table = {**_OUTCOME, **known}
    parts = [{**_PART, **part} for part in table["participants"]]
    return {**table, "participants": parts, "transfers": [transfer_table(**way) for way in table["transfers"]]}


def outcome_of(**known: Any) -> Outcome:
    """Return a round's outcome. Participants and transfers may have only some of their fields."""
    return wire.made(Outcome, outcome_table(**known))


def participant_of(**known: Any) -> Participant:
    return wire.made(Participant, {**_PART, **known})


def transfer_of(**known: Any) -> Transfer:
    return wire.made(Transfer, transfer_table(**known))
