"""FATE's gRPC calls through ``thalweg forward`` over rdma, on a device of the guest kernel (FedRDMA, section 4.1)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.lab.test_guest import built
from tests.lab.test_guest_rdma import DEVICE
from thalweg.lab import guest

__all__ = ["built"]

PROGRAM: Final = Path(__file__).parent / "eggroll.py"
CALLS: Final = 12


@pytest.mark.usefixtures("built")
def test_fates_calls_go_over_rdma_and_are_answered_at_the_near_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc", reason="needs grpcio, which comes with thalweg[flower]")
    monkeypatch.chdir(tmp_path)
    code, said = guest.run(["/bin/sh", "-c", f"{DEVICE} exec {sys.executable} {PROGRAM} 10.9.0.1"])
    assert code == 0, said
    seen = json.loads(said)
    assert seen["whole"], "the server has other bytes, or in another order"
    ended = seen["ended"]
    assert (ended["calls"], ended["answered"], ended["unkept"], ended["error"]) == (CALLS, CALLS, 0, None)
    # A packet carries 4096 bytes at most. Over tcp, which a link takes if RDMA fails, the device would send none.
    assert seen["packets"] > CALLS * 1_000_000 / 4096
