//! Chunks to the group that a post has kept for members that come later, as MQTT's retained messages are.
//!
//! A member that comes late gets them before anything else, and tells the listener which it holds. When the listener
//! sends it a chunk that is one of these, it sends the number alone.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use bytes::Bytes;
use thalweg_wire::FrameHeader;

/// Bytes of payload that a member holds at most; of what comes beyond, the listener sends it the chunks.
pub const SHELF_BYTES: u64 = 256 << 20;
/// Stretches of numbers that a member tells at most.
const STRETCHES: usize = 4096;
/// Bytes of a stretch: its first and its last number.
const STRETCH: usize = 16;

/// What a member holds, by the number that it had in the group.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    chunks: BTreeMap<u64, (u64, Bytes)>,
    bytes: u64,
    /// Bytes that all that came took on the wire.
    wire: u64,
}

impl Shelf {
    /// Counts bytes that came on the wire.
    pub(crate) fn hear(&mut self, wire: u64) {
        self.wire += wire;
    }

    pub(crate) fn wire(&self) -> u64 {
        self.wire
    }

    /// Holds a chunk of a listener's `instance`, if there is room.
    pub(crate) fn put(&mut self, instance: u64, number: u64, header: &FrameHeader, payload: Bytes) {
        let length = payload.len() as u64;
        if payload.len() != header.length() || self.bytes + length > SHELF_BYTES {
            return;
        }
        if self.chunks.insert(number, (instance, payload)).is_none() {
            self.bytes += length;
        }
    }

    /// What of it is of `instance`, and of the group's first `last` numbers: others have nothing to do with the link.
    pub(crate) fn of(mut self, instance: u64, last: u64) -> Self {
        self.chunks.retain(|number, (of, _)| *of == instance && *number <= last);
        self.bytes = self.chunks.values().map(|(_, payload)| payload.len() as u64).sum();
        self
    }

    /// The payload of a chunk, which is not held any more.
    pub(crate) fn take(&mut self, number: u64) -> Option<Bytes> {
        let (_, payload) = self.chunks.remove(&number)?;
        self.bytes -= payload.len() as u64;
        Some(payload)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The numbers, for the listener, in at most `most` bytes; empty if nothing is held.
    pub(crate) fn told(&self, most: usize) -> Vec<u8> {
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        for &number in self.chunks.keys() {
            match stretches.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => stretches.push((number, number)),
            }
        }
        stretches.truncate(STRETCHES.min(most / STRETCH));
        stretches
            .iter()
            .flat_map(|(first, last)| [first.to_le_bytes(), last.to_le_bytes()].concat())
            .collect()
    }
}

/// Which numbers a member has said that it holds.
#[derive(Debug, Default)]
pub(crate) struct Told(Vec<RangeInclusive<u64>>);

impl Told {
    /// Reads what [`Shelf::told`] has written; whatever else it is, it is few bytes.
    pub(crate) fn read(body: &[u8]) -> Self {
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let stretches = body.chunks_exact(STRETCH).take(STRETCHES);
        Self(stretches.map(|stretch| number(&stretch[..8])..=number(&stretch[8..])).collect())
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.0.iter().any(|stretch| stretch.contains(&number))
    }
}

/// What the post keeps, as the listener published it: by the chunk's first byte, its number and all that it says.
#[derive(Debug, Default)]
pub(crate) struct Kept(HashMap<u64, (u64, FrameHeader)>);

impl Kept {
    pub(crate) fn insert(&mut self, number: u64, header: FrameHeader) {
        self.0.insert(header.chunk.offset, (number, header));
    }

    /// The number of a chunk that says the same, its checksum too.
    pub(crate) fn number(&self, header: &FrameHeader) -> Option<u64> {
        self.0.get(&header.chunk.offset).filter(|(_, kept)| kept == header).map(|(number, _)| *number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{ChunkHeader, LayoutHash};

    fn header(offset: u64, length: u32, checksum: u32) -> FrameHeader {
        let chunk = ChunkHeader { job: 1, round: 2, sender: 0, layout: LayoutHash(4), offset, length };
        FrameHeader::chunk(chunk, checksum)
    }

    #[test]
    fn what_is_held_is_told_and_taken_once() {
        let mut shelf = Shelf::default();
        for number in [3, 4, 5, 9, 4] {
            shelf.put(7, number, &header(0, 2, 0), Bytes::from_static(b"ab"));
        }
        shelf.put(8, 6, &header(0, 2, 0), Bytes::from_static(b"of another listener"));
        shelf.put(8, 7, &header(0, 2, 0), Bytes::from_static(b"ab"));
        let mut shelf = shelf.of(7, 8);
        assert_eq!(shelf.bytes, 6);
        let told = Told::read(&shelf.told(1 << 10));
        let held: Vec<u64> = (0..12).filter(|number| told.has(*number)).collect();
        assert_eq!(held, [3, 4, 5]);
        assert_eq!(shelf.take(4).unwrap(), "ab");
        assert!(shelf.take(4).is_none() && shelf.take(9).is_none());
        assert_eq!(Told::read(&shelf.told(17)).0, [3..=3], "what does not fit is not told");
        shelf.clear();
        assert!(shelf.told(1 << 10).is_empty() && shelf.bytes == 0);
    }

    #[test]
    fn a_shelf_has_a_bound() {
        let mut shelf = Shelf::default();
        let payload = Bytes::from(vec![0; 100 << 20]);
        (0..4).for_each(|number| shelf.put(1, number, &header(number, 100 << 20, 0), payload.clone()));
        assert_eq!(shelf.chunks.len(), 2);
    }

    #[test]
    fn nonsense_from_a_member_is_no_number() {
        for body in [&b""[..], b"short", &[0xff; 40], &[0; 15]] {
            assert!(!Told::read(body).has(17));
        }
        assert_eq!(Told::read(&[0; STRETCH * (STRETCHES + 9)]).0.len(), STRETCHES);
    }

    #[test]
    fn only_the_very_chunk_is_kept() {
        let mut kept = Kept::default();
        kept.insert(12, header(64, 8, 5));
        assert_eq!(kept.number(&header(64, 8, 5)), Some(12));
        for other in [header(0, 8, 5), header(64, 7, 5), header(64, 8, 6)] {
            assert_eq!(kept.number(&other), None);
        }
        kept.insert(13, header(64, 8, 6));
        assert_eq!((kept.number(&header(64, 8, 5)), kept.number(&header(64, 8, 6))), (None, Some(13)));
    }
}
