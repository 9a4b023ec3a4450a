"""Whole runs of Flower apps: over several transports, with failures, and on several machines."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from tests.e2e.conftest import why_no_lab
from tests.ports import free_ports
from thalweg.cli.summary import show_flower
from thalweg.errors import AppError, PlanError, RoundError
from thalweg.flower.hosting import FlowerResult
from thalweg.flower.run import plan_of, run
from thalweg.job.star.attendance import sentences
from thalweg.record import Record
from thalweg.ui.progress import LineProgress

APPS = Path(__file__).parent / "apps"
LIMIT = 90.0
MQTT = pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto is not installed")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="shared memory by descriptors is Linux's")
# The keys of the JSON that a run prints.
KEYS = ["rounds", "metrics", "peak_rss_bytes", "record"]
ROUND = ["round", "seconds", "communication_seconds", "replies", "errors", "folded"]


def ran(name: str, place: Path, run_config: str = "", **overrides: Any) -> FlowerResult:
    """Run an app of the tests; without a named transport in this process."""
    said = {"transport.url": "memory", "record.folder": str(place), **overrides}
    return run(plan_of(APPS / name, said, [run_config]), LineProgress())


def over(url: str, **more: Any) -> dict[str, Any]:
    """Return the overrides of a run over a transport whose nodes share one process."""
    return {"transport.url": url, "app.processes": 1, **more}


def states(result: FlowerResult, number: int = 1) -> dict[str, tuple[str, str | None]]:
    """Return each node's state in a round, and its reason."""
    (entry,) = [one for one in Record(result.record.path).rounds() if one["round"] == number]
    return {one["client"]: (one["state"], one["reason"]) for one in entry["clients"]}


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["numpy_messages", "numpy_legacy", "legacy_workflow"])
def test_apps_of_all_kinds_run_and_leave_a_record(tmp_path: Path, name: str) -> None:
    result = ran(name, tmp_path)
    said = json.loads(json.dumps(result.table()))
    assert list(said) == KEYS
    assert [list(row) for row in said["rounds"]] == [ROUND] * 3
    folded = name == "numpy_messages"
    assert [(row["round"], row["replies"], row["errors"], row["folded"]) for row in said["rounds"]] == [
        (number, 8, 0, folded) for number in (1, 2, 3)
    ]
    assert [row["round"] for row in said["metrics"]] == [1, 2, 3]
    assert all("loss" in row["evaluate"] for row in said["metrics"])
    record = Record(Path(said["record"]))
    assert record.manifest["status"] == "complete"
    # The number is known only for Flower's own loop of rounds. The other apps have the legacy loop or their own.
    assert record.manifest.get("strategy") == ("FedAvg" if folded else None)
    assert record.plan.job.rounds == 3
    entries = record.entries
    assert all(entry["complete"] and entry["participants"] == 4 for entry in entries)
    assert all(entry["loss"] is not None and entry["bytes_down"] > 0 < entry["bytes_up"] for entry in entries)
    assert {part["usage"]["train_seconds"] >= 0 for entry in entries for part in entry["clients"]} == {True}


@pytest.mark.e2e
@pytest.mark.parametrize(
    "transport", ["tcp", "grpc", pytest.param("shm", marks=LINUX), pytest.param("mqtt", marks=MQTT)]
)
def test_the_bits_are_the_same_over_any_transport(tmp_path: Path, transport: str) -> None:
    models = []
    for place, url in (("near", "memory"), ("far", transport)):
        output = tmp_path / f"{place}.npz"
        result = ran(
            "numpy_messages",
            tmp_path,
            f"num-server-rounds=2 output='{output}'",
            **over(url, **{"app.fold": "off"}),
        )
        assert [row["errors"] for row in result.rows] == [0, 0]
        models.append(dict(np.load(output)))
    for key, value in models[0].items():
        np.testing.assert_array_equal(value, models[1][key])


