//! The receive buffer of a stream. It holds bytes that have arrived and that the reader has not taken yet.
//! They arrive in any order, and may have holes between them.

use std::collections::VecDeque;

use thalweg_tcp::line::Taken;
use thalweg_wire::{Range, Ranges, HEADER_BYTES};

const BLOCK: usize = 64 << 10;
/// Maximum number of free blocks that are kept for reuse.
const SPARE: usize = 4;

#[derive(Default)]
pub(crate) struct Buffer {
    blocks: VecDeque<Option<Box<[u8]>>>,
    /// Stream offset of the first block.
    base: u64,
    spare: Vec<Box<[u8]>>,
    /// Offset of the next byte to take. The buffer keeps the bytes of one header's length before it.
    start: u64,
    received: Ranges,
    lost: Ranges,
}

impl Buffer {
    /// The offset of the next byte to take.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Stores bytes that have arrived. Ignores bytes before the next byte to take.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let late = self.start.saturating_sub(offset).min(bytes.len() as u64);
        let (mut at, mut left) = (offset + late, &bytes[late as usize..]);
        self.received.insert(Range::new(at, at + left.len() as u64));
        while !left.is_empty() {
            let place = (at - self.base) as usize;
            let (index, within) = (place / BLOCK, place % BLOCK);
            let (now, later) = left.split_at(left.len().min(BLOCK - within));
            if self.blocks.len() <= index {
                self.blocks.resize_with(index + 1, || None);
            }
            let spare = &mut self.spare;
            let block = self.blocks[index]
                .get_or_insert_with(|| spare.pop().unwrap_or_else(|| vec![0; BLOCK].into_boxed_slice()));
            block[within..within + now.len()].copy_from_slice(now);
            (at, left) = (at + now.len() as u64, later);
        }
    }

    /// Marks bytes as a hole.
    pub(crate) fn lose(&mut self, range: Range) {
        self.lost.insert(Range::new(range.start.max(self.start), range.end));
    }

    /// The bytes of a header at `offset`, if all have arrived. The reader may have taken the first of them
    /// already.
    pub(crate) fn header(&self, offset: u64) -> Option<[u8; HEADER_BYTES]> {
        let range = Range::new(offset, offset + HEADER_BYTES as u64);
        if offset < self.kept() || !self.received.covers(range) {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        self.copy(offset, &mut header);
        Some(header)
    }

    fn copy(&self, offset: u64, to: &mut [u8]) {
        let (mut at, mut left) = ((offset - self.base) as usize, to);
        while !left.is_empty() {
            let within = at % BLOCK;
            let (now, later) = left.split_at_mut(left.len().min(BLOCK - within));
            match self.blocks.get(at / BLOCK) {
                Some(Some(block)) => now.copy_from_slice(&block[within..within + now.len()]),
                // No byte of this block has arrived, so its content does not matter.
                _ => now.fill(0),
            }
            at += now.len();
            left = later;
        }
    }

    /// Copies the next bytes into `buffer`, or returns the next hole, up to the length of `buffer`. `None` if
    /// the next byte has neither arrived nor is it known to be lost.
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> Option<Taken> {
        let (start, room) = (self.start, buffer.len() as u64);
        let next = self.received.next(start);
        let taken = match next.filter(|run| run.start <= start) {
            Some(run) => {
                let length = (run.end - start).min(room) as usize;
                self.copy(start, &mut buffer[..length]);
                Taken::Bytes(length)
            }
            None => {
                let hole = self.lost.next(start).filter(|hole| hole.start <= start)?;
                let end = next.map_or(hole.end, |run| hole.end.min(run.start));
                Taken::Hole((end - start).min(room) as usize)
            }
        };
        let (Taken::Bytes(length) | Taken::Hole(length)) = taken;
        self.advance(length as u64);
        Some(taken)
    }

    /// Offset of the first byte that is still in the buffer.
    fn kept(&self) -> u64 {
        self.start.saturating_sub(HEADER_BYTES as u64)
    }

    fn advance(&mut self, length: u64) {
        self.start += length;
        let kept = self.kept();
        self.received.trim(kept);
        self.lost.trim(self.start);
        while self.base + BLOCK as u64 <= kept {
            self.base += BLOCK as u64;
            if let Some(block) = self.blocks.pop_front().flatten().filter(|_| self.spare.len() < SPARE) {
                self.spare.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn byte(at: u64) -> u8 {
        (at % 251) as u8
    }

    #[test]
    fn late_bytes_fill_a_hole_that_has_not_been_taken() {
        let mut buffer = Buffer::default();
        let mut to = [0; 100];
        buffer.write(20, &[7; 10]);
        assert_eq!(buffer.take(&mut to), None);
        buffer.lose(Range::new(0, 20));
        buffer.write(5, &[8; 5]);
        assert_eq!(buffer.take(&mut to), Some(Taken::Hole(5)));
        assert_eq!(buffer.take(&mut to[..3]), Some(Taken::Bytes(3)));
        assert_eq!(buffer.take(&mut to), Some(Taken::Bytes(2)));
        assert_eq!(buffer.take(&mut to[..4]), Some(Taken::Hole(4)));
        buffer.write(0, &[9; 22]);
        assert_eq!(buffer.take(&mut to), Some(Taken::Bytes(16)));
        assert_eq!((&to[..6], &to[8..16]), (&[9; 6][..], &[7; 8][..]));
    }

    #[test]
    fn a_header_is_known_though_its_beginning_was_taken_before_its_end_came() {
        let header: Vec<u8> = (0..HEADER_BYTES as u64).map(byte).collect();
        // The header also lies across the end of a block.
        for place in [0, 100, BLOCK as u64 - 20] {
            let (mut buffer, mut to) = (Buffer::default(), vec![0; 2 * BLOCK]);
            buffer.write(0, &vec![1; place as usize]);
            buffer.write(place, &header[..20]);
            assert_eq!(buffer.take(&mut to), Some(Taken::Bytes(place as usize + 20)));
            assert_eq!((buffer.take(&mut to), buffer.header(place)), (None, None));
            buffer.write(place + 20, &header[20..]);
            assert_eq!(buffer.header(place).as_ref().map(|bytes| &bytes[..]), Some(&header[..]));
            assert_eq!(buffer.take(&mut to), Some(Taken::Bytes(HEADER_BYTES - 20)));
        }
    }

    proptest! {
        /// Pieces arrive in any order, and some never do. The reader takes exactly what arrived, in order,
        /// and the buffer frees its memory.
        #[test]
        fn what_came_is_taken_in_order(
            seed in any::<u64>(),
            pieces in prop::collection::vec((1..9000_u64, any::<bool>()), 1..80),
            order in prop::collection::vec(any::<u64>(), 80),
        ) {
            let mut place = seed % (3 * BLOCK as u64);
            let first = place;
            let mut all: Vec<(u64, u64, bool, u64)> = Vec::new();
            for (i, &(length, lost)) in pieces.iter().enumerate() {
                all.push((place, length, lost, order[i]));
                place += length;
            }
            let mut buffer = Buffer::default();
            buffer.lose(Range::new(0, first));
            let mut arrivals = all.clone();
            arrivals.sort_by_key(|piece| piece.3);
            let (mut at, mut to) = (0, vec![0; 5000]);
            let mut expected = vec![None; place as usize];
            for (start, length, lost, _) in arrivals {
                if lost {
                    buffer.lose(Range::new(start, start + length));
                } else {
                    let bytes: Vec<u8> = (start..start + length).map(byte).collect();
                    buffer.write(start, &bytes);
                    (start..start + length).for_each(|at| expected[at as usize] = Some(byte(at)));
                }
                while let Some(taken) = buffer.take(&mut to) {
                    match taken {
                        Taken::Bytes(length) => {
                            for (i, &byte) in to[..length].iter().enumerate() {
                                prop_assert_eq!(expected[at + i], Some(byte));
                            }
                            at += length;
                        }
                        Taken::Hole(length) => {
                            prop_assert!(expected[at..at + length].iter().all(Option::is_none));
                            at += length;
                        }
                    }
                }
            }
            prop_assert_eq!(at as u64, place);
            prop_assert!(buffer.blocks.len() <= 2 && buffer.spare.len() <= SPARE);
        }
    }
}
