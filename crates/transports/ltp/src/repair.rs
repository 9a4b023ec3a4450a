//! The symbols of packets and their code, RaptorQ (RFC 6330): repair packets are made from symbols, and lost
//! packets are rebuilt from them.
//!
//! The symbol of a packet contains the fields in which it differs from other packets of its block. Zeros fill
//! it up to the length of the block's longest symbol. The symbol of a probe is all zeros.
//!
//! | byte | field | |
//! |---|---|---|
//! | 0 | index | 3 bytes, index of the chunk in the transfer |
//! | 3 | offset | u64, offset in the update |
//! | 11 | length | u16, bytes of payload |
//! | 13 | payload checksum | u32, CRC-32C |
//! | 17 | payload | |

use raptorq::{
    EncodingPacket, ObjectTransmissionInformation, PayloadId, SourceBlockDecoder, SourceBlockEncoder,
};
use thalweg_sending::ltp::{Block, ChunkId, Rebuild, MAX_BLOCK};
use thalweg_wire::{ChunkHeader, FrameHeader, LayoutHash};

use crate::CHUNK;

/// Number of bytes of a symbol before its payload.
pub(crate) const SYMBOL_HEADER_BYTES: usize = 17;
/// Number of bytes of an encoded [`Common`].
pub(crate) const COMMON_BYTES: usize = 29;

/// The fields that the chunks of a block share: transfer u16, number of chunks less one in 3 bytes, job u64,
/// round u32, sender u32, layout u64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Common {
    transfer: u16,
    of: u32,
    job: u64,
    round: u32,
    sender: u32,
    layout: LayoutHash,
}

impl Common {
    pub(crate) fn new(part: ChunkId, header: &FrameHeader) -> Self {
        let ChunkHeader { job, round, sender, layout, .. } = header.chunk;
        Self { transfer: part.transfer, of: part.of, job, round, sender, layout }
    }

    pub(crate) fn encode(&self) -> [u8; COMMON_BYTES] {
        let mut out = [0; COMMON_BYTES];
        out[..2].copy_from_slice(&self.transfer.to_le_bytes());
        out[2..5].copy_from_slice(&self.of.wrapping_sub(1).to_le_bytes()[..3]);
        out[5..13].copy_from_slice(&self.job.to_le_bytes());
        out[13..17].copy_from_slice(&self.round.to_le_bytes());
        out[17..21].copy_from_slice(&self.sender.to_le_bytes());
        out[21..].copy_from_slice(&self.layout.0.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; COMMON_BYTES] = bytes.try_into().ok()?;
        Some(Self {
            transfer: number_of(&bytes[..2]) as u16,
            of: number_of(&bytes[2..5]) as u32 + 1,
            job: number_of(&bytes[5..13]),
            round: number_of(&bytes[13..17]) as u32,
            sender: number_of(&bytes[17..21]) as u32,
            layout: LayoutHash(number_of(&bytes[21..])),
        })
    }
}

/// Decodes a little-endian number of at most 8 bytes.
pub(crate) fn number_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// Appends the symbol of a chunk to `out`.
pub(crate) fn write(part: ChunkId, header: &FrameHeader, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&part.index.to_le_bytes()[..3]);
    out.extend_from_slice(&header.chunk.offset.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    out.extend_from_slice(&header.payload_checksum.to_le_bytes());
    out.extend_from_slice(payload);
}

/// The content of a packet, as its symbol describes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Chunk(ChunkId, FrameHeader, Vec<u8>),
    Probe,
}

/// Decodes a symbol. `None` if no packet can have it, or if its checksum does not match.
fn read(common: &Common, symbol: &[u8]) -> Option<Content> {
    let (head, rest) = symbol.split_at_checked(SYMBOL_HEADER_BYTES)?;
    let length = number_of(&head[11..13]) as usize;
    if length == 0 {
        return symbol.iter().all(|&byte| byte == 0).then_some(Content::Probe);
    }
    let part = ChunkId { transfer: common.transfer, index: number_of(&head[..3]) as u32, of: common.of };
    let Common { job, round, sender, layout, .. } = *common;
    let offset = number_of(&head[3..11]);
    let chunk = ChunkHeader { job, round, sender, layout, offset, length: length as u32 };
    let header = FrameHeader::chunk(chunk, number_of(&head[13..]) as u32);
    let payload = rest.get(..length).filter(|payload| header.verify(payload).is_ok())?;
    (part.index < part.of && length <= CHUNK as usize).then(|| Content::Chunk(part, header, payload.to_vec()))
}

/// The symbols of the block that is being sent. Repair packets are made from these copies, because the loan
/// of the update may have ended.
#[derive(Default)]
pub(crate) struct Copies {
    first: u64,
    common: Option<Common>,
    bytes: Vec<u8>,
    /// Offset in `bytes` at which each symbol ends.
    ends: Vec<usize>,
    code: Option<SourceBlockEncoder>,
}

