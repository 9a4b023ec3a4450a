"""Client processes: they report why they end, and end on request."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from thalweg.apps.received_config import ReceivedConfig
from thalweg.errors import RoundError
from thalweg.job.common.fleet import ClientOrder, Fleet, Orders, client_threads
from thalweg.sections import TransportSection

# An address at which nobody listens: port 0 stands for any port.
NOBODY = "tcp://127.0.0.1:1"


def orders(timeout: float) -> Orders:
    config = ReceivedConfig({"round": 1, "model": "payload:4KB"})
    return Orders(NOBODY, {"timeout": timeout}, config, data_root=None, threads=1)


def test_a_client_that_cannot_take_part_says_why(tmp_path: Path) -> None:
    ended = threading.Event()
    ends: list[tuple[str, str]] = []

    def on_end(name: str, why: str) -> None:
        ends.append((name, why))
        ended.set()

    fleet: Fleet[ClientOrder] = Fleet(tmp_path / "log.txt", on_end)
    fleet.start(["client-1"], orders(timeout=0.1))
    assert ended.wait(60)
    fleet.stop()
    ((name, why),) = ends
    assert name == "client-1"
    assert "refused" in why
    with pytest.raises(RoundError, match="client-1 could not take part") as caught:
        fleet.check()
    assert caught.value.hint
    assert "client-1" in (tmp_path / "log.txt").read_text()


def test_those_that_do_not_end_are_ended(tmp_path: Path) -> None:
    lines: list[str] = []
    fleet: Fleet[ClientOrder] = Fleet(tmp_path / "log.txt", lambda name, _: lines.append(name))
    fleet.start(["client-1", "client-2"], orders(timeout=600))
    fleet.stop(grace=0)
    codes = [member.process.returncode for member in fleet.members if member.process is not None]
    assert codes == [-15, -15]
    assert lines == [], "an end that was asked for is no news"


def test_ctrl_c_may_come_before_a_client_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    fleet: Fleet[ClientOrder] = Fleet(tmp_path / "log.txt", lambda _name, _why: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fleet.start(["client-1"], orders(timeout=600))
    fleet.stop(grace=0)
    (member,) = fleet.members
    assert member.process is not None
    assert member.process.wait(60) in (-15, -9)
    member.process.stdout.close()


def test_clients_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.machine.cores", lambda: 8)
    assert [client_threads(None, clients) for clients in (1, 4, 100)] == [8, 2, 1]
    assert client_threads(3, 100) == 3


def test_clients_have_the_congestion_control_that_they_are_dealt() -> None:
    section = TransportSection(congestion="bbr", client_congestion=["reno", "cubic"])
    names = ["client-1", "client-2", "client-3"]
    dealt = {name: section.congestion_of(place) for place, name in enumerate(names)}
    order = {**vars(orders(timeout=1.0)), "options": {"transport": {"congestion": "bbr", "streams": 2}}}
    orders_of = Orders(**{**order, "congestion": dealt})
    made: list[Any] = [orders_of.of(name, at).options for at, name in enumerate(names, 1)]
    assert [one["transport"]["congestion"] for one in made] == ["reno", "cubic", "reno"]
    assert all(one["transport"]["streams"] == 2 for one in made)
    assert TransportSection(congestion="bbr").congestion_of(7) == "bbr"
    assert TransportSection().congestion_of(0) is None
