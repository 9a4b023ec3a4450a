"""Every listening socket of this program has a rule that limits what a peer can use, and a test of that rule.

A new listener fails here until it is listed with its rule and the tests of it. All ports share one rule: a new
connection waits in an admission queue (``crates/transport/src/admission_queue.rs``) until the peer sends what the port
asks for. Then it counts towards a bounded number of connections (``connections.rs``). docs/explanation/security.md has
the figures.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
RUST = re.compile(
    r"(?:TcpListener|UnixListener)::(?:bind|from_std)\(|\bsocket\.listen\(|\.raw\.bind\(|\btransport\.listen\("
)
PYTHON = re.compile(
    r"\.listen\(\)|\bcreate_server\(|\bstart_server\(|http\.server|socketserver|start_http_server|HTTPServer"
)
APART = {"tests", "benches", "examples", "target", "conformance"}


class Shown(NamedTuple):
    """A test of a bound: its file, and the name of its function."""

    file: str
    name: str


class Port(NamedTuple):
    """A file's number of listeners that others can reach, the call that enforces the rule, and tests of the rule.

    Each of these ports is bounded in number, for each address, and in time. ``enforced_in`` is the file of ``call``, if
    that is another one.
    """

    times: int
    call: str
    number: Shown
    address: Shown
    time: Shown
    enforced_in: str | None = None


class Own(NamedTuple):
    """A file's number of listeners that only this user or this process can reach, and the test that checks this."""

    times: int
    why: str
    shown: Shown


UNAUTHENTICATED, CONNECTIONS, QUEUE = (
    f"crates/transport/src/{name}.rs" for name in ("unauthenticated_peers", "connections", "admission_queue")
)
# The admission queue: a quarter of the process's descriptors, half of these for one address, 20 s.
FULL = Shown(UNAUTHENTICATED, "when_it_is_full_the_address_with_the_most_gives_way")
SHARE = Shown(UNAUTHENTICATED, "beyond_its_share_an_address_displaces_its_own_oldest_silent_one")
TIMEOUT = Shown(QUEUE, "an_unauthenticated_peer_has_to_go_in_time")
# Ports without a handshake that authenticates the peer: permits for connections.
CARRIED = Shown(CONNECTIONS, "carried_connections_are_bounded_in_number")
OF_AN_ADDRESS = Shown(CONNECTIONS, "carried_connections_are_bounded_for_each_address")
VISITORS = "crates/transports/zmq/src/visitors.rs"
PROBE = "crates/runtime/src/probe.rs"
READERS = "crates/transports/unifl/src/proxy/readers.rs"
PAGES = "tests/job/test_page_server.py"
OWN = "one connection that this process makes itself, and then no listener any more"
LISTENERS: dict[str, Port | Own] = {
    "crates/sockets/src/door.rs": Port(1, "admission_queue.enter(", FULL, SHARE, TIMEOUT),
    "crates/transports/shm/src/listener.rs": Port(1, "admission_queue.enter(", FULL, SHARE, TIMEOUT),
    "crates/transports/zmq/src/open.rs": Port(
        1, "admission_queue.enter(", FULL, SHARE, TIMEOUT, "crates/transports/zmq/src/visitors.rs"
    ),
    "crates/runtime/src/engine/hub.rs": Port(1, "AdmissionQueue::new(", FULL, SHARE, TIMEOUT),
    "crates/runtime/src/forward/far.rs": Port(1, "AdmissionQueue::new(", FULL, SHARE, TIMEOUT),
    "crates/runtime/src/forward/near.rs": Port(
        1,
        "acceptor.enter(",
        CARRIED,
        OF_AN_ADDRESS,
        Shown("crates/runtime/tests/forward.rs", "a_program_that_sends_nothing_is_reset_in_time"),
    ),
    "crates/transports/unifl/src/proxy/mod.rs": Port(
        1,
        "acceptor.enter(",
        CARRIED,
        OF_AN_ADDRESS,
        Shown("crates/transports/unifl/tests/proxy.rs", "a_client_that_sends_nothing_is_reset_in_time"),
    ),
    # The probe server's port, and one port for each raw stream.
    PROBE: Port(
        2,
        "AdmissionQueue::new(",
        Shown(PROBE, "beyond_as_many_as_there_may_be_nobody_is_answered"),
        OF_AN_ADDRESS,
        Shown(PROBE, "who_asks_for_nothing_is_no_longer_than_an_unauthenticated_peer_may_be"),
    ),
    "python/thalweg/job/common/page_server.py": Port(
        1,
        "_make_room(",
        Shown(PAGES, "test_many_addresses_take_no_more_than_all_places"),
        Shown(PAGES, "test_silent_connections_from_one_address_take_half_of_the_places"),
        Shown(PAGES, "test_slow_connections_are_closed"),
    ),
    READERS: Own(
        2,
        "a Unix socket for readers of this user: 16 of them, and one that does not read is dropped after 10 s",
        Shown(READERS, "each_reader_has_each_line_and_one_that_goes_holds_up_nobody"),
    ),
    "python/thalweg/lab/supervisor.py": Own(
        1,
        "a Unix socket in a folder of this user: 64 connections, 1 MiB a request",
        Shown("tests/lab/test_supervisor.py", "test_who_never_ends_a_line_is_hung_up_on"),
    ),
    "crates/workers/src/copying.rs": Own(1, OWN, Shown("crates/workers/src/copying.rs", "connected")),
    "crates/workers/src/routes/mod.rs": Own(1, OWN, Shown("crates/workers/src/routes/mod.rs", "pair")),
    "python/thalweg/lab/flood.py": Own(1, OWN, Shown("python/thalweg/lab/flood.py", "__init__")),
}


