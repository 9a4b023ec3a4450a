//! Invariants of arbitrary datagrams, checked by libFuzzer and by the tests below.

use std::sync::Arc;

use thalweg_sending::ltp::{Rule, MAX_BLOCK};
use thalweg_udp::datagram::{Encode, Key};
use thalweg_udp::deliver::Reader;
use thalweg_wire::{checksum, HEADER_BYTES};

use crate::packet::{Datagram, Kind, CHUNK_HEADER_BYTES, REPAIR_HEADER_BYTES};
use crate::receive::Acks;
use crate::repair::COMMON_BYTES;
use crate::CHUNK;

/// Key of the link to which the datagrams belong.
pub const KEY: Key = *b"a link's own key";
/// Offset of a chunk's frame in a datagram, in bytes.
pub const FRAME: usize = CHUNK_HEADER_BYTES - HEADER_BYTES;

/// Either a datagram of the link is rejected, or it decodes to a value that encodes to the same bytes. A
/// chunk is as long as its header says. The ranges of an acknowledgement are in descending order and do not
/// touch.
pub fn datagram(bytes: &[u8]) {
    let Some(datagram) = Datagram::decode(&KEY, bytes) else { return };
    let mut again = Vec::new();
    datagram.encode(&KEY, &mut again);
    match &datagram.kind {
        Kind::Chunk(part, header) => {
            assert!(part.index < part.of && bytes.len() == CHUNK_HEADER_BYTES + header.length());
            again.extend_from_slice(&bytes[CHUNK_HEADER_BYTES..]);
        }
        Kind::Probe => {}
        Kind::Repair(repair) => {
            assert!(repair.block.count > 0 && repair.block.end() <= datagram.number);
            again.extend_from_slice(&bytes[REPAIR_HEADER_BYTES..]);
        }
        Kind::Ack(ack) => {
            assert!(ack.ranges.iter().all(|range| !range.is_empty()));
            assert!(ack.ranges.windows(2).all(|pair| pair[1].end < pair[0].start));
        }
    }
    let Some(read) = Datagram::decode(&KEY, &again) else { unreachable!("what was read is not read again") };
    assert_eq!((read.kind, read.message_count), (datagram.kind, datagram.message_count));
}

/// Reads a sequence of datagrams, each preceded by its length (u16). A chunk that the receiver rebuilds
/// matches its checksum and fits a packet. A datagram rebuilds at most four blocks of chunks. Keys and
/// checksums of repair packets are corrected first.
pub fn session(bytes: &[u8]) {
    let mut reader = Acks::new(Rule::default(), Arc::default());
    let mut rest = bytes;
    while let Some((length, behind)) = rest.split_first_chunk() {
        let (datagram, behind) = behind.split_at(behind.len().min(u16::from_le_bytes(*length).into()));
        rest = behind;
        let mut datagram = datagram.to_vec();
        fit(&mut datagram);
        let _ = reader.read(&KEY, &datagram, 0, true);
        let _ = reader.answer(0);
        let mut count = 0;
        while let Some(chunk) = reader.rebuilt() {
            assert!(chunk.header.verify(&chunk.payload).is_ok() && chunk.payload.len() <= CHUNK as usize);
            count += 1;
        }
        assert!(count <= 4 * MAX_BLOCK, "{count} chunks rebuilt of one packet");
    }
}

/// Writes the link's key into a datagram, and the right checksum into a repair packet.
fn fit(datagram: &mut [u8]) {
    if let Some(key) = datagram.get_mut(..KEY.len()) {
        key.copy_from_slice(&KEY);
    }
    let (at, rest) = (REPAIR_HEADER_BYTES - COMMON_BYTES - 4, REPAIR_HEADER_BYTES - COMMON_BYTES);
    if datagram.get(KEY.len()) == Some(&5) && datagram.len() > rest {
        let sum = checksum(&datagram[rest..]);
        datagram[at..rest].copy_from_slice(&sum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Repair;
    use crate::repair::Copies;
    use thalweg_sending::ltp::{Ack, Block, ChunkId, Closed};
    use thalweg_udp::datagram::PREFIX_BYTES;
    use thalweg_wire::{ChunkHeader, FrameHeader, LayoutHash, Range};

    const BLOCK: Block = Block { first: 9, count: 5 };

    fn part(index: u32) -> (ChunkId, FrameHeader, Vec<u8>) {
        let payload = vec![index as u8; 100 - index as usize];
        let (offset, length) = (100 * u64::from(index), payload.len() as u32);
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset, length };
        (ChunkId { transfer: 6, index, of: 8 }, FrameHeader::chunk(chunk, checksum(&payload)), payload)
    }

    fn encode(kind: Kind, covered: bool, number: u64, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Datagram { kind, covered, message_count: 8, number }.encode(&KEY, &mut out);
        [&out, payload].concat()
    }

    /// A block of chunks and two repair packets.
    fn block() -> Vec<Vec<u8>> {
        let mut copies = Copies::default();
        let mut datagrams = Vec::new();
        for (number, index) in (BLOCK.first..BLOCK.end()).zip(0..) {
            let (part, header, payload) = part(index);
            copies.keep(BLOCK.first, number, Some((part, &header, &payload)));
            datagrams.push(encode(Kind::Chunk(part, header), true, number, &payload));
        }
        for which in 0..2 {
            let (common, symbol) = copies.repair(BLOCK, which).unwrap();
            let repair = Repair::new(BLOCK, which, common, &symbol);
            datagrams.push(encode(Kind::Repair(repair), false, BLOCK.end() + u64::from(which), &symbol));
        }
        datagrams
    }

    fn samples() -> Vec<Vec<u8>> {
        let (part, header, payload) = part(7);
        let ranges = [(90, 100), (50, 60), (1, 3)].map(|(start, end)| Range::new(start, end)).to_vec();
        let mut samples = vec![
            encode(Kind::Chunk(part, header), false, 9, &payload),
            encode(Kind::Probe, false, 9, &[]),
            encode(Kind::Probe, true, 9, &[]),
            encode(Kind::Ack(Ack { ranges, closed: Some((6, Closed::Fraction)) }), false, 0, &[]),
            encode(Kind::Ack(Ack { ranges: Vec::new(), closed: None }), false, 0, &[]),
        ];
        samples.extend(block());
        samples
    }

    /// Writes the link's key into most datagrams, and often a matching checksum into the frame.
    fn mend(rng: &mut thalweg_conformance::Rng, bytes: &mut [u8]) {
        if rng.below(4) > 0 && bytes.len() > PREFIX_BYTES {
            fit(bytes);
            if let Some(frame) = bytes.get_mut(FRAME..).filter(|_| rng.below(2) > 0) {
                thalweg_conformance::repair(rng, frame);
            }
        }
    }

    #[test]
    fn damaged_datagrams_are_refused_or_read_back() {
        thalweg_conformance::damage(&samples(), mend, datagram);
    }

    #[test]
    fn damaged_blocks_are_rebuilt_right_or_not_at_all() {
        let sequence = |without: &[usize]| {
            let all = block().into_iter().enumerate().filter(|(at, _)| !without.contains(at));
            all.flat_map(|(_, one)| [&(one.len() as u16).to_le_bytes()[..], &one].concat())
                .collect::<Vec<u8>>()
        };
        let samples = [sequence(&[1]), sequence(&[0, 4]), sequence(&[2, 3, 4]), sequence(&[])];
        thalweg_conformance::damage(&samples, |_, _| {}, session);
    }
}
