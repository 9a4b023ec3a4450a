//! What a datagram has. The first 32 bytes are as those of `udp`, so that sockets and sealing are the same.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | key | 16 random bytes, told to the peer over the control connection |
//! | 16 | kind | 1 chunk, 2 probe, 3 acknowledgement, 4 hello |
//! | 17 | | 0 |
//! | 18 | told | 6 bytes; control messages that the sender had sent before, or the greatest that has come |
//! | 24 | number | u64; the packet's, or one past the greatest that has come |
//! | 32 | | a chunk: transfer u16, index and number of chunks of 3 bytes each, its frame |
//! | 32 | | an acknowledgement: why and which transfer was closed, u8 and u16; lengths of ranges and of the gaps between them, u32 each, falling |

use thalweg_proto::ltp::{Ack, Closed, Part, MAX_PIECES, MAX_RANGES};
use thalweg_udp::datagram::{Encode, Key, PREFIX_BYTES, WHOLE};
use thalweg_wire::{FrameHeader, Kind as Frame, Range, HEADER_BYTES};

use crate::CHUNK;

const PART_BYTES: usize = 8;
/// Bytes before a chunk's payload.
pub(crate) const CHUNK_HEADER_BYTES: usize = PREFIX_BYTES + PART_BYTES + HEADER_BYTES;
const _: () = assert!(CHUNK_HEADER_BYTES + CHUNK as usize + thalweg_seal::TAG_BYTES <= WHOLE);
const _: () = assert!(MAX_PIECES <= 1 << 24);

/// What a datagram is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A chunk, whole, with its frame's header.
    Chunk(Part, FrameHeader),
    /// Asks for an acknowledgement.
    Probe,
    Ack(Ack),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub kind: Kind,
    /// Less than 2^48.
    pub told: u64,
    /// An acknowledgement has none; its field is that of the ranges.
    pub number: u64,
}

impl Encode for Datagram {
    fn encode(&self, key: &Key, out: &mut Vec<u8>) {
        let (kind, number) = match &self.kind {
            Kind::Chunk(..) => (1, self.number),
            Kind::Probe => (2, self.number),
            Kind::Ack(ack) => (3, ack.ranges.first().map_or(0, |range| range.end)),
        };
        out.extend_from_slice(key);
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&self.told.to_le_bytes()[..6]);
        out.extend_from_slice(&number.to_le_bytes());
        match &self.kind {
            Kind::Chunk(part, header) => {
                out.extend_from_slice(&part.transfer.to_le_bytes());
                out.extend_from_slice(&part.index.to_le_bytes()[..3]);
                // One less: all of 2^24 fit.
                out.extend_from_slice(&part.of.wrapping_sub(1).to_le_bytes()[..3]);
                out.extend_from_slice(&header.encode());
            }
            Kind::Probe => {}
            Kind::Ack(ack) => encode_ack(ack, out),
        }
    }
}

fn encode_ack(ack: &Ack, out: &mut Vec<u8>) {
    let (transfer, why) = match ack.closed {
        None => (0, 0),
        Some((transfer, Closed::Whole)) => (transfer, 1),
        Some((transfer, Closed::Fraction)) => (transfer, 2),
        Some((transfer, Closed::Deadline)) => (transfer, 3),
    };
    out.push(why);
    out.extend_from_slice(&transfer.to_le_bytes());
    let mut above = None;
    for range in ack.ranges.iter().take(MAX_RANGES) {
        let gap = above.map(|start: u64| start.saturating_sub(range.end));
        // What is further off than that has long been decided.
        let (Ok(gap), Ok(length)) = (gap.map(u32::try_from).transpose(), u32::try_from(range.len())) else {
            return;
        };
        gap.into_iter().chain([length]).for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        above = Some(range.start);
    }
}

impl Datagram {
    /// Decodes and checks; a chunk's payload is what follows [`CHUNK_HEADER_BYTES`], as long as its header says.
    /// `None` for whatever is not of this link: it is dropped, as anybody can send us anything.
    pub(crate) fn decode(key: &Key, bytes: &[u8]) -> Option<Self> {
        let (prefix, rest) = bytes.split_at_checked(PREFIX_BYTES)?;
        if prefix[..16] != key[..] || prefix[17] != 0 {
            return None;
        }
        let number = number_of(&prefix[24..]);
        let kind = match prefix[16] {
            1 => chunk(rest)?,
            2 if rest.is_empty() => Kind::Probe,
            3 => Kind::Ack(ack(number, rest)?),
            _ => return None,
        };
        Some(Self { kind, told: number_of(&prefix[18..24]), number })
    }
}