@pytest.mark.e2e
def test_a_run_goes_on_over_links_that_lose_chunks(tmp_path: Path) -> None:
    fault = {"loss": 0.2, "duplicate": 0.1, "corrupt": 0.1, "reorder": 0.2}
    result = ran("numpy_messages", tmp_path, **over("udp", **{"layers.fault": fault}))
    assert [(row["replies"], row["errors"]) for row in result.rows] == [(8, 0)] * 3


def coverage_of(said: Mapping[str, Any], output: Path) -> float:
    """Check the model of a folded run, whose clients add 1 in each round; return the mean coverage of its replies."""
    assert [(row["replies"], row["errors"], row["folded"]) for row in said["rounds"]] == [(2, 0, True)] * 2
    model = dict(np.load(output))
    assert model.pop("steps") == 2, "what becomes another type in the mean comes whole"
    for array in model.values():
        # If no client's element arrived in a round, the element stays as it was.
        assert set(np.unique(array)) <= {0.0, 1.0, 2.0}
        assert (array == 2).mean() > 0.5
    parts = [part for entry in Record(Path(said["record"])).rounds() for part in entry["clients"]]
    for part in parts:
        assert part["state"] == ("whole" if part["coverage"] == 1 else "partial"), part
    return float(np.mean([part["coverage"] for part in parts]))


@pytest.mark.e2e
@pytest.mark.parametrize("transport", ["udp", "ltp"])
def test_parts_of_folded_replies_may_be_missing(tmp_path: Path, transport: str) -> None:
    output = tmp_path / "model.npz"
    results = []
    for resend in (False, True):
        more: dict[str, Any] = {"layers.fault": {"loss": 0.1}, "repair.resend": resend}
        result = ran("adder", tmp_path, f"output='{output}'", **over(transport, **more))
        results.append(coverage_of(result.table(), output))
    assert 0.8 < results[0] < results[1] == 1


# Each run has a process of its own, because in one process a second run would use sockets in the first run's network.
@pytest.mark.e2e
@pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-")
@pytest.mark.parametrize(("transport", "option"), [("ltp", "close_percent=90"), ("unifl", "budget=0.1")])
def test_what_links_lose_of_folded_replies_is_not_sent_again(tmp_path: Path, transport: str, option: str) -> None:
    output = tmp_path / "model.npz"
    words = ("--transport", transport, "--option", option, "--no-resend", "--run-config", f"output='{output}'")
    network = ("--network", "rate=50mbit,delay=5ms,loss=5%")
    said = command("run", str(APPS / "adder"), *words, *network, "--record", str(tmp_path))
    assert 0.85 < coverage_of(said, output) < 1


def test_a_flower_app_has_no_other_way_out(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"repair\.policy has no effect for a Flower app"):
        ran("adder", tmp_path, **over("ltp", **{"repair.resend": False, "repair.policy": "zero"}))


@pytest.mark.e2e
def test_the_same_seed_gives_the_same_bits_folded_too(tmp_path: Path) -> None:
    models = []
    for place in ("first", "second"):
        output = tmp_path / f"{place}.npz"
        ran("numpy_messages", tmp_path, f"output='{output}'", **{"job.seed": 3, "aggregation.deterministic": True})
        models.append(dict(np.load(output)))
    for key, value in models[0].items():
        np.testing.assert_array_equal(value, models[1][key])


@pytest.mark.e2e
def test_a_client_that_raises_is_an_error_in_each_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = ran("faulty", tmp_path, "fault='raises'")
    assert [(row["replies"], row["errors"]) for row in result.rows] == [(3, 1)] * 2
    raised = "<class 'ValueError'>:<'this client cannot train'> at faulty/client_app.py:22"
    assert states(result)["client-1"] == ("rejected", raised)
    (line,) = sentences(result.absent, len(result.rows))
    assert line == f"client-1 is in 0 of 2 means: {raised}"
    show_flower(result)
    assert line in capsys.readouterr().out


@pytest.mark.e2e
def test_a_reply_over_the_budget_is_an_error(tmp_path: Path) -> None:
    result = ran("faulty", tmp_path, "fault='oversized' reply-mib=2", **{"app.largest_reply": 1 << 20})
    assert [(row["replies"], row["errors"]) for row in result.rows] == [(3, 1)] * 2
    state, reason = states(result)["client-1"]
    assert state == "rejected"
    assert "1048576 is the most" in (reason or "")


