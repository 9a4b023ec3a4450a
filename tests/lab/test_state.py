"""Only one supervisor at a time has a lab's name. A dead supervisor's folder does not count as a running lab."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.errors import LabError
from thalweg.lab import namespaces, reaper
from thalweg.lab import state as states
from thalweg.lab.values import Host


def gone() -> tuple[int, int]:
    """The id and start time of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = states.start_time(process.pid)
    process.communicate(b"\n")
    assert started is not None
    return process.pid, started


def written(name: str, pid: int, started: int) -> states.State:
    state = states.State(name, pid, started, {"server": Host(inode=-1)})
    state.folder.mkdir(parents=True)
    state.write()
    return state


def test_a_name_is_taken_once(runtime: Path) -> None:
    first = states.claim("wan", unique=False)
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700
    with pytest.raises(LabError, match="a lab named wan runs already") as caught:
        states.claim("wan", unique=False)
    assert "thalweg lab down wan" in caught.value.hint
    assert [states.claim("wan", unique=True).name for _ in range(2)] == ["wan-2", "wan-3"]
    states.release(first)
    assert states.claim("wan", unique=False).name == "wan"
    assert all(not path.name.startswith(".") for path in states.labs_folder().iterdir())


def test_a_lab_that_ends_while_others_look_hides_no_other(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    started = states.start_time(pid) or 0
    ending, other = (written(name, pid, started) for name in ("ending", "other"))
    listed = Path.is_dir

    def is_dir(path: Path) -> bool:
        """Answer for a folder, and remove the ending lab's folder right after the answer."""
        there = listed(path)
        if path == ending.folder:
            states.release(ending)
        return there

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert states.live() == [other]
    assert not list(states.dead())


def test_a_lab_that_is_released_leaves_nothing_for_a_reaper(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    state = written("wan", pid, states.start_time(pid) or 0)
    seen = []
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: seen.append(list(states.dead())))
    states.release(state)
    assert seen == [[]], "half removed, it is nobody's left-overs"
    assert states.live() == []


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a" * 65, "ä"])
def test_what_cannot_be_a_name(runtime: Path, name: str) -> None:
    with pytest.raises(LabError, match="cannot name a lab"):
        states.claim(name, unique=True)


def test_a_folder_that_cannot_be_written(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (runtime / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "file"))
    with pytest.raises(LabError, match="cannot write") as caught:
        states.claim("wan", unique=True)
    assert "root" in caught.value.hint
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="emulated networks need root: cannot write"):
        states.claim("wan", unique=True)


def test_a_process_is_known_by_id_and_start_time() -> None:
    started = states.start_time(os.getpid())
    assert started is not None
    assert states.is_alive(os.getpid(), started)
    assert not states.is_alive(os.getpid(), started + 1), "another process has that id now"
    assert not states.is_alive(*gone())
    zombie = os.fork()
    if zombie == 0:
        os._exit(0)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    assert states.start_time(zombie) is None, "a process that has ended and is not waited for does not run"
    os.waitpid(zombie, 0)


def test_a_lab_is_found_by_name_or_because_it_is_the_only_one(runtime: Path) -> None:
    with pytest.raises(LabError, match="no lab runs"):
        states.find(None)
    pid, started = os.getpid(), states.start_time(os.getpid()) or 0
    written("a", pid, started)
    assert states.find(None).name == "a"
    written("b", pid, started)
    with pytest.raises(LabError, match="several labs run: a, b"):
        states.find(None)
    with pytest.raises(LabError, match="there is no lab c"):
        states.find("c")
    assert states.find("b").name == "b"


def test_the_reaper_takes_the_dead_and_leaves_the_living(runtime: Path) -> None:
    written("alive", os.getpid(), states.start_time(os.getpid()) or 0)
    written("dead", *gone())
    pid, started = gone()
    (states.labs_folder() / f".{pid}-{started}").mkdir()
    (states.labs_folder() / "strange").mkdir()
    (states.labs_folder() / "strange" / states.FILE).write_text('{"pid": "many"}')
    assert [state.name for state in states.live()] == ["alive"]
    assert sorted(reaper.reap()) == sorted([f".{pid}-{started}", "dead", "strange"])
    assert [path.name for path in states.labs_folder().iterdir()] == ["alive"]
    assert reaper.reap() == []


def test_folders_of_other_users_are_not_believed(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written("dead", *gone())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert states.live() == []
    assert reaper.reap() == []
    with pytest.raises(LabError, match="another user's"):
        states.claim("wan", unique=True)
    assert (states.labs_folder() / "dead").is_dir()


def test_processes_outside_of_labs_are_left_alone() -> None:
    own = Path("/proc/self/ns/net").stat().st_ino
    host = Host(inode=own, cookie=namespaces.own_cookie())
    assert namespaces.inside([host]) == [], "whatever a folder says"


def test_hosts_have_two_names() -> None:
    hosts = {
        "server": Host(ipv4="10.77.0.1", ipv6="fd77::1"),
        "client-12": Host(ipv4="10.77.0.2"),
    }
    assert states.hosts_file(hosts).splitlines()[2:] == [
        "10.77.0.1 server",
        "fd77::1 server",
        "10.77.0.2 client-12 client12",
    ]
    state = states.State("wan", 1, 1, hosts)
    assert state.host("client12") == state.host("client-12") == hosts["client-12"]
    with pytest.raises(LabError, match="no host 'client-1'"):
        state.host("client-1")