fn chunk(rest: &[u8]) -> Option<Kind> {
    let (part, frame) = rest.split_at_checked(PART_BYTES)?;
    let header = FrameHeader::decode(frame).ok()?;
    let whole = header.length() <= CHUNK as usize && frame.len() == HEADER_BYTES + header.length();
    let part = Part {
        transfer: number_of(&part[..2]) as u16,
        index: number_of(&part[2..5]) as u32,
        of: number_of(&part[5..]) as u32 + 1,
    };
    (whole && header.kind == Frame::Chunk && part.index < part.of).then_some(Kind::Chunk(part, header))
}

fn ack(end: u64, rest: &[u8]) -> Option<Ack> {
    let (closed, rest) = rest.split_at_checked(3)?;
    let transfer = number_of(&closed[1..]) as u16;
    let closed = match closed[0] {
        0 => None,
        1 => Some((transfer, Closed::Whole)),
        2 => Some((transfer, Closed::Fraction)),
        3 => Some((transfer, Closed::Deadline)),
        _ => return None,
    };
    if rest.len() % 4 != 0 || rest.len() > 4 * (2 * MAX_RANGES - 1) {
        return None;
    }
    let (mut ranges, mut below) = (Vec::new(), end);
    for (at, number) in rest.chunks_exact(4).map(number_of).enumerate() {
        let start = below.checked_sub(number).filter(|_| number > 0)?;
        if at % 2 == 0 {
            ranges.push(Range::new(start, below));
        }
        below = start;
    }
    Some(Ack { ranges, closed })
}

/// A number of at most 8 bytes.
fn number_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_wire::{checksum, ChunkHeader, LayoutHash};

    const KEY: Key = [7; 16];

    fn encoded(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Datagram { kind, told: 8, number: 9 }.encode(&KEY, &mut out);
        out.extend_from_slice(payload);
        out
    }

    fn chunk_of(payload: &[u8]) -> Kind {
        let length = payload.len() as u32;
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 5, length };
        let part = Part { transfer: 40_000, index: (1 << 24) - 1, of: 1 << 24 };
        Kind::Chunk(part, FrameHeader::chunk(chunk, checksum(payload)))
    }

    #[test]
    fn round_trips() {
        for kind in [chunk_of(b"payload"), Kind::Probe] {
            let payload = if kind == Kind::Probe { &b""[..] } else { b"payload" };
            let bytes = encoded(kind.clone(), payload);
            assert_eq!(Datagram::decode(&KEY, &bytes), Some(Datagram { kind, told: 8, number: 9 }));
            assert_eq!(Datagram::decode(&[8; 16], &bytes), None);
        }
    }

    #[test]
    fn the_longest_is_one_packet() {
        let bytes = encoded(chunk_of(&[1; CHUNK as usize]), &[1; CHUNK as usize]);
        assert_eq!(bytes.len() + thalweg_seal::TAG_BYTES, WHOLE);
        assert!(Datagram::decode(&KEY, &bytes).is_some());
    }

    #[test]
    fn a_length_that_lies_is_refused() {
        let bytes = encoded(chunk_of(&[1; 100]), &[1; 100]);
        assert_eq!(Datagram::decode(&KEY, &bytes[..bytes.len() - 1]), None);
        assert_eq!(Datagram::decode(&KEY, &[&bytes[..], &[0]].concat()), None);
        let long = [1; CHUNK as usize + 1];
        assert_eq!(Datagram::decode(&KEY, &encoded(chunk_of(&long), &long)), None);
    }

    proptest! {
        #[test]
        fn acknowledgements_round_trip(
            lengths in prop::collection::vec((1..u64::from(u32::MAX), 1..u64::from(u32::MAX)), 0..MAX_RANGES),
            closed in prop::option::of((any::<u16>(), 0..3_usize)),
        ) {
            let mut below = u64::MAX / 2;
            let ranges: Vec<Range> = lengths
                .iter()
                .map(|(gap, length)| {
                    let end = below - gap;
                    below = end - length;
                    Range::new(below, end)
                })
                .collect();
            let closed = closed.map(|(id, why)| (id, [Closed::Whole, Closed::Fraction, Closed::Deadline][why]));
            let ack = Ack { ranges, closed };
            let found = Datagram::decode(&KEY, &encoded(Kind::Ack(ack.clone()), b"")).unwrap();
            prop_assert_eq!((found.kind, found.told), (Kind::Ack(ack), 8));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0..5_u8) {
            let _ = Datagram::decode(&KEY, &bytes);
            let _ = Datagram::decode(&KEY, &[&KEY[..], &bytes].concat());
            if let Some(Kind::Ack(ack)) =
                Datagram::decode(&KEY, &[&KEY[..], &[kind, 0], &bytes].concat()).map(|found| found.kind)
            {
                prop_assert!(ack.ranges.len() <= MAX_RANGES && ack.ranges.iter().all(|range| !range.is_empty()));
                prop_assert!(ack.ranges.windows(2).all(|pair| pair[1].end < pair[0].start));
            }
        }
    }
}
