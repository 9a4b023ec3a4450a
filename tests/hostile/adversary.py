"""A process whose hostile peers, which have no token, attack a listening server. A seed determines what they do.

``python -m tests.hostile.adversary URL SEED`` runs until its standard input ends. The peers of ``KINDS`` attack every
transport. A ``Dialect`` has the differences between transports: the first bytes of a connection, and the form of a
frame.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tests.hostile import wire

# Number of peers at a time. When one ends, another begins.
PEERS: Final = 300
# The loopback addresses of the peers. Most peers use the first one, which is also the honest clients'.
SOURCES: Final = ("127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.3")
# Maximum number of seconds that an idle peer stays.
LINGER: Final = 20.0
SLOW: Final = 0.2
HOLES: Final = 1 << 19
PART: Final = 1 << 16
# Maximum number of datagrams that a peer sends.
DATAGRAMS: Final = 16

Random = random.Random
Framed = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Dialect:
    """The first bytes of a transport's connections, and the form of a frame on them."""

    opening: Callable[[Random], bytes]
    framed: Framed = bytes
    # The path of the Unix socket, for a transport that does not listen on a TCP port.
    path: str = ""
    # Whether the transport listens on a UDP port. Then a peer sends datagrams with such openings, whatever its kind.
    datagrams: bool = False


def _tcp(random: Random) -> bytes:
    return wire.preamble(random)


# On loopback, unifl is the same as tcp. udp, ltp and rdma use a connection of tcp for control messages.
DIALECTS: Final[dict[str, Dialect]] = {
    **dict.fromkeys(("tcp", "unifl", "udp", "ltp", "rdma"), Dialect(_tcp)),
    "grpc": Dialect(lambda _: wire.grpc_call(), wire.grpc_frame),
    "quic": Dialect(wire.quic_packet, datagrams=True),
    "shm": Dialect(lambda _: wire.SHM_OPENING, wire.shm_frame, "\0thalweg-shm-{port}"),
    "zmq": Dialect(lambda _: wire.zmtp_greeting()),
    # For transports with a broker: the peers have no login there, so the broker itself must refuse them.
    **dict.fromkeys(("mqtt", "amqp"), Dialect(lambda random: random.randbytes(64))),
}


