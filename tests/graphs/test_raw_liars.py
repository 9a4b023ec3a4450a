"""An admitted neighbour sends forged frames: no impossible value gets into the mix."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Final

import numpy as np
import pytest

from tests.hostile import wire
from tests.hostile.forwarding import LIMIT, Link
from thalweg import _core

BYTES: Final = 256
HALF: Final = BYTES // 2
LAYOUT: Final = _core.Layout([("w", "F32", [BYTES // 4])])
HASH: Final = int(LAYOUT.hash, 16)
# The digest of an empty text, in the form in which the core keeps the digests of plans and graphs.
DIGEST: Final = int.from_bytes(hashlib.sha256(b"").digest()[:8], "big")
END: Final = wire.control(b"\x05\x01\x00\x00")


def values(value: float, count: int = BYTES // 4) -> bytes:
    return np.full(count, value, np.float32).tobytes()


def chunk(
    payload: bytes,
    offset: int = 0,
    *,
    job: int = 1,
    sender: int = 1,
    layout: int = HASH,
    round_: int = 1,
    damage: int = 0,
) -> bytes:
    total = wire.checksum(payload) ^ damage
    head = b"tlwg" + struct.pack(
        "<BBHIIQIIQQ", 1, wire.CHUNK, 0, len(payload), total, job, round_, sender, layout, offset
    )
    return head + struct.pack("<I", wire.checksum(head)) + payload


def joined(node: _core.Node, connection: socket.socket) -> Link:
    """Return the link of neighbour ``a``, which the node has let in."""
    link, random, varint = Link(connection), Random(1), wire.varint
    opening = wire.preamble(random)
    connection.sendall(opening)
    assert link.read(len(opening)) == opening
    assert link.hear()[1][0] == 0, "it challenges"
    alike = b"\x03" + 2 * varint(DIGEST) + b"\x00"
    said = varint(wire.VERSION) + b"\x01a" + varint(5) + random.randbytes(32) + b"\x00\x01" + varint(HASH)
    link.say(b"\x01" + said + alike + b"\x01\x02")
    assert link.hear()[1][:2] == b"\x02\x01", "it is let in as the first"
    link.say(b"\x0a\x00")
    return link


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


LIES: Final = {
    "whole": ((chunk(values(8)),), BYTES),
    "half": ((chunk(values(8, HALF // 4), HALF),), HALF),
    "twice, and then otherwise": ((chunk(values(8)), chunk(values(8)), chunk(values(99))), BYTES),
    "overlapping": ((chunk(values(8, HALF // 4)), chunk(values(8))), BYTES),
    "another job": ((chunk(values(99), job=2),), 0),
    "another sender": ((chunk(values(99), sender=0),), 0),
    "another layout": ((chunk(values(99), layout=HASH ^ 1),), 0),
    "beyond the end": ((chunk(values(99), 4),), 0),
    "within an element": ((chunk(values(99, 1), 2),), 0),
    "far beyond the end": ((chunk(values(99), 2**64 - 4),), 0),
    "an iteration that never comes": ((chunk(values(99), round_=2**31),), 0),
    "no number": ((chunk(values(float("nan"))),), 0),
    "half a number": ((chunk(values(8, HALF // 4)), chunk(values(float("inf"), HALF // 4), HALF)), HALF),
    "damaged": ((chunk(values(99), damage=1),), 0),
    "nothing": ((), 0),
    "a grant of what is not": ((wire.control(b"\x06\x01\x01" + wire.varint(2**63) + wire.varint(2**64 - 1)),), 0),
    "a receipt of what is not": ((wire.control(b"\x07\x09\x00\x00\x00\x00"),), 0),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_is_not_in_the_mix(stack: ExitStack, lie: str) -> None:
    frames, counted = LIES[lie]
    arena = _core.Arena(LAYOUT)
    model = np.asarray(arena).view(np.float32)
    node = _core.Node(arena, "m", "tcp://127.0.0.1:0", json.dumps({"wait": "deadline", "deadline": LIMIT}))
    stack.callback(node.close, "the test is over")
    node.meet('{"a": ""}', 1, '{"a": 0.5}')
    port = int(node.address.rpartition(":")[2])
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT))
    link = joined(node, connection)
    assert node.gather(1, LIMIT) == 1
    node.begin(1, '{"a": 0.5}', None)
    for frame in (*frames, END):
        connection.sendall(frame)
    node.ready(1)
    text = node.wait(1, LIMIT)
    assert text is not None, "it waits in vain"
    report = json.loads(text)
    (exchange,) = report["exchanges"]
    assert (exchange["peer"], exchange["bytes"]) == ("a", counted)
    assert int((model == 4).sum()) * 4 == counted
    assert int((model == 0).sum()) * 4 == BYTES - counted
    assert node.gather(1, 0) == 1, "it is still there"
    link.say(b"\x0e\x00")
