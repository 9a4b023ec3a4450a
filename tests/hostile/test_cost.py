"""The maximum cost of peers without a token for a server: the figures of docs/explanation/security.md."""

from __future__ import annotations

import json
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from tests.hostile import wire
from tests.hostile.adversary import DIALECTS
from tests.hostile.storm import running

# Maximum numbers of unauthenticated peers, of evicted peers whose connections are still open, and of the job's
# descriptors.
UNAUTHENTICATED_PEERS = 1024
LEAVING = 64
OWN = 64
# Maximum number of unauthenticated peers from one address.
OF_AN_ADDRESS = UNAUTHENTICATED_PEERS // 2
# Maximum memory in bytes for each of these peers, with TLS and without.
EACH = 64 << 10
KNOCKS = 1500


@contextmanager
def descriptors(wanted: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted:
        pytest.skip(f"{wanted} descriptors are needed, this process may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def knock(address: str, said: bytes) -> socket.socket:
    """Connect, and send as many bytes as the socket accepts at once."""
    parts = urlsplit(address)
    peer = socket.create_connection((parts.hostname or "", parts.port or 0))
    peer.setblocking(False)
    with suppress(OSError):  # the server may have closed the connection already
        peer.send(said)
    return peer


@pytest.mark.e2e
@pytest.mark.parametrize("what", ["silent", "greedy"])
@pytest.mark.parametrize("transport", ["tcp", "grpc", "unifl"])
def test_unauthenticated_peers_cost_what_the_documents_say(transport: str, what: str) -> None:
    dialect, random = DIALECTS[transport], Random(7)
    greedy = dialect.framed(wire.header(wire.CONTROL, wire.MAX_CONTROL)) + bytes(1 << 20)
    url = f"{transport}://127.0.0.1:0"
    with descriptors(KNOCKS + 200), running("job", url, json.dumps({})) as job:
        address, pid = job.next()["address"], job.process.pid
        job.go()
        before = [job.next() for _ in range(20)][-1]
        peers: list[socket.socket] = []
        try:
            more = greedy if what == "greedy" else b""
            peers.extend(knock(address, dialect.opening(random) + more) for _ in range(KNOCKS))
            facts = [job.next() for _ in range(20)]
            files = open_files(pid)
        finally:
            for peer in peers:
                peer.close()
        facts += [fact for fact in job.end() if "round" in fact]
    assert all(fact["exact"] and fact["complete"] for fact in facts)
    assert files <= UNAUTHENTICATED_PEERS + LEAVING + OWN
    assert max(fact["rss"] for fact in facts) - before["rss"] < (UNAUTHENTICATED_PEERS + LEAVING) * EACH


@pytest.mark.e2e
@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_unauthenticated_peers_under_tls_cost_what_the_documents_say(transport: str) -> None:
    """The peers finish the TLS handshake and send nothing more, so the server keeps a whole TLS session for each."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    if transport == "grpc":
        anybody.set_alpn_protocols(["h2"])
    with descriptors(KNOCKS + 200), running("job", f"{transport}://127.0.0.1:0", "{}", "on") as job:
        address = job.next()["address"]
        job.go()
        before = [job.next() for _ in range(20)][-1]
        peers: list[socket.socket] = []
        try:
            for _ in range(KNOCKS):
                peer = knock(address, b"")
                peer.setblocking(True)
                with suppress(OSError):  # the server may have closed the connection already
                    peers.append(anybody.wrap_socket(peer))
            facts = [job.next() for _ in range(20)]
        finally:
            for peer in peers:
                peer.close()
        facts += [fact for fact in job.end() if "round" in fact]
    assert len(peers) > KNOCKS / 2
    assert all(fact["exact"] and fact["complete"] for fact in facts)
    assert max(fact["rss"] for fact in facts) - before["rss"] < (OF_AN_ADDRESS + LEAVING) * EACH


@pytest.mark.e2e
@pytest.mark.parametrize("transport", ["tcp", "grpc", "unifl"])
def test_honest_clients_get_in_beside_silent_peers_of_their_address(transport: str) -> None:
    url = f"{transport}://127.0.0.1:0"
    with descriptors(KNOCKS + 200), running("job", url) as job:
        address = job.next()["address"]
        peers = [knock(address, b"") for _ in range(KNOCKS)]
        try:
            job.go()
            facts = [job.next() for _ in range(5)]
        finally:
            for peer in peers:
                peer.close()
        facts += job.end()
    assert all(fact["exact"] and fact["complete"] for fact in facts)