impl Copies {
    /// Keeps the symbol of packet `number`, which is being sent, in the block that begins with `first`. The
    /// packet is a chunk, or else a probe.
    pub(crate) fn keep(&mut self, first: u64, number: u64, chunk: Option<(ChunkId, &FrameHeader, &[u8])>) {
        if self.first != first || number == first {
            self.bytes.clear();
            self.ends.clear();
            (self.first, self.common, self.code) = (first, None, None);
        }
        // If an earlier packet of the block is missing, keep none of the later ones, so that no repair packet
        // is made.
        if first + self.ends.len() as u64 == number && self.ends.len() < MAX_BLOCK as usize {
            if let Some((part, header, payload)) = chunk {
                self.common.get_or_insert(Common::new(part, header));
                write(part, header, payload, &mut self.bytes);
            }
            self.ends.push(self.bytes.len());
        }
    }

    /// Makes the repair packet with index `which` of a block. `None` if not all packets of the block were
    /// kept.
    pub(crate) fn repair(&mut self, block: Block, which: u32) -> Option<(Common, Vec<u8>)> {
        if block.first != self.first || block.count as usize != self.ends.len() {
            return None;
        }
        let (bytes, ends) = (&self.bytes, &self.ends);
        let code = self.code.get_or_insert_with(|| encoder(bytes, ends));
        let symbol = code.repair_packets(which, 1).pop()?.split().1;
        Some((self.common?, symbol))
    }
}

fn encoder(bytes: &[u8], ends: &[usize]) -> SourceBlockEncoder {
    let mut start = 0;
    let symbols: Vec<&[u8]> = ends
        .iter()
        .map(|&end| {
            let symbol = bytes.get(start..end).unwrap_or_default();
            start = end;
            symbol
        })
        .collect();
    let size = symbols.iter().map(|symbol| symbol.len()).max().unwrap_or(0).max(1);
    let mut padded = Vec::with_capacity(size * symbols.len());
    for (count, symbol) in (1..).zip(symbols) {
        padded.extend_from_slice(symbol);
        padded.resize(count * size, 0);
    }
    SourceBlockEncoder::new(0, &shape(ends.len(), size), &padded)
}

/// The parameters of one source block with `count` symbols of `size` bytes.
fn shape(count: usize, size: usize) -> ObjectTransmissionInformation {
    ObjectTransmissionInformation::new((count * size) as u64, size as u16, 1, 1, 1)
}