@pytest.mark.e2e
def test_a_client_that_crashes_is_gone_and_the_run_goes_on(tmp_path: Path) -> None:
    result = ran("faulty", tmp_path, "fault='exits'", **{"transport.url": "tcp"})
    assert [(row["replies"], row["errors"]) for row in result.rows] == [(3, 1), (3, 0)]
    assert states(result)["client-1"] == ("lost", "ended with exit code 3")
    assert sorted(states(result, 2)) == ["client-2", "client-3", "client-4"]


@pytest.mark.e2e
def test_a_client_that_never_answers_is_late(tmp_path: Path) -> None:
    # The nodes are in a process, which the run ends.
    words = ("--run-config", "fault='silent' timeout=1.0 num-server-rounds=1", "--clients", "2", "--transport", "tcp")
    said = command("run", str(APPS / "faulty"), *words, "--record", str(tmp_path))
    assert [(row["replies"], row["errors"]) for row in said["rounds"]] == [(1, 0)]
    (entry,) = Record(Path(said["record"])).rounds()
    assert [(one["client"], one["state"]) for one in entry["clients"]] == [("client-1", "late"), ("client-2", "whole")]


@pytest.mark.e2e
def test_a_client_app_that_cannot_be_imported_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"in 1 of 1 rounds all 4 clients failed to train; client-1: .*a_module_that_no"):
        ran("unimportable", tmp_path)
    (place,) = tmp_path.iterdir()
    (entry,) = Record(place).rounds()
    assert [one["state"] for one in entry["clients"]] == ["rejected"] * 4
    assert re.search(r"a_module_that_nobody_has.* at \S+\.py:\d+$", entry["clients"][0]["reason"] or "")


def failed(app: str, config: str, folder: Path) -> tuple[Record, dict[str, str]]:
    """Run an app whose two clients cannot train; return its record and the error that the command prints."""
    words = ("--run-config", config, "--transport", "tcp", "--record", str(folder))
    done = subprocess.run(
        program("run", str(APPS / app), *words, "--clients", "2"),
        check=False, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (place,) = folder.iterdir()
    record = Record(place)
    assert record.manifest["status"] == "failed"
    error: dict[str, str] = json.loads(done.stdout)["error"]
    return record, error


@pytest.mark.e2e
def test_a_run_whose_clients_all_fail_has_failed(tmp_path: Path) -> None:
    record, error = failed("faulty", "fault='raises' faulty-partition=-1", tmp_path)
    said = "in 2 of 2 rounds all 2 clients failed to train; client-1: <class 'ValueError'>:"
    for reason in (record.manifest["reason"], error["cause"]):
        assert reason.startswith(said)
        assert "at faulty/client_app.py:22; then the ServerApp raised KeyError" in reason
    assert str(record.path / "log.txt") in error["hint"]
    assert "this client cannot train" in (record.path / "log.txt").read_text()


@pytest.mark.e2e
def test_a_run_ends_when_the_nodes_that_the_app_waits_for_cannot_come_back(tmp_path: Path) -> None:
    # The strategy wants both nodes.
    for faulty, wants in ((0, "waits for 2 nodes, and 1"), (-1, "needs nodes, and none")):
        place = tmp_path / str(faulty)
        with pytest.raises(RoundError, match=f"the app {wants} can still take part: client-1 ended with"):
            ran("faulty", place, f"fault='exits' faulty-partition={faulty}", **{
                "transport.url": "tcp", "job.clients": 2,
            })  # fmt: skip
        (record,) = place.iterdir()
        assert Record(record).manifest["status"] == "failed"


@pytest.mark.e2e
def test_a_legacy_run_whose_clients_all_fail_has_failed(tmp_path: Path) -> None:
    record, error = failed("legacy_faulty", "faulty-partition=-1", tmp_path)
    cause = error["cause"]
    assert cause == record.manifest["reason"].partition(". Correct ")[0]
    assert cause.startswith("in 2 of 2 rounds all 2 clients failed to train; client-1: <class 'ValueError'>:")
    assert "at legacy_faulty/client_app.py:19" in cause


@pytest.mark.e2e
@pytest.mark.parametrize(("faulty", "wants"), [(0, "waits for 2 nodes, and 1"), (-1, "needs nodes, and none")])
def test_a_legacy_run_ends_when_the_nodes_that_it_waits_for_cannot_come_back(
    tmp_path: Path, faulty: int, wants: str
) -> None:
    with pytest.raises(RoundError, match=f"the app {wants} can still take part: client-1 ended with exit code 3"):
        ran("legacy_faulty", tmp_path, f"fault='exits' faulty-partition={faulty}", **{
            "transport.url": "tcp", "job.clients": 2,
        })  # fmt: skip
    (record,) = tmp_path.iterdir()
    assert Record(record).manifest["status"] == "failed"


@pytest.mark.e2e
@LINUX
def test_a_process_that_an_app_leaves_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "left"
    monkeypatch.setenv("LEFT", str(left))
    ran("faulty", tmp_path / "runs", "fault='leaves' num-server-rounds=1", **{"transport.url": "tcp"})
    state = Path("/proc") / left.read_text() / "stat"
    # Init may not have reaped the process yet.
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.e2e
def test_a_server_app_that_raises_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="the ServerApp raised KeyError") as raised:
        ran("faulty", tmp_path, "fault='raises' num-server-rounds=1 timeout=-1.0")
    assert raised.value.__cause__ is not None
    (place,) = tmp_path.iterdir()
    assert Record(place).manifest["status"] == "failed"


