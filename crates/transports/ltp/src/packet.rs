//! Format of a datagram. The first 32 bytes are those of `udp`, so that sockets and encryption are the same.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | key | 16 random bytes, sent to the peer over the control connection |
//! | 16 | kind | 1 chunk, 2 probe, 3 acknowledgement, 4 hello, 5 repair |
//! | 17 | flags | bit 0: the packet belongs to a block, which repair packets may follow |
//! | 18 | message count | 6 bytes. Number of control messages that the sender had sent before (0: the chunk, or the repair packet for such chunks, waits for none). In an acknowledgement, the highest such number that has arrived |
//! | 24 | number | u64, number of the packet. In an acknowledgement, one more than the highest number that has arrived |
//! | 32 | | chunk: transfer u16; index and number of chunks less one, 3 bytes each; the frame |
//! | 32 | | acknowledgement: reason of closing u8 and the closed transfer u16; lengths of ranges and of the gaps between them, u32 each, in descending order |
//! | 32 | | repair packet: its number less the block's first number, u16; number of packets in the block and index of the repair packet, u8 each; CRC-32C of the rest, u32; [the fields that the block's chunks share](crate::repair::Common); a [symbol](crate::repair) |

use thalweg_sending::ltp::{Ack, Block, ChunkId, Closed, MAX_BLOCK, MAX_PIECES, MAX_RANGES};
use thalweg_udp::datagram::{Encode, Key, PREFIX_BYTES, WHOLE};
use thalweg_wire::{checksum, FrameHeader, Kind as Frame, Range, HEADER_BYTES};

use crate::repair::{number_of, Common, COMMON_BYTES, SYMBOL_HEADER_BYTES};
use crate::CHUNK;

const PART_BYTES: usize = 8;
/// Number of bytes before a chunk's payload.
pub(crate) const CHUNK_HEADER_BYTES: usize = PREFIX_BYTES + PART_BYTES + HEADER_BYTES;
const _: () = assert!(CHUNK_HEADER_BYTES + CHUNK as usize + thalweg_seal::TAG_BYTES <= WHOLE);
const _: () = assert!(MAX_PIECES <= 1 << 24);
/// Number of bytes of a repair packet between its prefix and the common fields.
const BLOCK_BYTES: usize = 8;
/// Number of bytes before a repair packet's symbol.
pub(crate) const REPAIR_HEADER_BYTES: usize = PREFIX_BYTES + BLOCK_BYTES + COMMON_BYTES;
const LONGEST_SYMBOL: usize = SYMBOL_HEADER_BYTES + CHUNK as usize;
const _: () = assert!(REPAIR_HEADER_BYTES + LONGEST_SYMBOL + thalweg_seal::TAG_BYTES <= WHOLE);
const _: () = assert!(MAX_BLOCK <= 255);

/// The kind of a datagram, with the fields of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A whole chunk, with the header of its frame.
    Chunk(ChunkId, FrameHeader),
    /// Asks for an acknowledgement.
    Probe,
    Ack(Ack),
    Repair(Repair),
}

/// A repair packet. Its symbol follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Repair {
    pub block: Block,
    /// Index of the repair packet in the block, from 0; less than 256.
    pub which: u32,
    pub common: Common,
    /// CRC-32C of the common fields and the symbol.
    pub checksum: u32,
}