def found() -> dict[str, int]:
    """Return the number of calls that listen in each file, without its unit tests."""
    counts = {}
    for folder, suffix, pattern in (("crates", "rs", RUST), ("python", "py", PYTHON)):
        for path in sorted((ROOT / folder).rglob(f"*.{suffix}")):
            if not APART & set(path.relative_to(ROOT).parts):
                times = len(pattern.findall(path.read_text().partition("#[cfg(test)]")[0]))
                if times:
                    counts[str(path.relative_to(ROOT))] = times
    return counts


def test_each_listener_is_listed_with_its_rule() -> None:
    assert found() == {path: rule.times for path, rule in LISTENERS.items()}


@pytest.mark.parametrize("path", [path for path, rule in LISTENERS.items() if isinstance(rule, Port)])
@pytest.mark.parametrize("bound", ["number", "address", "time"])
def test_each_port_is_bounded_in_number_for_each_address_and_in_time(path: str, bound: str) -> None:
    rule = LISTENERS[path]
    assert isinstance(rule, Port)
    assert rule.call in (ROOT / (rule.enforced_in or path)).read_text(), "it does not keep the rule"
    assert is_there(getattr(rule, bound))


@pytest.mark.parametrize("path", [path for path, rule in LISTENERS.items() if isinstance(rule, Own)])
def test_other_listeners_are_reached_by_nobody_else(path: str) -> None:
    rule = LISTENERS[path]
    assert isinstance(rule, Own)
    assert is_there(rule.shown)


def is_there(shown: Shown) -> bool:
    return re.search(rf"\b(?:fn|def) {shown.name}\(", (ROOT / shown.file).read_text()) is not None


def test_all_transports_that_listen_have_a_bound_in_the_documents() -> None:
    from thalweg.transports import registry

    text = (
        (ROOT / "docs/explanation/security.md").read_text().partition("| transport | an unauthenticated peer costs")[2]
    )
    rows = text.partition("\n\n")[0]
    named = set(re.findall(r"`([a-z]+)`", rows)) - {"memory"}
    assert {one.name for one in registry.transports() if one.name != "memory"} <= named
