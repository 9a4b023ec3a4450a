"""Running labs: jobs and other programs inside, and the clean-up after a process was killed."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Program, Start, why_no_lab
from thalweg import wire
from thalweg.lab import cgroups, namespaces
from thalweg.lab.state import State
from thalweg.record import Record
from thalweg.record.tables import read_table

Run = Callable[..., Any]
# A program that waits on a host of a lab until it is ended.
SLEEP = [sys.executable, "-c", "import sys, time; print('here', flush=True); time.sleep(600)"]
ADDRESS = [sys.executable, "-c", "import socket; print(socket.gethostbyname('server'), flush=True)"]
TIMEOUT = 30.0


pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")]


@pytest.fixture(autouse=True)
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the labs of this test alone. A test that leaves a lab behind fails, and the lab is taken down."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    folder = runtime / "thalweg" / "labs"
    yield folder
    left = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    for state in states(folder):
        if state.alive:
            os.kill(state.pid, signal.SIGTERM)
            ended(state.pid)
    assert left == [], "labs were left"


def states(folder: Path) -> list[State]:
    return [wire.decode(State, path.read_text()) for path in sorted(folder.glob("*/lab.json"))]


def only(folder: Path) -> State:
    """The only lab, once it is ready."""
    until(lambda: [state for state in states(folder) if state.hosts])
    (state,) = states(folder)
    return state


def until(look: Callable[[], Any]) -> Any:
    """Wait until ``look`` returns a true value, and return that."""
    deadline = time.monotonic() + TIMEOUT
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


def ended(pid: int) -> bool:
    """Wait for the end of a process; return whether it has ended."""
    try:
        watch = os.pidfd_open(pid)
    except OSError as error:
        return error.errno == errno.ESRCH
    try:
        return bool(select.select([watch], [], [], TIMEOUT)[0])
    finally:
        os.close(watch)


def nothing_left_of(state: State) -> bool:
    """Return whether a lab's namespaces have no process, and its supervisor and folder do not exist any more."""
    left = {
        "inside": namespaces.inside(state.hosts.values()),
        "supervisor": state.alive,
        "folder": state.folder.exists(),
    }
    assert not any(left.values()), left
    return True


def groups_of(pid: int) -> list[Path]:
    hierarchy = cgroups.detect()
    return [] if hierarchy is None else list(hierarchy.root.glob(f"thalweg-{pid}-*"))


def begin(program: Program) -> int:
    """Wait until a SLEEP program runs in a lab; return its process id."""
    assert program.process.stdout is not None
    assert program.process.stdout.readline() == "here\n"
    path = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children")
    (child,) = path.read_text().split()
    return int(child)


def test_a_run_in_a_network(result: Run, tmp_path: Path) -> None:
    done = result(
        "run", "--model", "payload:1MiB", "--clients", "2", "--rounds", "2", "--congestion", "cubic",
        "--network", "rate=50mbit,rtt=10ms,loss=1%",
    )  # fmt: skip
    assert (done["emulation"], done["emulation_reason"]) == ("packet level", None)
    assert [entry["complete"] for entry in done["rounds"]] == [True, True]
    record = Record(tmp_path / done["record"])
    manifest = record.manifest
    assert manifest["emulation"] == "packet level"
    assert manifest["network"]["topology"] == "star"
    assert manifest["network"]["congestion_control"] == "cubic"
    assert manifest["network"]["relay"]["failure"] is None
    assert manifest["address"].startswith("tcp://10.")
    least = manifest["bound"]["round_seconds"]
    assert all(entry["communication_seconds"] > least for entry in done["rounds"]), "nothing beats the links"
    links = read_table(record.path, "links")
    assert {(row["source"], row["target"]) for row in links} == {
        ("client-1", "server"), ("server", "client-1"), ("client-2", "server"), ("server", "client-2"),
    }  # fmt: skip
    for row in links:
        assert json.loads(row["nominal"])["loss"] == 0.01
        assert row["bytes_out"] > 2 << 20
        assert row["packets_in"] == row["packets_out"] + row["lost"] + row["queue_drops"]
        assert row["delay_p50"] >= 0.005
    assert sum(row["lost"] for row in links) > 0
    parties = read_table(record.path, "parties")
    assert [row["party"] for row in parties] == ["server", "client-1", "client-2"]
    assert all(row["cpu_seconds"] > 0 and row["peak_rss_bytes"] > 1 << 20 for row in parties)
    assert {row["congestion_control"] for row in parties} == {"cubic"}
    assert sum(row["retransmitted_segments"] for row in parties) > 0
    queues = read_table(record.path, "queues")
    ends = [transfer["receive_end"] or 0.0 for entry in record.entries for transfer in entry["transfers"]]
    assert {row["link"] for row in queues} == {"client-1", "client-2"}
    assert 0 <= min(row["seconds"] for row in queues) < max(ends), "queues and transfers have one clock"
    assert not list(record.path.glob("*.jsonl.part"))


