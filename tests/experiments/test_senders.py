"""Parsing the output of ``ss`` about senders, and the timeline from a run's samples."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from experiments import goodput, senders
from experiments.measured import rounded
from tests.report import records
from thalweg.report.source import read_run

SAID = """\
0 0    10.77.0.2:40001 10.77.0.1:7070 cubic wscale:9,9 rto:240 rtt:40.2/0.3 mss:1448 pmtu:1500 rcvmss:536 advmss:1448 \
cwnd:40 ssthresh:28 bytes_sent:90000 bytes_retrans:2896 bytes_acked:60000 unacked:20 retrans:1/3 lost:2 sacked:4 \
snd_wnd:57920
0 0    10.77.0.2:40002 10.77.0.1:7071 bbr mss:1448 cwnd:10
not a socket
"""


def test_the_numbers_of_ss_are_by_port() -> None:
    cell_numbers = senders.parsed(SAID)
    assert list(cell_numbers) == ["40001", "40002"]
    assert cell_numbers["40002"] == {"mss": 1448, "cwnd": 10, "again": 0, "repeats": 0}
    line = senders.timeline([(0.0, cell_numbers["40001"])])
    assert line == {"seconds": [0.0], "cwnd": [40], "in_flight": [15], "window": [40.0], "repeats": [3]}


def socket(acked: int, cwnd: int = 10) -> dict[str, int]:
    return {"bytes_acked": acked, "cwnd": cwnd, "mss": 1000, "snd_wnd": 20_000, "again": 0, "repeats": 0}


def samples(folder: Path, name: str = "0001.1") -> Path:
    """Write samples each second: an update of 1 MB from second 2 to 6, a rival all the time, a control connection."""
    acked = [0, 100, 200, 300_000, 600_000, 900_000, 1_000_000, 1_000_100]
    rows = [
        {"seconds": 10.0 + at, "sockets": {"1": socket(done, at), "2": socket(500_000 * at), "3": socket(50)}}
        for at, done in enumerate(acked)
    ]
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}{senders.SUFFIX}"
    file.write_text(json.dumps({"rivals": [2], "samples": [*rows, {"seconds": 18.0, "sockets": {}}]}))
    return file


def test_a_timeline_is_of_the_update_alone(tmp_path: Path) -> None:
    cell_numbers = senders.of_file(samples(tmp_path))
    assert cell_numbers["timeline"]["seconds"] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert cell_numbers["timeline"]["cwnd"] == [2, 3, 4, 5, 6]
    assert cell_numbers["timeline"]["window"] == [20.0] * 5
    assert cell_numbers["rivals"] == {"rival 1": 8 * 500_000}


def test_a_run_that_nobody_could_watch_has_no_timeline(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"rivals": [], "samples": []}))
    assert senders.of_file(file) == {"timeline": None, "rivals": {}}


def test_rivals_count_among_the_flows(tmp_path: Path) -> None:
    alone: dict[str, Any] = goodput.of_run(read_run(records.make(tmp_path / "run", names=("client-1",))))
    cell_numbers = goodput.with_senders(alone, samples(tmp_path))
    rates = [alone["flows"]["client-1"], 4e6]
    assert list(cell_numbers["flows"].values()) == rates
    assert cell_numbers["rivals"] == 4e6
    assert cell_numbers["jain"] == rounded(goodput.jain(rates))
    assert goodput.joined([cell_numbers, cell_numbers])["timeline"] == cell_numbers["timeline"]


def test_a_process_descends_from_those_that_started_it() -> None:
    assert os.getppid() in senders.ancestors(os.getpid())