/// Rebuilds the missing packets of a block, with their numbers. In `from`, each repair packet is an encoded
/// [`Common`] and a symbol. `None` if the symbols are too few to decode, or are not of one block.
pub(crate) fn rebuild(from: &Rebuild<'_>) -> Option<Vec<(u64, Content)>> {
    let (_, first) = from.repair.first()?;
    let (head, symbol) = first.split_at_checked(COMMON_BYTES)?;
    let (common, count, size) = (Common::decode(head)?, from.block.count, symbol.len());
    let fits = |repair: &[u8]| repair.len() == first.len() && repair.starts_with(head);
    let whole = from.repair.iter().all(|(_, repair)| fits(repair))
        && from.packets.iter().all(|(_, symbol)| symbol.len() <= size);
    if !whole || size <= SYMBOL_HEADER_BYTES || size > SYMBOL_HEADER_BYTES + CHUNK as usize {
        return None;
    }
    let packets = from.packets.iter().map(|&(at, symbol)| {
        let mut padded = symbol.to_vec();
        padded.resize(size, 0);
        EncodingPacket::new(PayloadId::new(0, at), padded)
    });
    let repair = from.repair.iter().map(|&(which, repair)| {
        EncodingPacket::new(PayloadId::new(0, count + which), repair[COMMON_BYTES..].to_vec())
    });
    let length = u64::from(count) * size as u64;
    let mut code = SourceBlockDecoder::new(0, &shape(count as usize, size), length);
    let symbols = code.decode(packets.chain(repair))?;
    let arrived = |at: u32| from.packets.iter().any(|&(position, _)| position == at);
    (0..count)
        .zip(symbols.chunks(size))
        .filter(|&(at, _)| !arrived(at))
        .map(|(at, symbol)| Some((from.block.first + u64::from(at), read(&common, symbol)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_wire::checksum;

    /// The packets of a block: every eighth is a probe, the others are chunks of different lengths.
    fn contents(count: u32, longest: usize) -> Vec<Content> {
        let content = |at: u32| {
            if at % 8 == 7 {
                return Content::Probe;
            }
            let length = (longest - (at as usize * 37) % longest).max(1);
            let payload: Vec<u8> = (0..length).map(|n| (n as u32 * 31 + at * 7) as u8).collect();
            let offset = u64::from(at) * 1_344;
            let chunk = ChunkHeader {
                job: 1,
                round: 2,
                sender: 3,
                layout: LayoutHash(4),
                offset,
                length: length as u32,
            };
            let part = ChunkId { transfer: 5, index: 100 - at, of: 101 };
            Content::Chunk(part, FrameHeader::chunk(chunk, checksum(&payload)), payload)
        };
        (0..count).map(content).collect()
    }

    fn as_chunk(content: &Content) -> Option<(ChunkId, &FrameHeader, &[u8])> {
        match content {
            Content::Chunk(part, header, payload) => Some((*part, header, payload)),
            Content::Probe => None,
        }
    }

    fn symbol(content: &Content) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some((part, header, payload)) = as_chunk(content) {
            write(part, header, payload, &mut out);
        }
        out
    }

    /// Rebuilds a block from its first `repair` repair packets, without the packets at `lost`.
    fn rebuilt(contents: &[Content], lost: &[u32], repair: u32) -> Option<Vec<(u64, Content)>> {
        let block = Block { first: 50, count: contents.len() as u32 };
        let mut copies = Copies::default();
        for (number, content) in (50..).zip(contents) {
            copies.keep(50, number, as_chunk(content));
        }
        let symbols: Vec<_> = contents.iter().map(symbol).collect();
        let packets = (0..).zip(&symbols).filter(|(at, _)| !lost.contains(at));
        let packets = packets.map(|(at, symbol)| (at, &symbol[..])).collect();
        let repair: Vec<_> = (0..repair)
            .map(|which| {
                let (common, symbol) = copies.repair(block, which).unwrap();
                [&common.encode()[..], &symbol].concat()
            })
            .collect();
        let repair = (0..).zip(&repair).map(|(which, symbol)| (which, &symbol[..])).collect();
        rebuild(&Rebuild { block, packets, repair })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_lost_is_rebuilt_to_the_byte(
            count in 1..=MAX_BLOCK,
            longest in 1..=CHUNK as usize,
            lost in prop::collection::btree_set(0..MAX_BLOCK, 1..20),
            more in 0..=2_u32,
        ) {
            let contents = contents(count, longest);
            let lost: Vec<u32> = lost.into_iter().filter(|at| *at < count).collect();
            prop_assume!(!lost.is_empty());
            let found = rebuilt(&contents, &lost, lost.len() as u32 + more);
            // As many symbols as packets suffice in 99 of 100 cases; with two more, all but one of a million
            // cases succeed.
            prop_assert!(found.is_some() || more < 2);
            for (place, (number, content)) in lost.iter().zip(found.iter().flatten()) {
                prop_assert_eq!(*number, 50 + u64::from(*place));
                prop_assert_eq!(content, &contents[*place as usize]);
            }
            prop_assert!(found.is_none_or(|found| found.len() == lost.len()));
        }

        #[test]
        fn made_up_symbols_never_panic(
            count in 1..=MAX_BLOCK,
            lengths in prop::collection::vec(0..80_usize, 1..70),
            bytes in any::<u8>(),
        ) {
            let symbols: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![bytes; length]).collect();
            let (repair, packets) = symbols.split_at(symbols.len() / 2);
            let packets = (0..count).zip(packets).map(|(at, symbol)| (at, &symbol[..])).collect();
            let repair = (0..).zip(repair).map(|(which, symbol)| (which, &symbol[..])).collect();
            let _ = rebuild(&Rebuild { block: Block { first: 0, count }, packets, repair });
        }
    }

    #[test]
    fn a_block_with_a_gap_has_no_repair_packets() {
        let contents = contents(4, 100);
        let mut copies = Copies::default();
        for (number, content) in [(10, &contents[0]), (11, &contents[1]), (13, &contents[3])] {
            copies.keep(10, number, as_chunk(content));
        }
        assert!(copies.repair(Block { first: 10, count: 4 }, 0).is_none());
        assert!(copies.repair(Block { first: 10, count: 2 }, 0).is_some(), "it has all of these");
        assert!(copies.repair(Block { first: 9, count: 2 }, 0).is_none(), "of another block");
    }

    #[test]
    fn what_is_rebuilt_wrongly_is_seen() {
        let common = Common { transfer: 1, of: 2, job: 3, round: 4, sender: 5, layout: LayoutHash(6) };
        let contents = contents(1, 100);
        let mut bytes = symbol(&contents[0]);
        assert_eq!(read(&common, &bytes), None, "its index is beyond the update's chunks");
        bytes[0] = 1;
        assert!(read(&common, &bytes).is_some());
        bytes[50] ^= 1;
        assert_eq!(read(&common, &bytes), None, "its checksum is another");
        bytes[11..13].copy_from_slice(&[0, 0]);
        assert_eq!(read(&common, &bytes), None, "a probe is all zeros");
    }
}
