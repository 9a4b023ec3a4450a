"""Client processes: they say why they end, and they end when they are told to."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from thalweg.errors import RoundError
from thalweg.fleet import Fleet, Orders, client_threads

# Nobody listens at the port that means "any".
NOBODY = "tcp://127.0.0.1:1"


def orders(patience: float) -> Orders:
    config = {"round": 1, "model": "payload:4KB"}
    return Orders(NOBODY, {"patience": patience}, config, data_root=None, threads=1)


def test_a_client_that_cannot_take_part_says_why(tmp_path: Path) -> None:
    ended = threading.Event()
    told: list[tuple[str, str]] = []

    def on_end(name: str, why: str) -> None:
        told.append((name, why))
        ended.set()

    fleet = Fleet(tmp_path / "log.txt", on_end)
    fleet.start(["client-1"], orders(patience=0.1))
    assert ended.wait(60)
    fleet.stop()
    assert told == [("client-1", "ended with exit code 1")]
    with pytest.raises(RoundError, match="client-1 could not take part") as caught:
        fleet.check()
    assert caught.value.mend
    assert "client-1" in (tmp_path / "log.txt").read_text()


def test_those_that_do_not_end_are_ended(tmp_path: Path) -> None:
    told: list[str] = []
    fleet = Fleet(tmp_path / "log.txt", lambda name, _: told.append(name))
    fleet.start(["client-1", "client-2"], orders(patience=600))
    fleet.stop(grace=0)
    codes = [member.process.returncode for member in fleet.members if member.process is not None]
    assert codes == [-15, -15]
    assert told == [], "an end that was asked for is no news"


def test_clients_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.machine.cores", lambda: 8)
    assert [client_threads(None, clients) for clients in (1, 4, 100)] == [8, 2, 1]
    assert client_threads(3, 100) == 3
