"""Runs with ``rdma`` on a machine without RDMA devices: links use tcp, and the record has the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.baselines import NEEDED
from thalweg import _core
from thalweg.record import Record

pytestmark = pytest.mark.e2e

Run = Callable[..., Any]


def missing() -> str:
    """Return why this machine has no RDMA device, with the hint; empty if it has one."""
    try:
        return "" if _core.rdma_devices() else "no device"
    except _core.CoreError as error:
        return str(error)


def run(result: Run, folder: Path, *options: str) -> str:
    """Run a job, and return its log."""
    small = ("--model", "payload:3MiB", "--clients", "2", "--rounds", "2")
    done = result("run", "--transport", "rdma", *small, *options)
    assert [(entry["participants"], entry["complete"]) for entry in done["rounds"]] == [(2, True), (2, True)]
    return (Record(folder / done["record"]).path / "log.txt").read_text()


@pytest.mark.parametrize("mode", ["window", "pull", "fedrdma-e", pytest.param("fedrdma", marks=NEEDED), "whole"])
def test_without_a_device_links_are_tcp_and_the_log_says_why(result: Run, tmp_path: Path, mode: str) -> None:
    why = missing()
    if not why:
        pytest.skip("this machine has an RDMA device")
    log = run(result, tmp_path, "--option", f"mode={mode}")
    notices = [line for line in log.splitlines() if "is served as tcp" in line]
    assert len(notices) == 1
    assert why in notices[0]
    assert any(hint in notices[0] for hint in ("apt install", "rdma link", "ulimit"))


def test_under_tls_it_asks_for_seals_or_trust(result: Run, tmp_path: Path) -> None:
    log = run(result, tmp_path, "--tls", "on")
    assert "is served as tcp: RDMA encrypts nothing; seal the updates with [layers.seal]" in log
