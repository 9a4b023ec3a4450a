"""Peers without a token are in nobody's way: every round of a job beside them ends, with the exact mean."""

from __future__ import annotations

import pytest

from tests.hostile.storm import MEMORY, missing, storm, transports

ROUNDS = 40
# How long each job is attacked at least; CI has a minute for all of them.
SECONDS = 6.0
SEED = 20


@pytest.mark.e2e
@pytest.mark.parametrize("transport", transports())
def test_an_honest_job_goes_on(transport: str) -> None:
    if why := missing(transport):
        pytest.skip(why)
    account = storm(transport, SEED, lambda rounds, seconds: rounds < ROUNDS or seconds < SECONDS)
    assert all(fact["exact"] for fact in account.rounds)
    assert all(fact["complete"] for fact in account.rounds)
    assert account.growth < MEMORY
    assert account.attacked[-1]["notes"] < 100, "peers that were turned away are counted, not listed"
    assert sum(account.peers.values()) > 0