def test_each_node_of_an_emulated_network_is_a_process_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="a process of its own"):
        ran("numpy_messages", tmp_path, **over("tcp", network="wan"))


@pytest.mark.e2e
def test_a_network_is_emulated_between_nodes(tmp_path: Path) -> None:
    network = {"rate": "50mbit", "rtt": "20ms", "emulator": "message"}
    result = ran("numpy_messages", tmp_path, "num-server-rounds=1", **{
        "job.clients": 2, "transport.url": "tcp", "network": network,
    })  # fmt: skip
    assert result.emulation.startswith("message level")
    (row,) = result.rows
    assert (row["replies"], row["errors"]) == (4, 0)
    assert row["communication_seconds"] >= 0.01, "half a round trip"


def program(*words: str) -> list[str]:
    return [sys.executable, "-m", "thalweg", "flower", *words, "--json"]


def command(*words: str) -> dict[str, Any]:
    done = subprocess.run(program(*words), check=False, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def started(words: Sequence[str], log: Path) -> subprocess.Popen[str]:
    with log.open("w") as stream:
        return subprocess.Popen(program(*words), stdout=subprocess.PIPE, stderr=stream, text=True)


@pytest.mark.e2e
def test_nodes_come_from_elsewhere_encrypted_and_with_tokens(tmp_path: Path) -> None:
    from thalweg.transports import pki

    authority = tmp_path / "pki"
    pki.init(authority, ["localhost", "127.0.0.1"], 1)
    tokens = {name: pki.issue(authority, name, 1, role="task-member")[2] for name in ("anna", "ben")}
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    app = str(APPS / "numpy_messages")
    server = ["server", app, "--clients", "2", "--listen", address, "--pki", str(authority), "--record", str(tmp_path)]
    running = [started([*server, "--tls", "on"], tmp_path / "server.log")]
    try:
        for at, (name, token) in enumerate(tokens.items()):
            node = ["client", app, address, "--name", name, "--token-file", str(token)]
            config = ["--node-config", f"partition-id={at} num-partitions=2"]
            running.append(started([*node, *config], tmp_path / f"{name}.log"))
        said = [json.loads(process.communicate(timeout=LIMIT)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [(row["replies"], row["errors"], row["folded"]) for row in said[0]["rounds"]] == [(4, 0, True)] * 3
    assert [(one["name"], one["messages"]) for one in said[1:]] == [("anna", 6), ("ben", 6)]
    assert "(encrypted)" in (tmp_path / "server.log").read_text()
