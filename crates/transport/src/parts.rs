//! Gives chunks with lost parts to a sink.

use thalweg_wire::{ChunkHeader, Range, Ranges};

use crate::{Sink, Target};

/// Parts of a chunk with holes begin and end at multiples of this many bytes: tensors are aligned, and no
/// value is larger.
pub const ALIGNED: u64 = 8;

/// Gives the sink a chunk that has `holes`. The sink may take the chunk as a whole. Else it gets each run of
/// received bytes as a chunk of its own. The edges of these parts are multiples of [`ALIGNED`] bytes of the
/// update, or the chunk's own edges, so that no value is cut. Returns how many bytes were copied for the
/// parts.
///
/// The chunk's checksum cannot verify parts; the transport must have verified their bytes itself.
pub fn hand_over(sink: &dyn Sink, chunk: &ChunkHeader, target: Target, holes: &Ranges) -> u64 {
    let Some(target) = sink.holed(chunk, target, holes) else { return 0 };
    let arrived = parts(chunk.offset, chunk.length.into(), holes);
    let bytes = target.bytes();
    let kept: Vec<Vec<u8>> =
        arrived.iter().map(|part| bytes[part.start as usize..part.end as usize].to_vec()).collect();
    // The parts' places lie within the place of the whole chunk, so its claim must end first.
    drop(target);
    let mut copied = 0;
    for (part, kept) in arrived.iter().zip(kept) {
        let header = ChunkHeader { offset: chunk.offset + part.start, length: part.len() as u32, ..*chunk };
        copied += 2 * part.len();
        if let Some(mut place) = sink.place(&header).filter(|place| place.bytes().len() == kept.len()) {
            place.bytes_mut().copy_from_slice(&kept);
            sink.stored(&header, place, Ok(()));
        }
    }
    copied
}

/// The received parts of a chunk that has `length` bytes and lies at `offset` of its update.
fn parts(offset: u64, length: u64, holes: &Ranges) -> Vec<Range> {
    let mut parts = Vec::with_capacity(holes.count() + 1);
    let mut start = 0;
    for hole in holes.iter() {
        let end = (offset.saturating_add(hole.start) / ALIGNED * ALIGNED).saturating_sub(offset);
        parts.push(Range::new(start, end.min(length)));
        let next = offset.saturating_add(hole.end).checked_next_multiple_of(ALIGNED).unwrap_or(u64::MAX);
        start = next.saturating_sub(offset).min(length);
    }
    parts.push(Range::new(start, length));
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(offset: u64, length: u64, holes: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let holes: Ranges = holes.iter().map(|&(start, end)| Range::new(start, end)).collect();
        parts(offset, length, &holes).iter().map(|part| (part.start, part.end)).collect()
    }

    #[test]
    fn parts_cut_no_value() {
        assert_eq!(cut(64, 100, &[(10, 20)]), [(0, 8), (24, 100)]);
        assert_eq!(cut(64, 100, &[(0, 7), (16, 24), (96, 100)]), [(8, 16), (24, 96)]);
        assert_eq!(cut(4, 100, &[(10, 20)]), [(0, 4), (20, 100)], "by their place in the update");
        assert_eq!(cut(0, 16, &[(1, 2), (9, 10)]), []);
        assert_eq!(cut(3, 4, &[(0, 1)]), [], "the chunk ends before the next value");
        assert_eq!(cut(0, 8, &[]), [(0, 8)]);
    }

    #[test]
    fn a_place_that_cannot_be_is_cut_without_overflow() {
        assert_eq!(cut(u64::MAX - 3, 100, &[(10, 20)]), [(3, 100)]);
    }
}
