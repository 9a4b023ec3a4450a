"""The total of retransmissions is known only if all senders were counted."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from thalweg.job.common import resent
from thalweg.job.common.resent import counted, manifest_counts, totals
from thalweg.job.common.server_reports import ResentCounts

UNKNOWN = ResentCounts()
Members = Mapping[str, Mapping[str, "int | None"]]


class Core:
    def __init__(self, members: Members) -> None:
        self._members = members

    def resent(self, timeout: float) -> str:
        del timeout
        return json.dumps(self._members)


def here() -> list[str]:
    return []


def test_the_total_is_the_sum_over_all_clients() -> None:
    core = Core({"a": {"down": 1, "up": 2}, "b": {"down": 10, "up": 0}})
    assert counted(core, here, {"a", "b"}) == ResentCounts(11, 2)


def test_a_client_that_cannot_count_makes_the_total_unknown() -> None:
    core = Core({"a": {"down": 1, "up": 2}, "b": {"down": 10, "up": None}})
    assert counted(core, here, {"a", "b"}) == ResentCounts(11, None)
    assert counted(core, here, {"a"}) == ResentCounts(11, 2), "who sent no update has none to count"


def test_what_a_lost_client_sent_again_is_not_known() -> None:
    core = Core({"a": {"down": 1, "up": 2}, "b": {"down": 10, "up": 3}})
    assert counted(core, lambda: [["b", "its link broke", False]], {"a", "b"}) == UNKNOWN


def test_a_count_that_does_not_come_in_time_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resent, "COUNT_SECONDS", 0.0)
    assert counted(Core({"a": {"down": 1, "up": 2}}), here, {"a"}) == UNKNOWN


def test_totals_of_several_servers() -> None:
    assert totals([ResentCounts(1, 2), ResentCounts(3, None)]) == ResentCounts(4, None)
    assert totals([]) == UNKNOWN


def test_what_a_broker_sends_again_is_noted_as_not_counted() -> None:
    assert manifest_counts(ResentCounts(1, 2), 1, broker=False) == {"first": 1, "down": 1, "up": 2}
    assert manifest_counts(ResentCounts(1, 2), 1, broker=True) == {"first": 1, "down": 1, "up": 2, "broker": None}
