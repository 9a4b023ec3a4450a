"""Runs whose updates are compressed on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thalweg.record import Record

pytestmark = pytest.mark.e2e

BYTES = 1 << 20
PLAN = """
[job]
clients = 2
rounds = 2
[model]
name = "payload:1MiB"
[transport]
url = "{transport}"
[layers.compress]
format = "{format}"
{more}
"""


@pytest.mark.parametrize(
    ("transport", "format_", "share", "more"),
    [
        ("tcp", "f16", (0.50, 0.51), ""),
        ("grpc", "int8", (0.25, 0.26), ""),
        ("ltp", "int8", (0.25, 0.28), ""),
        ("udp", "f16", (0.50, 1.0), "[layers.fault]\nloss = 0.1\ncorrupt = 0.05"),
    ],
)
def test_a_compressed_run_and_what_it_saves(
    result: Callable[..., Any], tmp_path: Path, transport: str, *, format_: str, share: tuple[float, float], more: str
) -> None:
    least, most = share
    (tmp_path / "plan.toml").write_text(PLAN.format(transport=transport, format=format_, more=more))
    record = Record(tmp_path / result("run", "plan.toml")["record"])
    assert len(record.entries) == 2
    for entry in record.entries:
        assert entry["complete"]
        for way in entry["transfers"]:
            assert way["bytes"] == BYTES
            assert least * BYTES < way["wire_bytes"] < most * BYTES


def test_nodes_of_a_graph_send_fewer_bytes(result: Callable[..., Any], tmp_path: Path) -> None:
    plan = "[job]\ngraph = 'ring'\nclients = 3\nrounds = 3\n[model]\nname = 'payload:1MiB'\n"
    (tmp_path / "plan.toml").write_text(f"{plan}[layers.compress]\nformat = 'int8'\n")
    said = result("run", "plan.toml")
    models = 3 * 2 * 3
    assert said["chunks_used"] == 1.0
    assert said["bytes_sent"] < 0.27 * models * BYTES
