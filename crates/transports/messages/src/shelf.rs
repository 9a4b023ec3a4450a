//! Chunks to the group that a broker retains for members that join later (MQTT's retained messages).
//!
//! A member that joins late receives these chunks first, and tells the listener which ones it holds. To send
//! it one of them, the listener then sends only the number.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use bytes::Bytes;
use thalweg_wire::FrameHeader;

/// Maximum number of bytes of payload that a member holds. The listener sends it all other chunks in full.
pub const SHELF_BYTES: u64 = 256 << 20;
/// Maximum number of ranges of numbers that a member reports.
const STRETCHES: usize = 4096;
/// Encoded bytes of a range: its first and its last number.
const STRETCH: usize = 16;

/// The retained chunks that a member holds, by their number in the group.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// Number, then the listener's instance and the payload.
    chunks: BTreeMap<u64, (u64, Bytes)>,
    bytes: u64,
    /// Bytes on the wire of all retained chunks that arrived.
    wire: u64,
}

impl Shelf {
    /// Counts bytes that arrived on the wire.
    pub(crate) fn note_arrival(&mut self, wire: u64) {
        self.wire += wire;
    }

    pub(crate) fn wire(&self) -> u64 {
        self.wire
    }

    /// Holds a chunk from the listener's `instance`, unless there is no room or its length is wrong.
    pub(crate) fn put(&mut self, instance: u64, number: u64, header: &FrameHeader, payload: Bytes) {
        let length = payload.len() as u64;
        if payload.len() != header.length() || self.bytes + length > SHELF_BYTES {
            return;
        }
        if self.chunks.insert(number, (instance, payload)).is_none() {
            self.bytes += length;
        }
    }

    /// Keeps only chunks of this `instance`, up to the group's number `last`. Other chunks do not belong to
    /// the link.
    pub(crate) fn of(mut self, instance: u64, last: u64) -> Self {
        self.chunks.retain(|number, (of, _)| *of == instance && *number <= last);
        self.bytes = self.chunks.values().map(|(_, payload)| payload.len() as u64).sum();
        self
    }

    /// Removes a chunk and returns its payload.
    pub(crate) fn take(&mut self, number: u64) -> Option<Bytes> {
        let (_, payload) = self.chunks.remove(&number)?;
        self.bytes -= payload.len() as u64;
        Some(payload)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Encodes the numbers of the chunks as ranges, in at most `most` bytes. Empty if no chunk is held.
    pub(crate) fn report(&self, most: usize) -> Vec<u8> {
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

/// The numbers of the chunks that a member has reported to hold.
#[derive(Debug, Default)]
pub(crate) struct ReportedChunks(Vec<RangeInclusive<u64>>);

impl ReportedChunks {
    /// Decodes the output of [`Shelf::report`]. Other bytes give meaningless ranges, but never more than
    /// [`STRETCHES`].
    pub(crate) fn read(body: &[u8]) -> Self {
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let stretches = body.chunks_exact(STRETCH).take(STRETCHES);
        Self(stretches.map(|stretch| number(&stretch[..8])..=number(&stretch[8..])).collect())
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.0.iter().any(|stretch| stretch.contains(&number))
    }
}

/// At the listener: the chunks that the broker retains. Key: the chunk's offset; value: its number in the
/// group and its header.
#[derive(Debug, Default)]
pub(crate) struct Kept(HashMap<u64, (u64, FrameHeader)>);

impl Kept {
    pub(crate) fn insert(&mut self, number: u64, header: FrameHeader) {
        self.0.insert(header.chunk.offset, (number, header));
    }

    /// The number of the retained chunk with exactly this header, checksum included.
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
        let reported = ReportedChunks::read(&shelf.report(1 << 10));
        let held: Vec<u64> = (0..12).filter(|number| reported.has(*number)).collect();
        assert_eq!(held, [3, 4, 5]);
        assert_eq!(shelf.take(4).unwrap(), "ab");
        assert!(shelf.take(4).is_none() && shelf.take(9).is_none());
        assert_eq!(ReportedChunks::read(&shelf.report(17)).0, [3..=3], "what does not fit is not reported");
        shelf.clear();
        assert!(shelf.report(1 << 10).is_empty() && shelf.bytes == 0);
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
            assert!(!ReportedChunks::read(body).has(17));
        }
        assert_eq!(ReportedChunks::read(&[0; STRETCH * (STRETCHES + 9)]).0.len(), STRETCHES);
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
