"""Virtual time: refused plans, missing programs, and jobs inside the guest kernel if it is built."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from thalweg import machine
from thalweg.cli.guest import app
from thalweg.errors import LabError, PlanError
from thalweg.job.common.session import session
from thalweg.lab import guest
from thalweg.plan import Plan

JOB = ["run", "--clock", "virtual", "--model", "payload:256KiB", "--clients", "1", "--rounds", "2"]
PATH = "rate=100mbit,rtt=20ms"
NETWORK = ["--network", "rate=100mbit,rtt=20ms,up.loss=1%"]


@pytest.fixture
def built() -> None:
    """Skip without a guest kernel; fail instead if THALWEG_GUEST=required."""
    try:
        guest.kernel()
    except LabError as error:
        if os.environ.get("THALWEG_GUEST") == "required":
            raise
        pytest.skip(f"{error.cause}; {error.hint}")


def thalweg(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "thalweg", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"stress": {"cpu": 50}}, "stress"),
        ({"transport": {"url": "mqtt://127.0.0.1:0/job"}}, "broker"),
        ({"network": {"emulator": "message"}}, "emulator message"),
    ],
)
def test_what_has_no_virtual_time_is_refused(more: dict[str, Any], word: str) -> None:
    network = {"clock": "virtual", **more.get("network", {})}
    with pytest.raises(PlanError, match=word) as error:
        Plan.of({"model": {"name": "payload:1MiB"}, **more, "network": network})
    assert "clock = 'virtual'" in error.value.cause


def test_rdma_behind_a_limiter_on_its_device_is_refused() -> None:
    plan = {"model": {"name": "payload:1MiB"}, "network": {"clock": "virtual", "limiter": "device", "rate": "1gbit"}}
    Plan.of({**plan, "transport": {"url": "tcp"}})
    with pytest.raises(PlanError, match="waits in a loop") as error:
        Plan.of({**plan, "transport": {"url": "rdma"}})
    assert error.value.hint == "Take network.limiter = 'path'"


def test_no_plan_of_virtual_time_runs_in_real_time() -> None:
    plan = Plan.of({"network": {"clock": "virtual"}, "model": {"name": "payload:1MiB"}})
    with (
        pytest.raises(PlanError, match="have virtual time"),
        session(plan, ["client-1"], print),
    ):
        pass


def test_without_its_kernel_the_hint_is_make_guest(tmp_path: Path) -> None:
    done = thalweg(tmp_path, *JOB, *NETWORK, "--json", XDG_CACHE_HOME=str(tmp_path))
    error = json.loads(done.stdout)["error"]
    assert done.returncode != 0
    assert error["cause"].startswith("there is no guest kernel")
    assert error["hint"] == "Run `thalweg lab guest build`"
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.usefixtures("built")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed: apt install util-linux")
def test_a_guest_ends_with_a_command_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "thalweg", *JOB[:-1], "100000", *NETWORK]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
        while not (guests := [pid for pid in children.read_text().split() if b"linux" in program(pid)]):
            assert job.poll() is None
            time.sleep(0.05)
        watch = os.pidfd_open(int(guests[0]))
        job.kill()
    assert select.select([watch], [], [], 60)[0], "the guest goes on"
    os.close(watch)


def program(pid: str) -> bytes:
    """Return the name of a process's program; b"" if the process has ended."""
    try:
        return os.fsencode(Path(f"/proc/{pid}/exe").readlink().name)
    except OSError:
        return b""


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(("network", "bound"), [([*NETWORK[:1], PATH], 0.0), (NETWORK, 0.05)])
def test_a_job_gives_the_same_times_again(tmp_path: Path, network: list[str], bound: float) -> None:
    """Times may differ by 256 ns, the cost of reading the clock, and with packet loss by 5 %."""
    tables = []
    for _ in range(2):
        done = thalweg(tmp_path, *JOB, *network, "--json")
        assert done.returncode == 0, done.stderr
        table = json.loads(done.stdout)
        record = tmp_path / table.pop("record")
        manifest = json.loads((record / "manifest.json").read_text())
        assert manifest["network"]["relay"]["cpu_seconds"] is None, "time stands still while anything computes"
        parties = parquet.read_table(record / "parties.parquet").to_pylist()
        assert [(row["party"], row["cpu_seconds"]) for row in parties] == [("server", None), ("client-1", None)]
        assert all(row["peak_rss_bytes"] > 0 for row in parties)
        del table["peak_rss_bytes"]
        tables.append(table)
    # An update's message has the seconds that the client measured, as text: 5e-07 is shorter than 2.56e-07.
    bytes_up = [[entry.pop("bytes_up") for entry in table["rounds"]] for table in tables]
    assert bytes_up[0] == pytest.approx(bytes_up[1], abs=16)
    for one, other in zip(leaves(tables[0]), leaves(tables[1]), strict=True):
        assert one == (pytest.approx(other, rel=bound, abs=3e-6) if isinstance(other, float) else other)
    assert [entry["round"] for entry in tables[0]["rounds"]] == [1, 2]