def test_a_run_that_is_killed_leaves_nothing(start: Start, tmp_path: Path, labs: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        job = { clients = 2, rounds = 1000 }
        model.name = "payload:256KiB"
        network = { rate = "20mbit", emulator = "packet" }
        stress = { cpu_quota = 0.5, network = "1mbit" }
        """
    )
    program = start("run", str(plan))
    program.until("round 1/1000")
    state = only(labs)
    pid = program.process.pid
    assert len(groups_of(pid)) == 1
    program.process.kill()
    program.end()
    assert ended(state.pid), "the supervisor outlived its run"
    assert nothing_left_of(state)
    assert groups_of(pid) == []


def test_a_supervisor_that_is_killed_ends_the_run_with_that_reason(start: Start, tmp_path: Path, labs: Path) -> None:
    program = start("run", "--model", "payload:1MiB", "--clients", "2", "--rounds", "1000", "--network", "rate=20mbit")
    program.until("round 1/1000")
    state = only(labs)
    os.kill(state.pid, signal.SIGKILL)
    code, _, err = program.end()
    assert code == 1
    assert "error: the supervisor of the lab was killed by signal 9" in err
    assert "hint: " in err
    assert nothing_left_of(state)
    (folder,) = (tmp_path / "runs").iterdir()
    record = Record(folder)
    assert record.manifest["status"] == "failed"
    assert len(record.entries) >= 1, "the rounds before are kept"
    assert "killed by signal 9" in (folder / "log.txt").read_text()
    assert [row["party"] for row in read_table(folder, "parties")] == ["server", "client-1", "client-2"]


def test_stress(start: Start, tmp_path: Path, labs: Path) -> None:
    if shutil.which("stress-ng") is None:
        pytest.skip("stress-ng is not installed")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        job = { clients = 3, rounds = 3 }
        model.name = "payload:1MiB"
        network = { rate = "50mbit", rtt = "4ms", emulator = "packet" }
        stress = { cpu = 99, cpu_quota = 0.5, network = "10mbit", parties = ["client-1", "client-2"] }
        """
    )
    program = start("run", str(plan), "--json")
    code, out, err = program.end()
    assert code == 0, err
    folder = tmp_path / json.loads(out)["record"]
    parties = {row["party"]: row for row in read_table(folder, "parties")}
    assert [parties[name]["cpu_quota"] for name in ("server", "client-1", "client-3")] == [None, 0.5, None]
    assert parties["client-3"]["stress"] is None
    for name in ("client-1", "client-2"):
        got = json.loads(parties[name]["stress"])
        assert got["cpu"]["bogo_ops_per_second"] > 0
        assert got["network"]["target"] == "server"
        assert got["network"]["failure"] is None
        assert 0 < got["network"]["bits_per_second"] < 12e6, "it keeps to its rate"
    assert groups_of(program.process.pid) == []


