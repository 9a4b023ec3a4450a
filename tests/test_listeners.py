"""Every listening socket of this program has a rule that bounds what a peer can take, and a test of that rule.

A new listener fails here until it is listed with its rule and the place of the test. Ports that peers of a
job reach share one rule, the lobby of ``crates/transport/src/lobby.rs``; docs/explanation/security.md has the figures.
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


class Rule(NamedTuple):
    """How many listeners a file has, what bounds them, and the file and name of a test of that."""

    times: int
    rule: str
    test: str
    name: str


LOBBY = "the lobby of guests: a quarter of the descriptors, half of that an address, 20 s"
HOSTILE = ("tests/hostile/test_cost.py", "test_guests_cost_what_the_documents_say")
OWN = "one connection that this process makes itself, and then no listener any more"
LISTENERS = {
    "crates/sockets/src/door.rs": Rule(1, LOBBY, *HOSTILE),
    "crates/transports/shm/src/listener.rs": Rule(1, LOBBY, *HOSTILE),
    "crates/transports/zmq/src/open.rs": Rule(1, LOBBY, *HOSTILE),
    "crates/runtime/src/engine/hub.rs": Rule(1, LOBBY, *HOSTILE),
    "crates/runtime/src/forward/far.rs": Rule(1, LOBBY, "crates/runtime/tests/forward.rs", "fn "),
    # Bounded in number alone: no connection is ended for another, since nobody knows here which are silent.
    "crates/runtime/src/forward/near.rs": Rule(1, "--connections", "crates/runtime/tests/forward.rs", "connections"),
    "crates/transports/unifl/src/proxy/mod.rs": Rule(
        1, "--connections, --idle", "crates/transports/unifl/src/proxy/settings.rs", '{"connections": 0}'
    ),
    "crates/transports/unifl/src/proxy/readers.rs": Rule(
        2, "16 readers of this user, 10 s", "crates/transports/unifl/src/proxy/readers.rs", "mod tests"
    ),
    # `doctor --serve`: beyond loopback only for whoever has a certificate.
    "crates/runtime/src/probe.rs": Rule(2, "certificates", "crates/runtime/src/probe.rs", "give --pki"),
    "crates/node/src/freight.rs": Rule(1, OWN, "crates/node/src/freight.rs", "peer == own"),
    "crates/node/src/routes/mod.rs": Rule(1, OWN, "crates/node/src/routes/mod.rs", "fn pair"),
    "python/thalweg/job/page_server.py": Rule(
        1,
        "16 connections, 8 of an address, 5 s",
        "tests/job/test_page_server.py",
        "test_silent_ones_of_one_address_take_half_of_the_places",
    ),
    "python/thalweg/lab/keeper.py": Rule(
        1,
        "64 connections of this user, 1 MiB a request",
        "tests/lab/test_keeper.py",
        "test_who_never_ends_a_line_is_hung_up_on",
    ),
    "python/thalweg/lab/flood.py": Rule(1, OWN, "python/thalweg/lab/flood.py", "listener.accept()"),
}


def found() -> dict[str, int]:
    """How often each file listens, its unit tests left out."""
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


@pytest.mark.parametrize("path", LISTENERS)
def test_each_rule_is_held_by_something_that_is_there(path: str) -> None:
    rule = LISTENERS[path]
    assert rule.name in (ROOT / rule.test).read_text()


def test_all_transports_that_listen_have_a_bound_in_the_documents() -> None:
    from thalweg.transports import registry

    text = (ROOT / "docs/explanation/security.md").read_text().partition("| transport | a guest costs")[2]
    rows = text.partition("\n\n")[0]
    named = set(re.findall(r"`([a-z]+)`", rows)) - {"memory"}
    assert {one["name"] for one in registry.transports() if one["name"] != "memory"} <= named
