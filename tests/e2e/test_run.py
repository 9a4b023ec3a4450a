"""``thalweg run`` from end to end: real processes, real sockets on loopback."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Start
from thalweg.record import Record

pytestmark = pytest.mark.e2e

Run = Callable[..., Any]
ROUND_KEYS = {
    "round", "accuracy", "loss", "client_accuracy", "client_loss",
    "seconds", "communication_seconds", "fedcomm_communication_seconds", "bytes_down",
    "bytes_up", "participants", "expected", "complete",
}  # fmt: skip


def test_a_payload_is_moved_and_not_trained(result: Run, tmp_path: Path) -> None:
    done = result("run", "--model", "payload:2MiB", "--clients", "3", "--rounds", "2", "--transport", "tcp")
    assert {key: done[key] for key in ("transport", "algorithm", "model", "clients", "parameters", "update_bytes")} == {
        "transport": "tcp",
        "algorithm": "fedavg",
        "model": "payload:2MiB",
        "clients": 3,
        "parameters": 524288,
        "update_bytes": 2 << 20,
    }
    assert set(done) == {
        "transport", "algorithm", "model", "clients", "parameters", "update_bytes", "rounds", "absent",
        "peak_rss_bytes", "emulation", "emulation_reason", "record", "transport_reason",
    }  # fmt: skip
    assert [entry["round"] for entry in done["rounds"]] == [1, 2]
    for entry in done["rounds"]:
        assert set(entry) == ROUND_KEYS
        assert (entry["accuracy"], entry["loss"]) == (None, None)
        assert (entry["participants"], entry["expected"], entry["complete"]) == (3, 3, True)
        assert entry["bytes_down"] >= 3 * (2 << 20)
        assert entry["bytes_up"] >= 3 * (2 << 20)
        assert 0 < entry["communication_seconds"] <= entry["seconds"]
    peaks = done["peak_rss_bytes"]
    assert peaks["server"] > 1 << 20
    assert len(peaks["clients"]) == 3
    assert all(peak > 1 << 20 for peak in peaks["clients"])
    assert (tmp_path / done["record"] / "rounds.parquet").is_file()


def test_payload_clients_do_not_import_what_they_do_not_need(result: Run) -> None:
    done = result("run", "--model", "payload:64KiB", "--clients", "1", "--rounds", "1")
    assert done["peak_rss_bytes"]["clients"][0] < 70e6, "PyTorch or pydantic is in a client that trains nothing"


def test_a_network_learns(result: Run, tmp_path: Path) -> None:
    done = result("run", "--model", "vgg5", "--clients", "2", "--rounds", "1")
    assert done["parameters"] == 582_346
    entry = done["rounds"][0]
    assert 0.1 < entry["accuracy"] <= 1.0, "better than a guess after one round"
    assert entry["loss"] > 0
    record = Record(tmp_path / done["record"])
    assert record.checkpoint_round == 1
    assert record.manifest["status"] == "complete"
    assert record.plan.model.name == "vgg5"
    assert {part["state"] for part in record.entries[0]["clients"]} == {"whole"}
    assert {transfer["direction"] for transfer in record.entries[0]["transfers"]} == {"up", "down"}


def test_without_a_process_boundary(result: Run) -> None:
    done = result("run", "--transport", "memory", "--model", "payload:1MiB", "--clients", "2", "--rounds", "2")
    assert done["transport"] == "memory"
    assert [entry["participants"] for entry in done["rounds"]] == [2, 2]
    assert done["peak_rss_bytes"]["clients"] is None


def test_encrypted(result: Run, tmp_path: Path) -> None:
    done = result("run", "--tls", "on", "--model", "payload:1MiB", "--clients", "2", "--rounds", "1")
    assert done["rounds"][0]["complete"]
    assert Record(tmp_path / done["record"]).manifest["tls"] is True


def test_links_at_message_level_as_the_plan_says(result: Run, tmp_path: Path) -> None:
    options = ["--model", "payload:512KiB", "--clients", "2", "--rounds", "1", "--emulator", "message"]
    done = result("run", *options, "--network", "rate=50mbit,rtt=20ms,loss=1%")
    assert done["emulation"].startswith("message level: ")
    assert done["emulation_reason"] is None
    record = Record(tmp_path / done["record"])
    layer = json.loads(record.manifest["emulation"].removeprefix("message level: "))["emulate"]
    assert (layer["up"]["rate"], layer["up"]["delay"], layer["up"]["loss"]) == (50_000_000, 0.01, 0.01)
    least = record.manifest["bound"]["round_seconds"]
    assert done["rounds"][0]["communication_seconds"] > least > 0.16, "two times 4.2 Mbit over 50 Mbit/s"
    assert record.manifest["network"]["lab"] is None


def test_links_at_message_level_for_want_of_permission(tmp_path: Path) -> None:
    # Without its capabilities, root has no more rights than other users.
    drop = ["setpriv", "--bounding-set=-net_admin,-sys_admin"] if os.geteuid() == 0 else []
    if drop and shutil.which(drop[0]) is None:
        pytest.skip("setpriv is not installed")
    program = [sys.executable, "-m", "thalweg", "run", "--model", "payload:256KiB", "--clients", "2", "--rounds", "1"]
    run = [*drop, *program, "--network", "rate=50mbit"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "network: emulated at message level, because packets cannot be emulated here: " in done.stderr
    assert "network: emulated at message level, because" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    manifest = Record(folder).manifest
    assert manifest["emulation"].startswith("message level: ")
    assert manifest["network"]["reason"] in done.stderr
    refused = subprocess.run(
        [*run, "--emulator", "packet"], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert refused.returncode == 1
    assert "hint: " in refused.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1, "and nothing is started"


def test_deterministic_gives_the_same_bits(result: Run, tmp_path: Path) -> None:
    def checkpoint(name: str) -> bytes:
        options = ["--model", "lenet", "--data", "digits", "--clients", "2", "--rounds", "1", "--deterministic"]
        done = result("run", *options, "--record", name)
        path: Path = tmp_path / done["record"] / "checkpoint.safetensors"
        return path.read_bytes()

    assert checkpoint("a") == checkpoint("b")


def test_people_get_a_line_a_round_and_a_table(start: Start) -> None:
    job = ("--model", "payload:1MiB", "--clients", "2", "--rounds", "2", "--transport", "tcp")
    code, out, err = start("run", *job).end()
    assert code == 0, err
    assert "round 1/2: " in err
    assert "round 2/2: " in err
    assert "bound: raw TCP over loopback" in out
    assert out.splitlines()[-1].startswith("record: runs/")


def test_a_client_that_is_killed_is_left_behind(start: Start, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
        [job]
        clients = 3
        rounds = 12
        grace = 0.5
        [model]
        name = "payload:8MiB"
        [layers]
        throttle = "400mbit"
        """
    )
    program = start("run", str(plan), "--json")
    program.until("round 1/12")
    victim = program.children()[1]
    os.kill(victim, signal.SIGKILL)
    code, out, err = program.end()
    assert code == 0, err
    assert "client-2 is gone: killed by signal 9" in err
    done = json.loads(out)
    assert len(done["rounds"]) == 12
    assert done["rounds"][0]["complete"]
    last = done["rounds"][-1]
    assert (last["participants"], last["expected"], last["complete"]) == (2, 3, False)
    assert len(done["peak_rss_bytes"]["clients"]) == 3
    record = Record(tmp_path / done["record"])
    (absent,) = done["absent"]
    assert (absent["client"], absent["left"]) == ("client-2", True)
    assert absent["counted"] < 12
    assert {part["client"] for part in record.entries[-1]["clients"] if part["state"] == "whole"} == {
        "client-1",
        "client-3",
    }


