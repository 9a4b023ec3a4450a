//! An extent: chunks of one update that the peer is offered together.
//!
//! ```text
//! update  =  extents     one, if its missing bytes are contiguous in the update and in registered memory
//! extent  =  parts       the whole extent, or each chunk: what is granted, committed and checked at once
//! part    =  chunks      what the sink gets
//! ```

use thalweg_transport::ChunkRef;
use thalweg_wire::{checksum, ChunkHeader, MAX_CHUNK};

/// Maximum number of chunks of an extent: a receiver keeps a place for each.
pub(crate) const MOST_CHUNKS: usize = 1 << 20;

/// Chunks that lie one after the other: a whole extent, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The first chunk.
    pub(crate) first: ChunkHeader,
    /// Bytes of each further chunk; the last one may be shorter.
    pub(crate) chunk: u32,
    /// Bytes of all chunks.
    pub(crate) bytes: u64,
}

impl Part {
    /// A part of one chunk.
    pub(crate) fn one(first: ChunkHeader) -> Self {
        Self { first, chunk: first.length, bytes: first.length.into() }
    }

    /// Whether a peer may offer this.
    pub(crate) fn is_plausible(&self) -> bool {
        let lengths = [self.first.length, self.chunk];
        lengths.iter().all(|length| (1..=MAX_CHUNK).contains(length))
            && self.bytes >= u64::from(self.first.length)
            && usize::try_from(self.bytes).is_ok()
            && self.first.offset.checked_add(self.bytes).is_some()
            && self.count() <= MOST_CHUNKS as u64
    }

    /// Number of chunks.
    pub(crate) fn count(&self) -> u64 {
        let others = self.bytes.saturating_sub(self.first.length.into());
        1 + others.div_ceil(u64::from(self.chunk).max(1))
    }

    /// The chunk of this index.
    pub(crate) fn chunk(&self, index: u64) -> Option<ChunkHeader> {
        let Some(before) = index.checked_sub(1) else { return Some(self.first) };
        let at = before.checked_mul(self.chunk.into())?.checked_add(self.first.length.into())?;
        let left = self.bytes.checked_sub(at).filter(|&left| left > 0)?;
        let length = left.min(self.chunk.into()) as u32;
        Some(ChunkHeader { offset: self.first.offset.saturating_add(at), length, ..self.first })
    }

    /// All chunks.
    pub(crate) fn chunks(self) -> impl Iterator<Item = ChunkHeader> + Clone {
        (0..self.count()).map_while(move |index| self.chunk(index))
    }
}

/// What a sender offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) all: Part,
    /// Whether the extent is one part. Otherwise each chunk is a part.
    pub(crate) whole: bool,
}

impl Extent {
    /// Number of parts.
    pub(crate) fn parts(&self) -> u64 {
        if self.whole {
            1
        } else {
            self.all.count()
        }
    }

    /// The part of this index.
    pub(crate) fn part(&self, index: u64) -> Option<Part> {
        if self.whole {
            return (index == 0).then_some(self.all);
        }
        self.all.chunk(index).map(Part::one)
    }
}

/// The checksum of a part: of its chunk, or of the checksums of its chunks. So chunks keep checksums of their
/// own, which the senders of a group share.
pub(crate) fn checksum_of(mut chunks: impl Iterator<Item = u32>) -> u32 {
    let first = chunks.next().unwrap_or_default();
    let mut sums = Vec::new();
    for sum in chunks {
        sums.extend(sum.to_le_bytes());
    }
    if sums.is_empty() {
        return first;
    }
    sums.splice(..0, first.to_le_bytes());
    checksum(&sums)
}

/// The checksum of a part that has these chunks; `bytes` are the part's bytes.
pub(crate) fn checksum_of_chunks(chunks: &[ChunkRef], mut bytes: &[u8]) -> u32 {
    checksum_of(chunks.iter().map(|chunk| {
        let (own, others) = bytes.split_at(bytes.len().min(chunk.range().len() as usize));
        bytes = others;
        chunk.checksum(own)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::LayoutHash;

    fn part(offset: u64, first: u32, chunk: u32, bytes: u64) -> Part {
        let first = ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset, length: first };
        Part { first, chunk, bytes }
    }

    #[test]
    fn chunks_are_all_of_a_part() {
        for (first, chunk, bytes) in [(8, 8, 8), (8, 8, 17), (3, 8, 19), (9, 4, 13), (9, 4, 14)] {
            let part = part(100, first, chunk, bytes);
            let chunks: Vec<_> = part.chunks().collect();
            assert_eq!(chunks.len() as u64, part.count());
            assert_eq!(chunks[0].range().start, 100);
            assert!(chunks.windows(2).all(|two| two[0].range().end == two[1].offset));
            assert_eq!(chunks.last().map(|last| last.range().end), Some(100 + bytes));
            assert!(chunks[1..].iter().all(|next| (1..=chunk).contains(&next.length)));
            assert_eq!(part.chunk(part.count()), None);
            let (whole, each) = (Extent { all: part, whole: true }, Extent { all: part, whole: false });
            assert_eq!((whole.parts(), whole.part(0), whole.part(1)), (1, Some(part), None));
            let parts: Vec<_> = (0..each.parts()).filter_map(|index| each.part(index)).collect();
            assert_eq!(parts, chunks.into_iter().map(Part::one).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_cannot_be_is_not_plausible() {
        assert!(part(0, 1, MAX_CHUNK, 1 << 40).is_plausible());
        for wrong in [
            part(0, 0, 1, 1),
            part(0, 1, 0, 1),
            part(0, 2, 1, 1),
            part(0, MAX_CHUNK + 1, 1, 1 << 30),
            part(u64::MAX, 1, 1, 1),
            part(0, 1, 1, MOST_CHUNKS as u64 + 1),
        ] {
            assert!(!wrong.is_plausible(), "{wrong:?}");
            assert_eq!(wrong.chunk(u64::MAX), None);
        }
    }

    #[test]
    fn a_part_of_one_chunk_has_its_checksum() {
        assert_eq!((checksum_of([7].into_iter()), checksum_of([].into_iter())), (7, 0));
        let both = checksum_of([7, 8].into_iter());
        assert_eq!(both, checksum(&[7, 0, 0, 0, 8, 0, 0, 0]));
    }
}