impl Repair {
    /// A repair packet with the checksum for `symbol`.
    pub(crate) fn new(block: Block, which: u32, common: Common, symbol: &[u8]) -> Self {
        let checksum = checksum(&[&common.encode()[..], symbol].concat());
        Self { block, which, common, checksum }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub kind: Kind,
    /// Whether the packet belongs to a block that repair packets may follow. Only chunks and probes may.
    pub covered: bool,
    /// Number of control messages that the packet must follow; see the table above. Less than 2^48.
    pub message_count: u64,
    /// Number of the packet. An acknowledgement has none; its field holds the end of its first range.
    pub number: u64,
}

impl Encode for Datagram {
    fn encode(&self, key: &Key, out: &mut Vec<u8>) {
        let (kind, number) = match &self.kind {
            Kind::Chunk(..) => (1, self.number),
            Kind::Probe => (2, self.number),
            Kind::Ack(ack) => (3, ack.ranges.first().map_or(0, |range| range.end)),
            Kind::Repair(_) => (5, self.number),
        };
        out.extend_from_slice(key);
        out.extend_from_slice(&[kind, self.covered.into()]);
        out.extend_from_slice(&self.message_count.to_le_bytes()[..6]);
        out.extend_from_slice(&number.to_le_bytes());
        match &self.kind {
            Kind::Chunk(part, header) => {
                out.extend_from_slice(&part.transfer.to_le_bytes());
                out.extend_from_slice(&part.index.to_le_bytes()[..3]);
                // The number less one, so that 2^24 chunks fit 3 bytes.
                out.extend_from_slice(&part.of.wrapping_sub(1).to_le_bytes()[..3]);
                out.extend_from_slice(&header.encode());
            }
            Kind::Probe => {}
            Kind::Ack(ack) => encode_ack(ack, out),
            Kind::Repair(repair) => {
                out.extend_from_slice(&(self.number.wrapping_sub(repair.block.first) as u16).to_le_bytes());
                out.extend_from_slice(&[repair.block.count as u8, repair.which as u8]);
                out.extend_from_slice(&repair.checksum.to_le_bytes());
                out.extend_from_slice(&repair.common.encode());
            }
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
        // A range whose gap or length exceeds 32 bits is left out, with all below it: those packets were
        // decided long ago.
        let (Ok(gap), Ok(length)) = (gap.map(u32::try_from).transpose(), u32::try_from(range.len())) else {
            return;
        };
        gap.into_iter().chain([length]).for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        above = Some(range.start);
    }
}

impl Datagram {
    /// Decodes and checks a datagram. The payload of a chunk begins at [`CHUNK_HEADER_BYTES`] and is as long
    /// as its header says. The symbol of a repair packet begins at [`REPAIR_HEADER_BYTES`]. Returns `None`
    /// for a datagram that does not belong to this link. It is dropped without an error, because anybody can
    /// send us datagrams.
    pub(crate) fn decode(key: &Key, bytes: &[u8]) -> Option<Self> {
        let (prefix, rest) = bytes.split_at_checked(PREFIX_BYTES)?;
        if prefix[..16] != key[..] || prefix[17] > 1 {
            return None;
        }
        let number = number_of(&prefix[24..]);
        let covered = prefix[17] == 1;
        let kind = match prefix[16] {
            1 => chunk(rest)?,
            2 if rest.is_empty() => Kind::Probe,
            3 if !covered => Kind::Ack(ack(number, rest)?),
            5 if !covered => repair(number, rest)?,
            _ => return None,
        };
        Some(Self { kind, covered, message_count: number_of(&prefix[18..24]), number })
    }
}

fn chunk(rest: &[u8]) -> Option<Kind> {
    let (part, frame) = rest.split_at_checked(PART_BYTES)?;
    let header = FrameHeader::decode(frame).ok()?;
    let whole = header.length() <= CHUNK as usize && frame.len() == HEADER_BYTES + header.length();
    let part = ChunkId {
        transfer: number_of(&part[..2]) as u16,
        index: number_of(&part[2..5]) as u32,
        of: number_of(&part[5..]) as u32 + 1,
    };
    (whole && header.kind == Frame::Chunk && part.index < part.of).then_some(Kind::Chunk(part, header))
}

fn repair(number: u64, rest: &[u8]) -> Option<Kind> {
    let (head, rest) = rest.split_at_checked(BLOCK_BYTES)?;
    let (back, count, which) = (number_of(&head[..2]), u32::from(head[2]), u32::from(head[3]));
    let sum = number_of(&head[4..]) as u32;
    let (common, symbol) = rest.split_at_checked(COMMON_BYTES)?;
    let fits = (1..=MAX_BLOCK).contains(&count) && back >= count.into();
    let whole = (SYMBOL_HEADER_BYTES + 1..=LONGEST_SYMBOL).contains(&symbol.len()) && checksum(rest) == sum;
    let (block, common) = (Block { first: number.checked_sub(back)?, count }, Common::decode(common)?);
    (fits && whole).then_some(Kind::Repair(Repair { block, which, common, checksum: sum }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_wire::{ChunkHeader, LayoutHash};

    const KEY: Key = [7; 16];

    fn encoded(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Datagram { kind, covered: false, message_count: 8, number: 90 }.encode(&KEY, &mut out);
        out.extend_from_slice(payload);
        out
    }

    fn chunk_of(payload: &[u8]) -> Kind {
        let length = payload.len() as u32;
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset: 5, length };
        let part = ChunkId { transfer: 40_000, index: (1 << 24) - 1, of: 1 << 24 };
        Kind::Chunk(part, FrameHeader::chunk(chunk, checksum(payload)))
    }

    fn repair_of(block: Block, symbol: &[u8]) -> Kind {
        let Kind::Chunk(part, header) = chunk_of(b"payload") else { unreachable!() };
        Kind::Repair(Repair::new(block, 255, Common::new(part, &header), symbol))
    }

    #[test]
    fn round_trips() {
        let block = Block { first: 10, count: MAX_BLOCK };
        let symbol = [1; SYMBOL_HEADER_BYTES + 1];
        let kinds = [
            (chunk_of(b"payload"), &b"payload"[..]),
            (Kind::Probe, b""),
            (repair_of(block, &symbol), &symbol),
        ];
        for (kind, rest) in kinds {
            let mut bytes = encoded(kind.clone(), rest);
            let found = Datagram { kind: kind.clone(), covered: false, message_count: 8, number: 90 };
            assert_eq!(Datagram::decode(&KEY, &bytes), Some(found));
            assert_eq!(Datagram::decode(&[8; 16], &bytes), None);
            bytes[17] = 1;
            let covered = Datagram::decode(&KEY, &bytes).map(|found| found.covered);
            assert_eq!(covered, (!matches!(kind, Kind::Repair(_))).then_some(true));
        }
    }

    #[test]
    fn repair_packets_of_no_block_are_refused() {
        let symbol = [1; LONGEST_SYMBOL];
        let block = Block { first: 80, count: 10 };
        let bytes = encoded(repair_of(block, &symbol), &symbol);
        assert!(bytes.len() + thalweg_seal::TAG_BYTES <= WHOLE && Datagram::decode(&KEY, &bytes).is_some());
        for (first, count) in [(81, 10), (80, 0), (20, MAX_BLOCK + 1)] {
            let lie = encoded(repair_of(Block { first, count }, &symbol), &symbol);
            assert_eq!(Datagram::decode(&KEY, &lie), None, "{first} {count}");
        }
        let mut early = bytes.clone();
        early[24..32].copy_from_slice(&5_u64.to_le_bytes());
        assert_eq!(Datagram::decode(&KEY, &early), None, "a block before the first packet");
        for length in [0, SYMBOL_HEADER_BYTES, LONGEST_SYMBOL + 1] {
            let symbol = vec![1; length];
            assert_eq!(Datagram::decode(&KEY, &encoded(repair_of(block, &symbol), &symbol)), None);
        }
        for at in PREFIX_BYTES + 4..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert_eq!(Datagram::decode(&KEY, &flipped), None, "byte {at}");
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
            prop_assert_eq!((found.kind, found.message_count), (Kind::Ack(ack), 8));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0..7_u8) {
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