def test_a_round_with_too_few_updates_ends_the_job(start: Start, tmp_path: Path) -> None:
    program = start(
        "run", "--model", "payload:8MiB", "--clients", "2", "--enough", "2", "--rounds", "50", "--throttle", "400mbit",
        "--deadline", "5",
    )  # fmt: skip
    program.until("round 1/50")
    os.kill(program.children()[0], signal.SIGKILL)
    code, _, err = program.end()
    assert code == 1
    assert "updates came" in err
    assert "hint: " in err
    (folder,) = (tmp_path / "runs").iterdir()
    assert Record(folder).manifest["status"] == "failed"
    assert len(Record(folder).entries) >= 1, "the rounds before are kept"


def test_interrupted_it_ends_in_good_order_and_can_go_on(start: Start, tmp_path: Path) -> None:
    options = ["--model", "lenet", "--data", "digits", "--clients", "2"]
    program = start("run", *options, "--rounds", "100000")
    program.until("round 1/")
    children = program.children()
    program.process.send_signal(signal.SIGINT)
    code, _, err = program.end()
    assert code == 130, err
    assert "thalweg run --resume" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in children), "no client outlives the run"
    (folder,) = (tmp_path / "runs").iterdir()
    done = Record(folder).checkpoint_round
    assert done is not None
    assert Record(folder).manifest["status"] == "interrupted"
    code, out, err = start("run", "--resume", str(folder), "--rounds", str(done + 1), "--json").end()
    assert code == 0, err
    assert [entry["round"] for entry in json.loads(out)["rounds"]] == list(range(1, done + 2))


def test_a_server_that_is_killed_leaves_no_client_and_a_record_that_goes_on(start: Start, tmp_path: Path) -> None:
    program = start("run", "--model", "lenet", "--data", "digits", "--clients", "2", "--rounds", "100000")
    program.until("round 2/")
    watches = [os.pidfd_open(pid) for pid in program.children()]
    program.process.kill()
    program.end()
    for watch in watches:
        assert select.select([watch], [], [], 30)[0], "a client outlived its run"
        os.close(watch)
    (folder,) = (tmp_path / "runs").iterdir()
    done = Record(folder).checkpoint_round
    assert done is not None
    assert done >= 1
    code, out, err = start("run", "--resume", str(folder), "--rounds", str(done + 2), "--json").end()
    assert code == 0, err
    rounds = json.loads(out)["rounds"]
    assert [entry["round"] for entry in rounds] == list(range(1, done + 3))


def test_resume_refuses_another_experiment(result: Run, start: Start) -> None:
    done = result("run", "--model", "lenet", "--data", "digits", "--clients", "2", "--rounds", "1")
    code, _, err = start("run", "--resume", done["record"], "--rounds", "2", "--seed", "9").end()
    assert code == 1
    assert "job.seed: 0, 9" in err


def test_a_port_in_use(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = start("run", "--model", "payload:1MiB", "--transport", f"tcp://127.0.0.1:{port}").end()
    assert code == 1
    assert f"127.0.0.1:{port}" in err
    assert "hint: choose another port" in err


def test_a_congestion_control_the_kernel_does_not_have(start: Start) -> None:
    code, _, err = start("run", "--model", "payload:1MiB", "--congestion", "nosuch").end()
    assert code == 2
    assert "nosuch" in err
    assert "hint: " in err


def test_a_missing_data_folder_starts_nothing(start: Start, tmp_path: Path) -> None:
    code, _, err = start("run", "--data", "cifar10", "--data-root", str(tmp_path / "none")).end()
    assert code == 2
    assert "--data-root" in err
    assert not (tmp_path / "runs").exists()
