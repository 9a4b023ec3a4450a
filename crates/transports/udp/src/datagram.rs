//! The format of a datagram. All numbers are little-endian.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | key | 16 random bytes, which the peer receives over the control connection |
//! | 16 | kind | 1 chunk, 2 probe, 3 report, 4 hello |
//! | 17 | flags | bit 0: asks for a report |
//! | 18 | message count | 6 bytes: number of control messages that the sender has sent before; see below |
//! | 24 | position | u64: total [`cost`](crate::window::cost) sent, up to and with this datagram |
//! | 32 | | chunk: its frame, header and payload; report: u64, total cost received |
//!
//! [`turns`](crate::turns) explains the message count. It is 0 in a chunk that waits for no message. A report
//! has the greatest message count and the greatest position that have arrived. A hello's position is the
//! number of its socket pair.
//! Under TLS, datagrams are [sealed](crate::secure).

use thalweg_seal::TAG_BYTES;
use thalweg_wire::{FrameHeader, Kind as Frame, HEADER_BYTES};

use crate::{CHUNK, MAX_CHUNK};

/// Length of the prefix: the bytes before a chunk's frame.
pub const PREFIX_BYTES: usize = 32;
/// Bytes before a chunk's payload.
pub(crate) const CHUNK_HEADER_BYTES: usize = PREFIX_BYTES + HEADER_BYTES;
/// The longest datagram that IP does not fragment: 1500 bytes without the headers of UDP and IPv6.
pub const WHOLE: usize = 1500 - 8 - 40;
const _: () = assert!(CHUNK_HEADER_BYTES + CHUNK as usize + TAG_BYTES <= WHOLE);
/// The longest datagram that a link sends.
pub(crate) const LONGEST: usize = CHUNK_HEADER_BYTES + MAX_CHUNK as usize + TAG_BYTES;
const _: () = assert!(LONGEST <= 65_507, "longer than UDP over IPv4 takes");

/// Shows that a datagram belongs to the link. A peer that cannot see the link's traffic cannot guess the key.
pub type Key = [u8; 16];

/// A datagram that can be encoded. Its first [`PREFIX_BYTES`] begin with the key. Sealing authenticates these
/// bytes and does not encrypt them.
pub trait Encode {
    /// Appends the datagram without a chunk's payload.
    fn encode(&self, key: &Key, out: &mut Vec<u8>);
}

/// The kind of a datagram, with what is specific to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A whole chunk; this is its frame's header.
    Chunk(FrameHeader),
    /// Asks for a report.
    Probe,
    /// Total cost received.
    Report(u64),
    /// Tells the listener's end the address of the sender's socket.
    Hello,
}

/// A decoded datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub kind: Kind,
    pub report_wanted: bool,
    /// Number of control messages that were sent before this datagram; less than 2^48.
    pub message_count: u64,
    pub position: u64,
}

impl Encode for Datagram {
    fn encode(&self, key: &Key, out: &mut Vec<u8>) {
        let kind = match self.kind {
            Kind::Chunk(_) => 1,
            Kind::Probe => 2,
            Kind::Report(_) => 3,
            Kind::Hello => 4,
        };
        out.extend_from_slice(key);
        out.extend_from_slice(&[kind, self.report_wanted.into()]);
        out.extend_from_slice(&self.message_count.to_le_bytes()[..6]);
        out.extend_from_slice(&self.position.to_le_bytes());
        match self.kind {
            Kind::Chunk(header) => out.extend_from_slice(&header.encode()),
            Kind::Report(received) => out.extend_from_slice(&received.to_le_bytes()),
            Kind::Probe | Kind::Hello => {}
        }
    }
}

impl Datagram {
    /// Decodes and checks a datagram. A chunk's payload starts at [`CHUNK_HEADER_BYTES`] and has exactly the
    /// header's length. Returns `None` for a datagram that does not belong to the link; the caller drops it,
    /// since anybody can send to a UDP port.
    pub(crate) fn decode(key: &Key, bytes: &[u8]) -> Option<Self> {
        let (prefix, rest) = bytes.split_at_checked(PREFIX_BYTES)?;
        if prefix[..16] != key[..] || prefix[17] > 1 {
            return None;
        }
        let kind = match (prefix[16], rest.len()) {
            (1, _) => Kind::Chunk(chunk(rest)?),
            (2, 0) => Kind::Probe,
            (3, 8) => Kind::Report(u64_of(rest)?),
            (4, 0) => Kind::Hello,
            _ => return None,
        };
        let message_count = u64_of(&prefix[16..24])? >> 16;
        Some(Self { kind, report_wanted: prefix[17] == 1, message_count, position: u64_of(&prefix[24..])? })
    }
}

fn chunk(rest: &[u8]) -> Option<FrameHeader> {
    let header = FrameHeader::decode(rest).ok()?;
    let whole = header.length() <= MAX_CHUNK as usize && rest.len() == HEADER_BYTES + header.length();
    (whole && header.kind == Frame::Chunk).then_some(header)
}

fn u64_of(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_wire::{checksum, ChunkHeader, LayoutHash};

    const KEY: Key = [7; 16];

    fn whole(payload: &[u8]) -> Vec<u8> {
        let length = payload.len() as u32;
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 5, length };
        let kind = Kind::Chunk(FrameHeader::chunk(chunk, checksum(payload)));
        let mut out = Vec::new();
        Datagram { kind, report_wanted: true, message_count: 8, position: 9 }.encode(&KEY, &mut out);
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn round_trips() {
        for kind in [Kind::Probe, Kind::Report(77), Kind::Hello] {
            let datagram =
                Datagram { kind, report_wanted: false, message_count: (1 << 48) - 1, position: u64::MAX };
            let mut bytes = Vec::new();
            datagram.encode(&KEY, &mut bytes);
            assert_eq!(Datagram::decode(&KEY, &bytes), Some(datagram));
            assert_eq!(Datagram::decode(&[8; 16], &bytes), None);
        }
        let decoded = Datagram::decode(&KEY, &whole(b"payload")).unwrap();
        assert!(matches!(decoded.kind, Kind::Chunk(header) if header.length() == 7) && decoded.report_wanted);
    }

    #[test]
    fn a_false_length_is_refused() {
        let bytes = whole(&[1; 100]);
        assert_eq!(Datagram::decode(&KEY, &bytes[..bytes.len() - 1]), None);
        assert_eq!(Datagram::decode(&KEY, &[&bytes[..], &[0]].concat()), None);
        assert_eq!(Datagram::decode(&KEY, &whole(&[1; MAX_CHUNK as usize + 1])), None);
    }

    proptest! {
        #[test]
        fn any_flipped_bit_of_the_header_but_flag_count_and_position_is_seen(
            at in (0..CHUNK_HEADER_BYTES).prop_filter("checked", |at| !(17..32).contains(at)),
            bit in 0..8_u8,
        ) {
            let mut bytes = whole(&[3; 64]);
            bytes[at] ^= 1 << bit;
            prop_assert_eq!(Datagram::decode(&KEY, &bytes), None);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Datagram::decode(&KEY, &bytes);
            let _ = Datagram::decode(&KEY, &[&KEY[..], &bytes].concat());
        }
    }
}