@dataclass
class Peer:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    random: Random
    dialect: Dialect

    async def say(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def open(self) -> None:
        await self.say(self.dialect.opening(self.random))

    async def linger(self) -> None:
        """Stay until the server ends the connection, or for a while."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._read_all(), LINGER * self.random.random())

    async def _read_all(self) -> None:
        while await self.reader.read(PART):
            pass


async def silent(peer: Peer) -> None:
    """Connect and send nothing."""
    await peer.linger()


async def mute(peer: Peer) -> None:
    """Open a link and send nothing more."""
    await peer.open()
    await peer.linger()


async def slow(peer: Peer) -> None:
    """Send the correct first messages, one byte at a time."""
    said = peer.dialect.opening(peer.random) + peer.dialect.framed(wire.control(_hello(peer)))
    for at in range(len(said)):
        await peer.say(said[at : at + 1])
        await asyncio.sleep(SLOW * peer.random.random())


async def half(peer: Peer) -> None:
    """Open the first of a link's several connections, and never open the others."""
    await peer.say(wire.preamble(peer.random, streams=16))
    await peer.linger()


async def greedy(peer: Peer) -> None:
    """Announce and send a control message of the maximum length."""
    await peer.open()
    await peer.say(peer.dialect.framed(wire.header(wire.CONTROL, wire.MAX_CONTROL)))
    await peer.say(*[bytes(PART)] * (wire.MAX_CONTROL // PART))
    await peer.linger()


async def hungry(peer: Peer) -> None:
    """Send a Hello that takes long to decode, because it has half a million holes."""
    await peer.open()
    await peer.say(_large_hello(peer.dialect))
    await peer.linger()


async def bulky(peer: Peer) -> None:
    """Send chunks of an update that was not requested."""
    await peer.open()
    for n in range(peer.random.randrange(1, 64)):
        await peer.say(peer.dialect.framed(wire.header(wire.CHUNK, PART, offset=n * PART) + bytes(PART)))
    await peer.linger()


async def liar(peer: Peer) -> None:
    """Send a Hello with a wrong proof under another client's name, or an offer before any Hello."""
    await peer.open()
    said = _hello(peer) if peer.random.random() < 0.7 else wire.offer(peer.random)
    await peer.say(peer.dialect.framed(wire.control(said)))
    await peer.linger()


async def vandal(peer: Peer) -> None:
    """Send frames with some changed bytes."""
    await peer.open()
    frame = bytearray(peer.dialect.framed(wire.control(_hello(peer))))
    for _ in range(peer.random.randrange(1, 8)):
        frame[peer.random.randrange(len(frame))] = peer.random.randrange(256)
    await peer.say(bytes(frame))
    await peer.linger()


async def mortal(peer: Peer) -> None:
    """Reset the connection in the middle of a message."""
    said = peer.dialect.opening(peer.random) + peer.dialect.framed(wire.control(_hello(peer)))
    await peer.say(said[: peer.random.randrange(len(said))])
    peer.writer.transport.abort()


async def stranger(peer: Peer) -> None:
    """Speak another protocol."""
    await peer.say(peer.random.choice((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", peer.random.randbytes(400))))
    await peer.linger()


Kind = Callable[[Peer], Awaitable[None]]
KINDS: Final[Sequence[Kind]] = (
    silent, mute, slow, half, greedy, hungry, bulky, liar, vandal, mortal, stranger,
)  # fmt: skip
_LARGE: Final[dict[int, bytes]] = {}


def _hello(peer: Peer) -> bytes:
    return wire.hello(peer.random.choice((b"client-0", b"client-9", b"\x1b[2J\n")), peer.random)


def _large_hello(dialect: Dialect) -> bytes:
    # Its checksum takes a while to compute, so all such peers send the same message.
    if id(dialect) not in _LARGE:
        _LARGE[id(dialect)] = dialect.framed(wire.control(wire.hello(b"n", Random(0), holes=HOLES)))
    return _LARGE[id(dialect)]


async def _datagrams(host: str, port: int, dialect: Dialect, random: Random) -> str:
    loop = asyncio.get_running_loop()
    source = (random.choice(SOURCES), 0)
    transport, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=source, remote_addr=(host, port)
    )
    for _ in range(random.randrange(DATAGRAMS)):
        transport.sendto(dialect.opening(random))
        await asyncio.sleep(random.random() * SLOW)
    transport.abort()
    return "ended"


async def _one(host: str, port: int, dialect: Dialect, kind: Kind, random: Random) -> str:
    """Run one peer; return how it ended."""
    if dialect.datagrams:
        return await _datagrams(host, port, dialect, random)
    try:
        if dialect.path:
            reader, writer = await asyncio.open_unix_connection(dialect.path.format(port=port))
        else:
            source = (random.choice(SOURCES), 0)
            reader, writer = await asyncio.open_connection(host, port, local_addr=source)
    except OSError:
        await asyncio.sleep(0.01)
        return "not let in"
    try:
        await kind(Peer(reader, writer, random, dialect))
    except OSError:
        return "cut off"
    finally:
        writer.transport.abort()
    return "ended"


async def attack(url: str, seed: int, kinds: Sequence[Kind], over: asyncio.Event) -> Counter[str]:
    """Attack ``url`` with peers of these kinds until ``over``; return the number of peers by kind, and by their end."""
    parts = urlsplit(url)
    dialect, seeds = DIALECTS[parts.scheme], Random(seed)
    host, port = parts.hostname or "127.0.0.1", parts.port or 0
    counts: Counter[str] = Counter()

    async def forever(random: Random) -> None:
        # Python before 3.12 may lose a cancellation in wait_for().
        while not over.is_set():
            kind = random.choice(kinds)
            counts[kind.__name__] += 1
            counts[await _one(host, port, dialect, kind, random)] += 1

    peers = [asyncio.ensure_future(forever(Random(seeds.getrandbits(64)))) for _ in range(PEERS)]
    await over.wait()
    for peer in peers:
        peer.cancel()
    await asyncio.gather(*peers, return_exceptions=True)
    return counts


async def _main(url: str, seed: int) -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().run_in_executor(None, sys.stdin.read).add_done_callback(lambda _: over.set())
    sys.stdout.write(json.dumps(await attack(url, seed, KINDS, over)) + "\n")


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2])))
