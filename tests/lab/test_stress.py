"""Stress: the output of stress-ng, floods between hosts, and refused settings."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.errors import LabError, PlanError
from thalweg.lab import flood, stress
from thalweg.sections.network import StressSection

CLIENTS = ["client-1", "client-2", "client-3"]
WORDS = """stress-ng: info:  [7] dispatching hogs: 1 cpu
stress-ng: metrc: [7] stressor       bogo ops real time  usr time  sys time   bogo ops/s     bogo ops/s
stress-ng: metrc: [7]                           (secs)    (secs)    (secs)   (real time) (usr+sys time)
stress-ng: metrc: [7] cpu                1249      1.99      1.69      0.00       627.97         739.19
"""


def section(**keys: Any) -> StressSection:
    return StressSection.model_validate(keys)


class Nowhere:
    def namespace(self, party: str) -> str | None:
        return None

    def address(self, party: str) -> str:
        return "127.0.0.1"

    def cgroup(self, party: str) -> str | None:
        return None


@pytest.mark.parametrize("prefix", ["metrc:", "info: "])
def test_operations_a_second_are_those_of_real_time(prefix: str) -> None:
    assert stress.metrics(WORDS.replace("metrc:", prefix)) == {
        "bogo_ops": 1249,
        "seconds": 1.99,
        "bogo_ops_per_second": 627.97,
    }


def test_a_stressor_that_broke_says_so() -> None:
    assert stress.metrics("stress-ng: error: no memory\n")["failure"] == "stress-ng: error: no memory"
    assert stress.metrics("")["bogo_ops"] is None


def test_who_floods_whom() -> None:
    asked = section(network="250mbit")
    assert stress.pairs_of(asked, CLIENTS) == [(client, "server") for client in CLIENTS]
    asked = section(network="250mbit", network_mode="clients")
    assert stress.pairs_of(asked, CLIENTS) == [("client-2", "client-1")], "the odd one out has nobody"
    asked = section(network="250mbit", network_mode="clients", parties=["client-1"])
    with pytest.raises(PlanError, match="nobody to flood"):
        stress.pairs_of(asked, CLIENTS)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LabError, match="stress-ng is not installed") as caught:
        stress.Stress(section(cpu=99), CLIENTS, Nowhere()).check(emulated=True)
    assert "apt install stress-ng" in caught.value.hint
    with pytest.raises(PlanError, match="there are none"):
        stress.Stress(section(network="250mbit"), CLIENTS, Nowhere()).check(emulated=False)


@pytest.mark.parametrize(("rate", "size"), [(1000, 1448), (20_000_000, 12_500), (10_000_000_000, 65536)])
def test_blocks_are_five_milliseconds_within_bounds(rate: int, size: int) -> None:
    assert flood.block_bytes(rate) == size
