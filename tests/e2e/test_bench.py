"""``thalweg bench`` from end to end with real runs, also interrupted and failing ones."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start, why_no_lab
from thalweg.record import Record

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
Result = Callable[..., Any]
PLAN = """
repetitions = {repetitions}
[base.job]
clients = 2
rounds = 1
[base.model]
name = "payload:256KiB"
[matrix]
transport = {transports}
"""


def write(folder: Path, *transports: str, repetitions: int = 1) -> str:
    (folder / "compare.toml").write_text(PLAN.format(transports=json.dumps(list(transports)), repetitions=repetitions))
    return "compare.toml"


def test_two_transports(result: Result, tmp_path: Path) -> None:
    printed = result("bench", write(tmp_path, "tcp", "memory", repetitions=2))
    folder = tmp_path / printed["folder"]
    assert (printed["status"], printed["left"], printed["failed"]) == ("complete", 0, 0)
    tcp, memory = printed["cells"]
    for cell in (tcp, memory):
        assert (cell["status"], cell["repetitions"], cell["rounds"]) == ("complete", 2, 2)
        assert 0 < cell["communication_seconds"]["median"] <= cell["round_seconds"]["max"]
        assert cell["update_bytes"] == 2 * 2 * (256 << 10)
        assert 1 <= cell["wire_ratio"] < 1.1
        assert cell["cpu_seconds"]["server"] > 0
        assert cell["peak_rss_bytes"]["server"] > 1 << 20
        assert [Record(folder / path).manifest["status"] for path in cell["records"]] == ["complete", "complete"]
    assert tcp["share_of_bound"] > 0
    assert tcp["cpu_seconds"]["clients"] > 0
    assert memory["cpu_seconds"]["clients"] is None
    assert json.loads((folder / "bench.json").read_text())["cells"] == printed["cells"]
    assert (folder / "bench.csv").read_text().count("\n") == 3
    assert (tmp_path / printed["report"]).is_file()
    seeds = {path.name: Record(path).plan.job.seed for path in (folder / "records").iterdir()}
    assert seeds == {"0001.1": 0, "0002.1": 0, "0001.2": 1, "0002.2": 1}


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_bench_continues_with_the_missing_runs(
    start: Start, result: Result, tmp_path: Path, end: signal.Signals
) -> None:
    program = start("bench", write(tmp_path, "tcp", "memory", repetitions=2), "--no-report")
    folder = tmp_path / program.until("bench: ").removeprefix("bench: ").strip()
    program.until("[1/4]")
    program.process.send_signal(end)
    assert program.end()[0] == (130 if end is signal.SIGINT else -signal.SIGKILL)
    before = {path.name: path.read_text() for path in (folder / "cells").glob("*.json")}
    assert 1 <= len(before) < 4
    preview = result("bench", "--resume", str(folder), "--dry-run")
    assert preview["runs"] == 4 - len(before)
    assert preview["estimate_is_measured"]
    printed = result("bench", "--resume", str(folder), "--no-report")
    assert (printed["status"], [cell["repetitions"] for cell in printed["cells"]]) == ("complete", [2, 2])
    assert {name: (folder / "cells" / name).read_text() for name in before} == before, "they were not run again"
    assert sorted(path.name for path in (folder / "records").iterdir()) == ["0001.1", "0001.2", "0002.1", "0002.2"]


@pytest.mark.skipif(why_no_lab() != "", reason=why_no_lab())
def test_plain_http_beside_thalweg_over_the_same_links(result: Result, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="the program of plain HTTP needs aiohttp")
    http = [sys.executable, str(ROOT / "benches" / "systems" / "rivals" / "http" / "party.py")]
    (tmp_path / "beside.toml").write_text(
        f"""
        repetitions = 1
        limit = 300.0
        base = {{job = {{clients = 2, rounds = 2}}, model = {{name = "payload:256KiB"}}, network = {{profile = "lan"}}}}
        [matrix]
        system = ["thalweg", {{name = "HTTP", command = {json.dumps(http)}}}]
        """
    )
    printed = result("bench", "beside.toml")
    ours, theirs = printed["cells"]
    assert [cell["settings"] for cell in (ours, theirs)] == [{"system": "thalweg"}, {"system": "HTTP"}]
    assert printed["accounting"] == "round"
    for cell in (ours, theirs):
        assert (cell["status"], cell["rounds"], cell["incomplete_rounds"]) == ("complete", 2, 0)
        assert cell["bound_seconds"] < cell["round_seconds"]["min"]
        assert (cell["emulation"], cell["wire_counted"]) == ("packet level", "ip")
        assert 1 < cell["wire_ratio"] < 1.5
        assert cell["cpu_seconds"]["clients"] is not None
        assert cell["peak_rss_bytes"]["server"] > 1 << 20
    assert ours["bound_seconds"] == theirs["bound_seconds"]
    assert (ours["communication_seconds"] is None, theirs["communication_seconds"]) == (False, None)
    (answer,) = printed["answers"]
    assert "HTTP" in answer["sentence"]
    assert "thalweg" in answer["sentence"]
    page = (tmp_path / printed["report"]).read_text()
    assert "Whole rounds are compared" in page
    again = result("bench", "--resume", printed["folder"], "--no-report")
    assert again["cells"] == printed["cells"], "a bench knows its systems from its own plan"


def test_a_cell_that_fails_does_not_stop_the_others(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = start("bench", write(tmp_path, url, "memory"), "--strict").end()
    assert code == 3, err
    assert "failed after" in err
    assert "cell 1 failed: " in out
    (folder,) = (tmp_path / "bench").iterdir()
    failed, done = json.loads((folder / "bench.json").read_text())["cells"]
    assert (failed["status"], failed["failed"], done["status"]) == ("failed", 1, "complete")
    assert "in use" in failed["reasons"][0]
    assert "in use" in (folder / "report.html").read_text(), "the page does not leave it out"


def test_if_all_fail_so_does_the_command(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, out, _ = start("bench", write(tmp_path, f"tcp://127.0.0.1:{taken.getsockname()[1]}"), "--json").end()
    assert code == 1
    assert json.loads(out)["cells"][0]["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ([], "a bench needs its plan, or the folder of one to resume"),
        (["compare.toml", "--resume", "bench"], "a bench needs its plan, or the folder of one to resume"),
        (["--resume", "."], "is not the folder of a bench"),
        (["compare.toml", "--repetitions", "0"], "repetitions is 0, not at least 1"),
    ],
)
def test_wrong_arguments(start: Start, tmp_path: Path, arguments: list[str], cause: str) -> None:
    write(tmp_path, "tcp")
    code, out, err = start("bench", *arguments).end()
    assert code in (1, 2)
    assert cause in err
    assert out == ""
    assert not (tmp_path / "bench").exists()