def test_pairs_of_clients_flood_each_other(result: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        job = { clients = 2, rounds = 2 }
        model.name = "payload:256KiB"
        network = { rate = "50mbit", topology = "mesh", emulator = "packet" }
        stress = { network = "5mbit", network_mode = "clients" }
        """
    )
    done = result("run", str(plan))
    for row in read_table(tmp_path / done["record"], "parties")[1:]:
        flow = json.loads(row["stress"])["network"]
        assert (flow["source"], flow["target"]) == ("client-2", "client-1")
        assert flow["bytes"] > 0


def test_any_program_in_a_lab_of_its_own(start: Start) -> None:
    code, out, err = start("lab", "exec", "--network", "lan", "--host", "client1", "--", *ADDRESS).end()
    assert (code, out) == (0, "10.77.0.1\n"), err
    script = [sys.executable, "-c", "raise SystemExit(7)"]
    code, out, _ = start("lab", "exec", "--network", "lan", "--json", "--", *script).end()
    assert code == 7
    assert json.loads(out) == {"lab": "lan", "host": "client-1", "command": script, "exit_code": 7}
    assert start("lab", "exec", "--network", "lan", "--", "no-such-program").end()[0] == 127


def test_a_shell_in_a_lab(tmp_path: Path) -> None:
    shell = [sys.executable, "-m", "thalweg", "lab", "shell", "--network", "lan", "--clients", "3", "--host", "server"]
    words = "grep -c client-3 /etc/hosts; cat /proc/net/dev | grep -c eth0; exit 3\n"
    done = subprocess.run(
        shell,
        input=words,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "SHELL": "/bin/sh"},
    )
    assert (done.returncode, done.stdout) == (3, "2\n1\n"), done.stderr
    assert "client-1, client-2, client-3" in done.stderr


def test_two_labs_side_by_side(start: Start, result: Run, labs: Path) -> None:
    first = result("lab", "up", "--network", "lan", "--clients", "1")
    second = result("lab", "up", "--network", "lan")
    assert (first["name"], second["name"]) == ("lan", "lan-2")
    code, _, err = start("lab", "up", "--network", "lan", "--name", "lan").end()
    assert code == 1
    assert "a lab named lan runs already" in err
    assert "thalweg lab down lan" in err
    code, _, err = start("lab", "exec", "--", *ADDRESS).end()
    assert code == 1
    assert "several labs run: lan, lan-2" in err
    printed = result("lab", "status")["labs"]
    assert [lab["name"] for lab in printed] == ["lan", "lan-2"]
    assert list(printed[0]["hosts"]) == ["client-1", "server"]
    assert [len(lab["status"]["links"]) for lab in printed] == [2, 4]
    before = states(labs)
    assert not {host.inode for host in before[0].hosts.values()} & {host.inode for host in before[1].hosts.values()}
    assert result("lab", "down", "lan")["down"] == ["lan"]
    assert start("lab", "exec", "--", *ADDRESS).end()[:2] == (0, "10.77.0.1\n")
    assert result("lab", "down", "--all")["down"] == ["lan-2"]
    assert all(nothing_left_of(state) for state in before)
    assert result("lab", "status") == {"labs": []}


def test_down_ends_what_runs_inside(start: Start, result: Run, labs: Path) -> None:
    result("lab", "up", "--network", "lan")
    state = only(labs)
    program = start("lab", "exec", "--", *SLEEP)
    pid = begin(program)
    assert result("lab", "down")["down"] == ["lan"]
    assert program.end()[0] == 128 + signal.SIGTERM
    assert ended(pid)
    assert nothing_left_of(state)


def test_what_a_killed_supervisor_left_is_cleaned_up(start: Start, result: Run, labs: Path) -> None:
    result("lab", "up", "--network", "lan", "--name", "one")
    state = only(labs)
    program = start("lab", "exec", "--", *SLEEP)
    pid = begin(program)
    other = result("lab", "up", "--network", "lan", "--name", "two")
    os.kill(state.pid, signal.SIGKILL)
    assert ended(state.pid)
    code, out, err = start("lab", "status", "--json").end()
    assert code == 0
    assert "removed what the lab one left" in err
    assert [lab["name"] for lab in json.loads(out)["labs"]] == ["two"], "the living are left alone"
    assert ended(pid), "a program outlived its network"
    assert program.end()[0] == 128 + signal.SIGTERM
    assert nothing_left_of(state)
    assert Path(f"/proc/{other['pid']}").exists()
    result("lab", "down")


def test_a_link_is_changed_while_it_runs(start: Start, result: Run) -> None:
    result("lab", "up", "--network", "rate=10mbit,rtt=10ms")
    done = result("lab", "set", "client-1", "loss=5%", "rate=5mbit", "--direction", "up")
    (change,) = done["changed"]
    assert (change["link"], change["direction"]) == ("client-1", "ab")
    links = result("lab", "status")["labs"][0]["status"]["links"]
    shapes = {(link["link"], link["direction"]): link["shape"] for link in links}
    assert {key: shapes["client-1", "ab"][key] for key in ("rate", "delay", "loss")} == {
        "rate": 5_000_000,
        "delay": 0.005,
        "loss": 0.05,
    }
    assert shapes["client-1", "ba"]["loss"] == 0.0
    result("lab", "set", "*", "down=true")
    connect = "import socket; socket.create_connection(('server', 9), timeout=0.3)"
    code, _, err = start("lab", "exec", "--", sys.executable, "-c", connect).end()
    assert code == 1
    assert "imeout" in err or "timed out" in err, "nothing comes through"
    result("lab", "set", "*", "down=false")
    code, _, err = start("lab", "exec", "--", sys.executable, "-c", connect).end()
    assert "ConnectionRefusedError" in err, "and now it does"
    result("lab", "down")


@pytest.mark.parametrize(
    ("arguments", "code", "cause", "hint"),
    [
        (["down"], 1, "no lab runs", "lab up"),
        (["exec", "--lab", "gone", "--", "true"], 1, "there is no lab gone", "lab up"),
        (
            ["exec", "--network", "lan", "--host", "client-9", "--", "true"],
            1,
            "no host 'client-9'",
            "client-1, client-2",
        ),
        (["exec", "--network", "lan", "--lab", "a", "--", "true"], 2, "--lab names a lab that runs", "one of them"),
        (["up"], 2, "no network is given", "--network"),
        (["up", "--network", "wlan"], 2, "unknown profile 'wlan'", "lan"),
        (["up", "--network", "lan", "--name", "a/b"], 1, "'a/b' cannot name a lab", "letters"),
        (["set", "client-1", "loss=5%"], 1, "no lab runs", "lab up"),
    ],
)
def test_errors_say_what_to_do(start: Start, arguments: Sequence[str], code: int, cause: str, hint: str) -> None:
    got, _, err = start("lab", *arguments).end()
    assert got == code, err
    assert cause in err.splitlines()[-2]
    assert hint in err.splitlines()[-1]


def bare(tool: str, *arguments: str) -> tuple[int, str]:
    """Run `lab up` in an environment without this tool; return exit code and output."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    lab = [sys.executable, "-m", "thalweg", "lab", "up", "--network", "lan"]
    done = subprocess.run([tool, *arguments, *lab], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


def test_without_permission_it_says_so() -> None:
    code, err = bare("setpriv", "--bounding-set=-net_admin,-sys_admin")
    assert code == 1
    assert "error: " in err
    assert "root" in err.splitlines()[-1]


def test_without_tun_it_says_so() -> None:
    hide = 'mount -t tmpfs none /dev/net && exec "$@"'
    code, err = bare("unshare", "--mount", "sh", "-c", hide, "sh")
    assert code != 0
    assert "/dev/net/tun" in err
    assert err.splitlines()[-1].startswith("hint: ")
