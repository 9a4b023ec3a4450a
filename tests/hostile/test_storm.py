"""Peers without a token do not disturb a job: every round ends with the exact mean."""

from __future__ import annotations

import socket
from random import Random
from urllib.parse import urlsplit

import pytest

from tests.hostile import admitted, wire
from tests.hostile.storm import MEMORY, missing, running, storm, transports

ROUNDS = 40
# Minimum seconds of attack on each job. In CI all of them together take a minute.
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


@pytest.mark.e2e
@pytest.mark.parametrize("transport", transports())
def test_admitted_liars_change_no_mean(transport: str) -> None:
    if why := missing(transport):
        pytest.skip(why)
    counts = admitted.run(transport, SEED, lambda tasks, seconds: tasks < ROUNDS)
    assert counts["tasks"] == ROUNDS
    assert counts["done"] == ROUNDS * admitted.HONEST
    assert counts["failed"] == ROUNDS * admitted.LIARS


def refusal(address: str, message: bytes) -> int:
    """Send a first message over tcp; return the code of the refusal that answers it."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=60) as peer:
        opening = wire.preamble(Random(1))
        peer.sendall(opening + wire.control(message))
        with peer.makefile("rb") as stream:
            stream.read(len(opening))
            while True:
                size = int.from_bytes(stream.read(wire.HEADER_BYTES)[8:12], "little")
                said = stream.read(size)
                if said[0] == wire.REFUSED:
                    return said[1]


@pytest.mark.e2e
def test_peers_speak_the_session_version_of_this_build() -> None:
    with running("job", "tcp://127.0.0.1:0") as job:
        address = job.next()["address"]
        assert refusal(address, wire.hello(b"client-0", Random(2))) == wire.BAD_PROOF
