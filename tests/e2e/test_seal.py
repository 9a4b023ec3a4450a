"""Runs whose updates are sealed end to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.baselines import NEEDED
from thalweg.record import Record

pytestmark = pytest.mark.e2e

BYTES = 1 << 20
PLAN = """
[job]
clients = 2
rounds = 2
[model]
name = "payload:1MiB"
[security]
tls = "on"
[transport]
url = "{transport}"
chunk = "32KiB"
[layers.seal]
cipher = "{cipher}"
record = 1024
{more}
"""


@pytest.mark.parametrize(
    ("transport", "cipher", "more"),
    [
        ("tcp", "aes-256-gcm", ""),
        pytest.param("tcp", "aes-cbc", "", marks=NEEDED),
        ("udp", "chacha20-poly1305", "[layers.fault]\nloss = 0.1\ncorrupt = 0.05"),
    ],
)
def test_a_sealed_run_and_its_overhead(
    result: Callable[..., Any], tmp_path: Path, transport: str, cipher: str, more: str
) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.format(transport=transport, cipher=cipher, more=more))
    record = Record(tmp_path / result("run", "plan.toml")["record"])
    assert len(record.entries) == 2
    # A chunk has 32 sealed records with 16 more bytes each. Frames also have headers.
    each = 32 if cipher == "aes-cbc" else 16
    sealed = BYTES + BYTES // 1024 * each + BYTES // (32 << 10) * 16
    for entry in record.entries:
        assert entry["complete"]
        for way in entry["transfers"]:
            assert way["bytes"] == BYTES
            assert way["wire_bytes"] > sealed
            assert more or way["wire_bytes"] < 1.01 * sealed
    emulation = record.manifest["emulation"]
    assert emulation.startswith("message level") if more else emulation == "none"
    assert "seal" not in emulation