@pytest.mark.usefixtures("built")
def test_nodes_of_a_graph_exchange_in_virtual_time(tmp_path: Path) -> None:
    done = thalweg(
        tmp_path, *JOB[:-4], "--graph", "ring", "--clients", "3", "--rounds", "1", *NETWORK[:1], PATH, "--json"
    )
    assert done.returncode == 0, done.stderr
    exchanged = json.loads(done.stdout)["exchange_seconds"]
    # Two models over a node's own way down take 0.042 s. From node to node there are two links, so a round trip is
    # 0.04 s; half of one is the path, and slow start adds at most five here.
    assert 0.062 < exchanged["median"] < 0.062 + 5 * 0.04


def leaves(value: Any) -> list[Any]:
    """Return all values of a JSON document in order, and the keys of its objects."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in (key, *leaves(value[key]))]
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list) else [value]


def test_folders_that_the_guest_covers_are_there_if_the_program_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, modules = tmp_path / "clone" / ".venv", tmp_path / "clone" / ".venv" / "lib"
    modules.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(guest, "COVERED", (tmp_path,))
    monkeypatch.setattr(sys, "prefix", str(environment))
    monkeypatch.setattr(sys, "path", [str(modules), str(tmp_path / "not-there"), str(tmp_path)])
    lines = guest.script(["job"], ()).splitlines()
    mounts = [line for line in lines if line.startswith("mount")]
    # Python's modules are inside the environment's folder. Except for that and the job's folder, the guest has its own
    # files.
    assert mounts == [
        f"mount -r -t hostfs -o {environment} hostfs {environment}",
        f"mount -t hostfs -o {tmp_path} hostfs {tmp_path}",
    ]
    assert lines[lines.index(mounts[0]) - 1] == f"mkdir -p {environment}"


def test_a_job_that_is_killed_for_want_of_mappings_says_so(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("139\n")
    with pytest.raises(LabError, match=r"signal 11.*vm\.max_map_count"):
        guest._code(tmp_path)
    (tmp_path / "code").write_text("7\n")
    assert guest._code(tmp_path) == 7


BENCH = """
repetitions = 1

[base.job]
clients = 1
rounds = 1

[base.network]
clock = "virtual"
rate = "100mbit"
rtt = "20ms"

