"""The bytes of messages, for hostile peers that alter them: frames, the first messages, gRPC's first call.

The formats are those of crates/wire (frame.rs; control.rs and forward.rs with postcard), crates/transports/tcp
(preamble.rs), crates/transports/shm (frame.rs) and HTTP/2 (RFC 9113, RFC 7541). They are implemented a second time
here, so that the code under test cannot refuse what an attacker sends.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Final

CONTROL: Final = 1
CHUNK: Final = 2
MAX_CONTROL: Final = 8 << 20
HEADER_BYTES: Final = 52
VERSION: Final = 8
REFUSED: Final = 3
# The place of `Authentication` in crates/wire's `Refusal`.
BAD_PROOF: Final = 1
# Messages between two ends that forward, in the order of crates/wire's `Forward`.
READY, OPEN, CREDIT, SENT, MISSING, END, RESET = range(7)
SHM_OPENING: Final = b"tlwshm\x01\0"
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA: Final = 0
HEADERS: Final = 1
SETTINGS: Final = 4
END_HEADERS: Final = 4


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(map(_entry, range(256)))


def checksum(data: bytes) -> int:
    """Return the CRC-32C of ``data``."""
    rest = 0xFFFFFFFF
    for byte in data:
        rest = _TABLE[(rest ^ byte) & 0xFF] ^ (rest >> 8)
    return rest ^ 0xFFFFFFFF


def preamble(random: Random, stream: int = 0, streams: int = 1) -> bytes:
    """Return the first bytes of a tcp connection: stream ``stream`` of a new link."""
    return b"tlwp" + bytes((1, stream, streams, 0)) + random.randbytes(16)


def header(kind: int, length: int, payload_sum: int = 0, offset: int = 0, round_: int = 1) -> bytes:
    """Return the header of a frame of ``length`` bytes."""
    head = b"tlwg" + struct.pack("<BBHIIQIIQQ", 1, kind, 0, length, payload_sum, 1, round_, 1, 0, offset)
    return head + struct.pack("<I", checksum(head))


def control(message: bytes) -> bytes:
    """Return the frame of a control message."""
    return header(CONTROL, len(message), checksum(message)) + message


def varint(value: int) -> bytes:
    """Return a number in the encoding of postcard."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def hello(name: bytes, random: Random, holes: int = 0) -> bytes:
    """Return a Hello with a wrong proof, which states that the sender holds an update with ``holes`` holes."""
    holding = b"\x00"
    if holes:
        ranges = b"".join(varint(4 * n) + varint(4 * n + 1) for n in range(holes))
        holding = b"\x01" + varint(1) + varint(holes) + ranges
    proof = b"\x01" + random.randbytes(160)
    said = varint(VERSION) + varint(len(name)) + name + varint(random.getrandbits(63)) + random.randbytes(32)
    return b"\x01" + said + proof + b"\x00" + holding + varint(random.getrandbits(40)) + b"\x00"


def challenge(random: Random) -> bytes:
    """Return the Challenge of a listener that wants no proof."""
    return b"\x00" + 2 * varint(VERSION) + random.randbytes(32) + b"\x00" + varint(random.getrandbits(40))


def near_hello(name: bytes, random: Random) -> bytes:
    """Return the Hello of a near end that forwards, without a proof."""
    said = varint(VERSION) + varint(len(name)) + name + varint(random.getrandbits(63)) + random.randbytes(32)
    return b"\x01" + said + b"\x00\x00\x00" + varint(random.getrandbits(40)) + b"\x03"


def forward(what: int, *numbers: int) -> bytes:
    """Return a message between two ends that forward, of which all fields are numbers."""
    return b"\x10" + bytes((what,)) + b"".join(map(varint, numbers))


def chunk(stream: int, position: int, payload: bytes, damage: int = 0) -> bytes:
    """Return a frame with bytes of a forwarded stream. With ``damage`` its checksum is wrong."""
    return header(CHUNK, len(payload), checksum(payload) ^ damage, stream << 40 | position) + payload


def offer(random: Random) -> bytes:
    """Return an Offer of an update that was not requested: a Parcel of the whole model."""
    content = b"\x01" + varint(random.getrandbits(63))
    return b"\x04" + varint(1) + b"\x00" + varint(2) + b"{}" + content + b"\x00" + struct.pack("<d", 2.0**50) + b"\x00"


def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def grpc_call() -> bytes:
    """Return the beginning of a connection of grpc: settings, and the call that is the link."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/thalweg.v1.Link/Exchange"),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    block = b"".join(_literal(name, value) for name, value in fields)
    return PREFACE + http2(SETTINGS, 0, 0, b"") + http2(HEADERS, END_HEADERS, 1, block)


def quic_packet(random: Random) -> bytes:
    """Return a datagram as of a first packet of QUIC version 1 (RFC 9000, section 17.2.2); its payload is noise."""
    destination, source = random.randbytes(8), random.randbytes(8)
    rest = random.randbytes(random.choice((0, 20, 1150, 1170, 1400)))
    length = struct.pack(">H", 0x4000 | min(len(rest), 0x3FFF))
    ids = bytes((8,)) + destination + bytes((8,)) + source
    return bytes((random.choice((0xC0, 0xC3, 0xE0, 0x40)),)) + b"\x00\x00\x00\x01" + ids + b"\x00" + length + rest


def shm_frame(frame: bytes) -> bytes:
    """Return a frame in the form of shm: a control message, or a note about a chunk in memory that was never shared."""
    head, payload = frame[:HEADER_BYTES], frame[HEADER_BYTES:]
    kind, length = struct.unpack_from("<xBxxI", head, len(b"tlwg"))
    if kind == CONTROL:
        return struct.pack("<B3xI", CONTROL, length) + payload
    note = struct.pack("<QQIHH", 1, 0, 2, 0, 0) + head
    return struct.pack("<B3xI", CHUNK, len(note)) + note


def grpc_frame(frame: bytes) -> bytes:
    """Return a frame (header and payload) as DATA frames of HTTP/2's stream 1, of at most 16 KiB each."""
    head, payload = frame[:HEADER_BYTES], frame[HEADER_BYTES:]
    message = b"\x0a" + varint(len(head)) + head + b"\x12" + varint(len(payload)) + payload
    message = b"\x00" + struct.pack(">I", len(message)) + message
    parts = (message[at : at + 16384] for at in range(0, len(message), 16384))
    return b"".join(http2(DATA, 0, 1, part) for part in parts)


def zmtp_greeting() -> bytes:
    """Return the first bytes of a zmq connection: ZMTP 3.0 without security (RFC 23)."""
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\x00") + b"\x00" + bytes(31)
