//! Maps bytes of an update to their place in a connection's stream.

use thalweg_transport::Sealed;
use thalweg_wire::Range;

use crate::scout::Payload;

/// Place of a chunk in the stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The range that may be lost. In a sealed chunk, it consists of the records after the chunk's head.
    pub stream: Range,
    offset: u64,
    /// Bytes of the update in a record, and bytes of the record in the stream. Both are 1 if the chunk is not
    /// sealed.
    record: u64,
    stride: u64,
}

impl Place {
    pub(crate) fn new(payload: &Payload, sealed: Option<Sealed>) -> Self {
        let (record, stride) = sealed.map_or((1, 1), |sealed| (sealed.record.into(), sealed.stride.into()));
        let record = u64::max(record, 1);
        Self { stream: payload.range, offset: payload.chunk.offset, record, stride: stride.max(record) }
    }

    /// The range of the update that the chunk has.
    pub(crate) fn bytes(&self) -> Range {
        let (whole, rest) = (self.stream.len() / self.stride, self.stream.len() % self.stride);
        let plain = whole * self.record + rest.saturating_sub(self.stride - self.record);
        Range::new(self.offset, self.offset.saturating_add(plain))
    }

    /// The range of the stream that contains these bytes: all records with any byte of them.
    pub(crate) fn of(&self, part: Range) -> Range {
        let (start, end) = (part.start - self.offset, part.end - self.offset);
        let (first, after) = (start / self.record, end.div_ceil(self.record));
        let at = |record: u64| self.stream.start + (record * self.stride).min(self.stream.len());
        Range::new(at(first), at(after))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_seal::{Grid, Suite};
    use thalweg_wire::{ChunkHeader, LayoutHash};

    use super::*;

    fn payload(offset: u64, start: u64, length: u64) -> Payload {
        let length = length as u32;
        let chunk = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset, length };
        Payload { range: Range::new(start, start + u64::from(length)), chunk }
    }

    #[test]
    fn a_byte_that_is_not_sealed_is_by_itself() {
        let place = Place::new(&payload(1000, 72, 500), None);
        assert_eq!(place.bytes(), Range::new(1000, 1500));
        assert_eq!(place.of(Range::new(1010, 1011)), Range::new(82, 83));
    }

    proptest! {
        /// If only bytes outside the returned range are lost, all records with a byte of the part can be
        /// opened.
        #[test]
        fn a_sealed_part_is_where_its_records_are(
            offset in 0..1_u64 << 40, total in 1..5000_u64, record in 1..2000_u32, edges in (0..5000_u64, 0..5000_u64),
        ) {
            let suite = Suite::default();
            let grid = Grid::new(suite, total, record).unwrap();
            let sealed = Sealed { head: 16, record, stride: suite.sealed(record.into()) as u32 };
            let place = Place::new(&payload(offset, 88, grid.sealed_bytes()), Some(sealed));
            prop_assert_eq!(place.bytes(), Range::new(offset, offset + total));
            let (start, end) = (edges.0 % total, edges.1 % total);
            let part = Range::new(start.min(end), start.max(end) + 1);
            let kept = place.of(Range::new(offset + part.start, offset + part.end));
            for index in 0..grid.records() {
                let sealed = grid.sealed(index);
                let place = Range::new(88 + sealed.start, 88 + sealed.end);
                let inside = kept.start <= place.start && place.end <= kept.end;
                prop_assert_eq!(inside, !grid.plain(index).intersect(part).is_empty());
                prop_assert!(inside || place.intersect(kept).is_empty());
            }
        }
    }
}
