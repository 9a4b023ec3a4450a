"""A lab's supervisor: its answers to requests, to malformed ones too, and its notifications."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.conftest import FakeLab, StartLab
from thalweg.errors import LabError, PlanError
from thalweg.lab import changing, client
from thalweg.lab import state as states
from thalweg.lab.supervisor import LONGEST_REQUEST, Supervisor
from thalweg.network.shape import Shape
from thalweg.record.rows import Queue

SAMPLE = Queue(seconds=0.5, link="client-1", direction="ab", queue_bytes=0, bytes_out=0)


def test_it_answers(start_lab: StartLab) -> None:
    lab, core, _ = start_lab()
    assert lab.status().elapsed == 1.5
    assert lab.samples() == [SAMPLE]
    assert core.began == 0
    assert lab.start() == lab.start()
    assert core.began == 1, "time begins once"
    lab.set("client-1", "ab", Shape(loss=0.5))
    assert core.shapes["ab"]["loss"] == 0.5
    assert core.shapes["ba"]["loss"] == 0.01


def test_what_the_core_refuses_is_told(start_lab: StartLab) -> None:
    lab, _, _ = start_lab()
    with pytest.raises(PlanError, match="there is no link nowhere") as caught:
        lab.set("nowhere", None, Shape())
    assert caught.value.hint == "take another"
    assert lab.status().elapsed == 1.5, "and it goes on"


def test_down_answers_when_all_is_gone(start_lab: StartLab) -> None:
    lab, core, _ = start_lab()
    lab.down()
    assert core.closed
    assert not lab.state.folder.exists()
    assert lab.last is not None
    assert lab.last.elapsed == 1.5
    lab.down()
    with pytest.raises(LabError, match="does not answer"):
        lab.status()


def test_two_at_once(start_lab: StartLab) -> None:
    first, one, _ = start_lab()
    second, two, _ = start_lab()
    assert (first.name, second.name) == ("wan", "wan-2")
    first.down()
    assert second.status().elapsed == 1.5
    assert (one.closed, two.closed) == (True, False)


def test_a_lab_that_ends_meanwhile_has_no_status(start_lab: StartLab, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _, _ = start_lab()
    second, _, _ = start_lab()
    # Both labs were listed, but the second one ends before it is asked for its status.
    second.down()
    assert [(lab.name, status.elapsed) for lab, status in client.statuses([first, second])] == [("wan", 1.5)]
    # A lab that neither answers nor ends is an error.
    monkeypatch.setattr(client, "END_SECONDS", 0.0)
    (first.state.folder / states.SOCKET).unlink()
    with pytest.raises(LabError, match="does not answer"):
        client.statuses([first])


@pytest.mark.parametrize("words", [b"no json\n", b"[]\n", b"{}\n", b'{"do": "dance"}\n', b'{"do": "set"}\n'])
def test_what_is_no_request_is_refused(start_lab: StartLab, words: bytes) -> None:
    lab, _, _ = start_lab()
    with client.connect(lab.state) as caller, caller.makefile("rb") as answers:
        caller.sendall(words)
        assert "not a request" in json.loads(answers.readline())["error"]["cause"]
    assert lab.status().elapsed == 1.5


def test_who_never_ends_a_line_is_hung_up_on(start_lab: StartLab) -> None:
    lab, _, _ = start_lab()
    with client.connect(lab.state) as caller, pytest.raises((BrokenPipeError, ConnectionResetError)):
        caller.sendall(bytes(64 * LONGEST_REQUEST))
    assert lab.status().elapsed == 1.5


def test_a_relay_that_fails_is_told(runtime: Path) -> None:
    lab, state = FakeLab(), states.claim("wan", unique=True)
    lab.broken = "the device is gone"
    ours, theirs = socket.socketpair()
    supervisor = Supervisor(lab, state, theirs.makefile("w"))
    supervisor._check()
    supervisor._check()
    supervisor.end()
    supervisor.serve()
    lines = [json.loads(line) for line in ours.recv(1 << 16).splitlines()]
    assert lines[0] == {"failed": "the device is gone"}
    assert list(lines[1]) == ["status"], "once is enough"
    theirs.close()
    ours.close()


def test_changes_go_over_what_is_there(start_lab: StartLab) -> None:
    lab, core, _ = start_lab()
    (changed,) = changing.change(lab, "client-1", "loss=5%,rtt=100ms", "up")
    assert changed.direction == "ab"
    assert core.shapes["ab"]["loss"] == 0.05
    assert core.shapes["ab"]["delay"] == 0.05
    assert core.shapes["ab"]["rate"] == 100_000_000, "what is not said stays"
    assert core.shapes["ab"]["queue_bytes"] == 65536
    assert core.shapes["ba"]["loss"] == 0.01
    assert len(changing.change(lab, "*", "burst=1%/30%", None)) == 2
    assert core.shapes["ba"]["burst"]["leave"] == 0.3
    assert core.shapes["ba"]["loss"] == 0.0, "bursts replace it"
    changing.change(lab, "client-1", "queue=9 packets", "down")
    assert (core.shapes["ba"]["queue_packets"], core.shapes["ba"]["queue_bytes"]) == (9, None)
    changing.change(lab, "client-1", "wifi", "down")
    assert core.shapes["ba"]["rate"] == 60_000_000
    assert core.shapes["ba"]["burst"] is None, "a profile replaces all"


@pytest.mark.parametrize(
    ("link", "words", "direction", "cause"),
    [
        ("client-9", "loss=5%", None, "no link 'client-9'"),
        ("client-1", "lost=5%", None, "unknown key 'lost'"),
        ("client-1", "loss=500%", None, "500%"),
        ("client-1", "loss=5%", "left", "'left' is no direction"),
        ("client-1", "jitter=1s", None, "jitter"),
    ],
)
def test_impossible_changes_change_nothing(
    start_lab: StartLab, link: str, words: str, direction: str | None, cause: str
) -> None:
    lab, core, _ = start_lab()
    before = {way: dict(shape) for way, shape in core.shapes.items()}
    with pytest.raises((PlanError, LabError), match=cause):
        changing.change(lab, link, words, direction)
    assert core.shapes == before


def test_a_supervisor_that_cannot_make_a_lab_says_why_and_leaves_nothing(runtime: Path) -> None:
    with pytest.raises((LabError, PlanError)) as caught:
        client.start('{"hosts": 3}', "wan")
    assert caught.value.hint
    assert list(states.labs_folder().iterdir()) == []


def test_a_supervisor_whose_order_is_none_is_no_lab(runtime: Path) -> None:
    command = [sys.executable, "-m", "thalweg.lab.supervisor"]
    done = subprocess.run(command, input=b"", capture_output=True, env=dict(os.environ), check=False)
    assert done.returncode != 0
