"""The reason that a client sends when it leaves, and the list of absent clients at the end of a job."""

from __future__ import annotations

import sys
import threading
import unicodedata
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import thalweg
from tests.outcomes import participant_of
from thalweg import _core
from thalweg.job.common.farewell import farewell, reason
from thalweg.job.star.attendance import MAX_NAMED, Attendance, sentences
from thalweg.machine import Usage
from thalweg.outcome.core import Absence, Participant


class FakeClient:
    """A client of the core that stores the reasons given to ``close``."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def close(self, reason: str) -> None:
        self.reasons.append(reason)


def test_a_client_says_why_it_leaves() -> None:
    client = FakeClient()
    with farewell(client, "done"):
        pass
    for error in (ValueError("no data"), KeyError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), farewell(client, "done"):
            raise error
    assert client.reasons == ["done", "ValueError: no data", "KeyError", "interrupted"]


def test_the_exception_is_raised_even_if_the_goodbye_fails() -> None:
    class Shut:
        def close(self, reason: str) -> None:
            raise _core.CoreError(reason)

    with pytest.raises(ValueError, match="no data"), farewell(Shut(), "done"):
        raise ValueError("no data")
    with pytest.raises(_core.CoreError, match="done"), farewell(Shut(), "done"):
        pass


def test_an_error_of_this_package_says_cause_and_hint() -> None:
    assert reason(thalweg.errors.DataError("it is empty", "Fill it")) == "DataError: it is empty. Fill it"


class App:
    """An app whose training raises in this round."""

    def __init__(self, raises: int | None = None, text: str = "") -> None:
        self.raises, self.text = raises, text

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(2, 1)

    def train(self, model: torch.nn.Module, data: Any, config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        if config["round"] == self.raises:
            raise ZeroDivisionError(self.text)
        return 1, {}


def start(server: thalweg.Server, apps: Mapping[str, App]) -> list[threading.Thread]:
    def run(name: str, app: App) -> None:
        try:
            thalweg.Client(app, server.address, name=name).run()
        except ZeroDivisionError:
            assert app.raises is not None, "only one that raises ends so"

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in apps.items()]
    for thread in threads:
        thread.start()
    return threads


def test_the_servers_job_goes_on_and_names_who_raised_and_why() -> None:
    apps = {"good": App(), "bad": App(2, "no batch\nof \x1b[31mround 2")}
    with thalweg.Server(apps["good"], clients=2, enough=1) as server:
        threads = start(server, apps)
        rounds = list(thalweg.fedavg(server, 4))
        absent = server.absent()
    for thread in threads:
        thread.join(60)
    said = "left: ZeroDivisionError: no batch of \ufffd[31mround 2"
    assert absent == {"bad": said}
    assert [done.absent for done in rounds] == [{}, {"bad": said}, {}, {}]
    assert [sorted(done.participants) for done in rounds] == [["bad", "good"], ["good"], ["good"], ["good"]]


def test_a_round_that_needs_the_client_fails_with_its_reason() -> None:
    apps = {"good": App(), "bad": App(1, "no data here")}
    with thalweg.Server(apps["good"], clients=2, enough=2) as server:
        threads = start(server, apps)
        server.wait()
        with pytest.raises(_core.CoreError, match=r"1 of 2 updates.*bad left: ZeroDivisionError: no data here"):
            server.round()
    for thread in threads:
        thread.join(60)


def part(client: str, state: str, why: str | None = None, **usage: float) -> Participant:
    return participant_of(client=client, state=state, reason=why, usage=usage)


def test_attendance_knows_who_missed_what_and_what_each_used() -> None:
    book = Attendance()
    book.add([part("a", "whole", cpu_seconds=1.0, peak_rss_bytes=100), part("b", "whole", peak_rss_bytes=7)])
    book.add([part("a", "whole", cpu_seconds=3.0, peak_rss_bytes=90), part("b", "late", "was still training")])
    book.departed([("c", "left: ValueError: x", True), ("a", "the link broke", False)])
    assert book.absences() == [
        Absence("b", 1, "was still training", False),
        Absence("c", 0, "left: ValueError: x", True),
    ]
    book.departed([])
    assert [one.client for one in book.absences()] == ["b"], "c has come back"
    assert book.usage_of("a") == Usage(3.0, 100)
    assert book.usage_of("nobody") == Usage()
    assert book.peak_of("b") == 7
    assert sentences(book.absences(), 2)[0] == "b is in 1 of 2 means: was still training"


def test_attendance_counts_the_rounds_of_a_resumed_record() -> None:
    book = Attendance()
    clients = [{"client": "a", "state": "whole", "reason": None}, {"client": "b", "state": "whole", "reason": None}]
    late = {"client": "b", "state": "late", "reason": "was still training"}
    rounds: Any = [{"round": 1, "clients": clients}, {"round": 2, "clients": [clients[0], late]}]
    book.add_recorded(rounds)
    book.add([part("a", "whole")])
    book.departed([("d", "the link broke", False)])
    book.never_came(["a", "c", "d"], ["a"])
    assert book.rounds == 3
    assert sentences(book.absences(), 3) == [
        "b is in 1 of 3 means: it has not connected again",
        "c is in 0 of 3 means: it has not connected",
    ]


def test_only_so_many_are_named() -> None:
    many = [Absence(f"c{n}", 0, None, True) for n in range(MAX_NAMED + 5)]
    lines = sentences(many, 1)
    assert len(lines) == MAX_NAMED + 1
    assert "5 more" in lines[-1]


def test_no_character_passes_that_is_not_seen() -> None:
    hidden = ("Cc", "Cf", "Zl", "Zp")
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in hidden:
            assert character not in _core.plain_text(f"a{character}b", 1024), hex(code)
    assert _core.plain_text("Größe ≠ 3 日本 [red]", 1024) == "Größe ≠ 3 日本 [red]"
    assert _core.plain_text("x" * 2000, 100) == "x" * 97 + "…"