[matrix]
model = ["payload:256KiB", "payload:512KiB"]
"""


def bench(folder: Path, **environment: str) -> list[dict[str, Any]]:
    """Return the results of a bench in virtual time that is run from outside its own folder."""
    (folder / "here").mkdir()
    (folder / "bench.toml").write_text(BENCH)
    done = thalweg(folder / "here", "bench", "../bench.toml", "--folder", "../found", "--json", **environment)
    cells: list[dict[str, Any]] = json.loads(done.stdout)["cells"]
    return cells


def test_without_its_kernel_a_bench_says_so(tmp_path: Path) -> None:
    for cell in bench(tmp_path, XDG_CACHE_HOME=str(tmp_path)):
        assert "there is no guest kernel" in json.dumps(cell)


@pytest.mark.usefixtures("built")
def test_a_bench_measures_in_virtual_time(tmp_path: Path) -> None:
    smaller, larger = bench(tmp_path)
    assert smaller["repetitions"] == larger["repetitions"] == 1
    assert set(smaller["cpu_seconds"].values()) == {None}


@pytest.mark.usefixtures("built")
def test_time_inside_is_what_is_slept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = "import time; a = time.monotonic(); time.sleep(3000); print(time.monotonic() - a); raise SystemExit(3)"
    begun = time.monotonic()
    code, said = guest.run([sys.executable, "-c", program])
    assert code == 3
    assert 3000 <= float(said) < 3000.1
    assert time.monotonic() - begun < 300, "nobody waited for it"


@pytest.mark.usefixtures("built")
def test_a_program_that_polls_is_ended_by_the_outer_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LabError, match="the outer limit of virtual time") as error:
        guest.run(["/bin/sh", "-c", "while :; do :; done"], limit=4)
    assert "polls without sleeping" in error.value.hint


def said(*arguments: str, code: int = 0) -> Any:
    """Return what ``thalweg lab guest`` prints as JSON."""
    result = CliRunner().invoke(app, [arguments[0], "--json", *arguments[1:]])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_status_says_whether_the_kernel_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    printed = said("status")
    assert (printed["there"], printed["bytes"]) == (False, None)
    assert Path(printed["kernel"]).is_relative_to(tmp_path)
    assert "run `thalweg lab guest build`" in CliRunner().invoke(app, ["status"]).stdout
    Path(printed["kernel"]).parent.mkdir(parents=True)
    Path(printed["kernel"]).write_bytes(b"kernel")
    assert said("status") == {**printed, "there": True, "bytes": 6}


def test_a_build_that_cannot_be_says_what_is_missing(tmp_path: Path) -> None:
    for program in ("bash", "cat", "cut", "dirname", "sha256sum", "uname", "env"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    done = thalweg(tmp_path, "lab", "guest", "build", "--json", XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path))
    error = json.loads(done.stdout)["error"]
    assert done.returncode != 0
    assert "programs are missing: bc bison flex" in error["cause"]
    assert error["hint"].startswith("apt-get install bc bison flex")
    assert "error: programs" not in done.stderr, "said once"


def test_a_build_that_fails_otherwise_refers_to_what_it_printed(tmp_path: Path) -> None:
    for program in ("bash", "cat", "cut", "dirname", "sha256sum", "uname", "env", "realpath"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    for program in ("bc", "bison", "flex", "gcc", "make", "patch", "xz"):
        (tmp_path / program).symlink_to(str(shutil.which("true")))
    done = thalweg(tmp_path, "lab", "guest", "build", "--json", XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path))
    error = json.loads(done.stdout)["error"]
    assert "its script ended with exit code 127" in error["cause"]
    assert "mkdir" in done.stderr
    assert error["hint"].startswith("Look at what it says above")


@pytest.mark.usefixtures("built")
def test_a_program_runs_inside_and_its_exit_code_is_the_commands() -> None:
    program = ("sh", "-c", "test -e /run/guest/job && echo inside; exit 7")
    assert said("shell", "--", *program, code=7) == {"command": [*program], "exit_code": 7, "output": "inside\n"}


def test_a_shell_needs_a_terminal() -> None:
    result = CliRunner().invoke(app, ["shell"])
    assert isinstance(result.exception, PlanError)
    assert "terminal" in result.exception.cause


def test_in_virtual_time_there_are_no_cpu_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine.cpu_seconds()
    assert before is not None
    assert (machine.cpu_seconds(before) or -1) >= 0
    assert machine.cpu_seconds(None) is None
    monkeypatch.setattr(machine, "has_virtual_time", lambda: True)
    assert machine.cpu_seconds() is machine.cpu_seconds(before) is None
