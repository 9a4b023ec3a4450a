//! Follows the frames in the stream of a tcp link. It finds the bytes that may be lost: payloads of chunks
//! only. The head of a sealed payload must not be lost, since the rest cannot be opened without it.
//!
//! The header of each frame says where the next frame begins. While a segment with a header is being
//! retransmitted, the scout could not know later frames. Their losses would be retransmitted too, for a whole
//! round trip. So the scout looks ahead. The chunks of an update have one length and follow each other, so
//! the scout knows where headers should be. If there is a header with a valid checksum and the expected
//! content, all frames before it are as expected. A sealed chunk is longer than its part of the update. The
//! scout learns the difference from two successive chunks.

use thalweg_wire::{ChunkHeader, FrameHeader, Kind, Range, HEADER_BYTES};

/// Number of frames to look ahead.
const AHEAD: u64 = 64;
const HEADER: u64 = HEADER_BYTES as u64;

/// The payload of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Payload {
    /// The range of the stream that may be lost.
    pub range: Range,
    /// The header of its chunk.
    pub chunk: ChunkHeader,
}

#[derive(Debug)]
pub(crate) struct Scout {
    /// Offset of the first header that has not been read yet.
    next: u64,
    /// Number of bytes at the beginning of each payload that must not be lost.
    head: u64,
    /// The last chunk that was read, if no other frame followed it.
    last: Option<ChunkHeader>,
    /// Distance in the update from one chunk to the next.
    step: u64,
    /// Number of frames from `next` on that are known by looking ahead.
    ahead: u64,
    /// Offset up to which payloads have been reported.
    known: u64,
    /// Whether an invalid header was found: the stream does not consist of frames.
    lost: bool,
}

impl Scout {
    /// Creates a scout for a stream whose frames begin at `start`. The first `head` bytes of each payload
    /// must not be lost.
    pub(crate) fn new(start: u64, head: u32) -> Self {
        Self { next: start, head: head.into(), last: None, step: 0, ahead: 0, known: 0, lost: false }
    }

    /// Returns newly found payloads. `header` returns the bytes of a header at an offset, if all of them have
    /// arrived.
    pub(crate) fn advance(&mut self, header: impl Fn(u64) -> Option<[u8; HEADER_BYTES]>) -> Vec<Payload> {
        let mut found = Vec::new();
        while !self.lost {
            let Some(bytes) = header(self.next) else { break };
            let Ok(frame) = FrameHeader::decode(&bytes) else {
                // The reader of the stream reports the error. From here on nothing may be lost.
                self.lost = true;
                break;
            };
            let end = self.next + HEADER + u64::from(frame.chunk.length);
            if frame.kind == Kind::Chunk {
                self.report(Range::new(self.next + HEADER, end), frame.chunk, &mut found);
                self.step = self.step_to(&frame.chunk);
                self.last = Some(frame.chunk);
            } else {
                self.last = None;
            }
            self.next = end;
            self.ahead = 0;
        }
        if let Some(last) = self.last.filter(|last| !self.lost && last.length > 0) {
            self.look_ahead(last, &header, &mut found);
        }
        found
    }

    /// Whether the last frame was a chunk, so that more of the update may follow.
    pub(crate) fn in_update(&self) -> bool {
        self.last.is_some() && !self.lost
    }

    /// The distance in the update from this chunk to the next. If the last two chunks have the same length,
    /// it is the distance between them. Otherwise it is the length of this chunk.
    fn step_to(&self, chunk: &ChunkHeader) -> u64 {
        let before = self.last.filter(|last| ChunkHeader { offset: chunk.offset, ..*last } == *chunk);
        let step = before.and_then(|last| chunk.offset.checked_sub(last.offset));
        step.unwrap_or_else(|| chunk.length.into())
    }

    /// Looks for headers where the next chunks of the update should be.
    fn look_ahead(
        &mut self,
        last: ChunkHeader,
        header: &impl Fn(u64) -> Option<[u8; HEADER_BYTES]>,
        found: &mut Vec<Payload>,
    ) {
        let length = u64::from(last.length);
        let place = |n: u64| self.next + n * (HEADER + length);
        let expected = |n: u64| ChunkHeader {
            offset: last.offset.saturating_add((n + 1).saturating_mul(self.step)),
            ..last
        };
        let mut proven = self.ahead;
        for n in self.ahead.max(1)..self.ahead + AHEAD {
            let frame = header(place(n)).and_then(|bytes| FrameHeader::decode(&bytes).ok());
            // The last chunk of an update may be shorter. Its header proves all chunks before it, but not its
            // own payload.
            let fits = frame.filter(|frame| {
                let length = frame.chunk.length.min(last.length);
                frame.kind == Kind::Chunk && ChunkHeader { length, ..expected(n) } == frame.chunk
            });
            if let Some(frame) = fits {
                proven = if frame.chunk.length == last.length { n + 1 } else { n };
            }
        }
        let fresh: Vec<(u64, ChunkHeader)> = (self.ahead..proven).map(|n| (place(n), expected(n))).collect();
        self.ahead = proven;
        for (start, chunk) in fresh {
            self.report(Range::new(start + HEADER, start + HEADER + length), chunk, found);
        }
    }

    fn report(&mut self, range: Range, chunk: ChunkHeader, found: &mut Vec<Payload>) {
        if range.end > self.known && !range.is_empty() {
            self.known = range.end;
            let range = Range::new(range.start + self.head, range.end);
            if !range.is_empty() {
                found.push(Payload { range, chunk });
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a panic is how tests report
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use thalweg_wire::LayoutHash;

    use super::*;

    /// Offset of the first frame.
    const START: u64 = 24;

    fn chunk(offset: u64, length: u32) -> ChunkHeader {
        ChunkHeader { job: 1, round: 2, sender: 3, layout: LayoutHash(4), offset, length }
    }

    /// A stream with a preamble and these frames. Also returns the offsets of headers, and the payloads of
    /// chunks.
    fn stream(frames: &[(Option<u64>, u32)]) -> (Vec<u8>, Vec<u64>, Vec<Range>) {
        let mut bytes = vec![9; START as usize];
        let (mut headers, mut payloads) = (Vec::new(), Vec::new());
        for &(offset, length) in frames {
            let payload = vec![length as u8; length as usize];
            let header = match offset {
                None => FrameHeader::control(&payload),
                Some(offset) => FrameHeader::chunk(chunk(offset, length), 0),
            };
            headers.push(bytes.len() as u64);
            bytes.extend(header.encode());
            if offset.is_some() {
                payloads.push(Range::new(bytes.len() as u64, bytes.len() as u64 + u64::from(length)));
            }
            bytes.extend(payload);
        }
        (bytes, headers, payloads)
    }

    fn read<'a>(bytes: &'a [u8], lost: &'a BTreeSet<u64>) -> impl Fn(u64) -> Option<[u8; HEADER_BYTES]> + 'a {
        |at| {
            let at = at as usize;
            let whole = (at..at + HEADER_BYTES).all(|byte| !lost.contains(&(byte as u64)));
            bytes.get(at..at + HEADER_BYTES).filter(|_| whole).map(|found| found.try_into().unwrap())
        }
    }

    const UPDATE: [(Option<u64>, u32); 8] = [
        (None, 70),
        (Some(0), 100),
        (Some(100), 100),
        (Some(200), 100),
        (Some(300), 100),
        (Some(400), 60),
        (None, 100),
        (Some(0), 100),
    ];

    #[test]
    fn payloads_of_chunks_may_be_lost() {
        let (bytes, _, payloads) = stream(&UPDATE);
        let none = BTreeSet::new();
        let mut scout = Scout::new(START, 0);
        let found: Vec<Range> = scout.advance(read(&bytes, &none)).iter().map(|p| p.range).collect();
        assert_eq!(found, payloads);
        assert!(scout.advance(read(&bytes, &none)).is_empty(), "each is found once");
    }

    #[test]
    fn a_header_that_is_missing_hides_nothing_behind_it() {
        let (bytes, headers, payloads) = stream(&UPDATE);
        let mut scout = Scout::new(START, 0);
        let lost = [headers[2], headers[3]].into();
        let found: Vec<Range> = scout.advance(read(&bytes, &lost)).iter().map(|p| p.range).collect();
        // The last chunk is shorter, so the scout knows it only after it has read the header before it.
        assert_eq!(found, payloads[..4]);
        let none = BTreeSet::new();
        let found: Vec<Range> = scout.advance(read(&bytes, &none)).iter().map(|p| p.range).collect();
        assert_eq!(found, payloads[4..]);
    }

    #[test]
    fn the_head_of_a_sealed_chunk_must_come() {
        let (bytes, _, payloads) = stream(&UPDATE);
        let none = BTreeSet::new();
        let found = Scout::new(START, 16).advance(read(&bytes, &none));
        let found: Vec<Range> = found.iter().map(|payload| payload.range).collect();
        let behind_heads: Vec<Range> = payloads.iter().map(|p| Range::new(p.start + 16, p.end)).collect();
        assert_eq!(found, behind_heads);
        assert!(Scout::new(START, 100).advance(read(&bytes, &none)).is_empty());
    }

    #[test]
    fn an_update_ends_with_the_next_message() {
        let (bytes, headers, _) = stream(&[(None, 10), (Some(0), 100), (Some(100), 100), (None, 10)]);
        let mut scout = Scout::new(START, 0);
        for (come, inside) in [(1, false), (2, true), (3, true), (4, false)] {
            let end = headers.get(come).copied().unwrap_or(bytes.len() as u64);
            scout.advance(read(&bytes, &(end..bytes.len() as u64).collect()));
            assert_eq!(scout.in_update(), inside, "{come} frames");
        }
    }

    /// Chunks of 100 bytes that have 116 bytes when sealed.
    #[test]
    fn the_step_of_sealed_chunks_is_learnt_from_two() {
        let sealed: Vec<_> = (0..8).map(|n| (Some(100 * n), 116)).collect();
        let (bytes, headers, payloads) = stream(&sealed);
        let mut scout = Scout::new(START, 0);
        let lost = [headers[2], headers[3]].into();
        let found: Vec<Range> = scout.advance(read(&bytes, &lost)).iter().map(|p| p.range).collect();
        assert_eq!(found, payloads);
    }

    #[test]
    fn a_stream_of_something_else_may_lose_nothing() {
        let mut scout = Scout::new(START, 0);
        assert!(scout.advance(|_| Some([7; HEADER_BYTES])).is_empty());
        assert!(
            scout.lost && scout.advance(|_| Some(FrameHeader::chunk(chunk(0, 9), 0).encode())).is_empty()
        );
    }

    proptest! {
        /// Any bytes are missing, and the others arrive in any order. No byte of a header or control message
        /// may be lost. At the end, all payloads may be lost.
        #[test]
        fn only_payloads_are_ever_permitted(
            kinds in prop::collection::vec((any::<bool>(), 0..3_u32), 1..20),
            lost in prop::collection::vec(prop::collection::btree_set(0..4000_u64, 0..60), 0..4),
        ) {
            let mut offset = 0;
            let frames: Vec<(Option<u64>, u32)> = kinds.iter().map(|&(control, size)| {
                let length = [0, 100, 130][size as usize];
                let place = (!control).then_some(offset);
                offset += if control { 0 } else { u64::from(length) };
                (place, length)
            }).collect();
            let (bytes, _, payloads) = stream(&frames);
            let mut scout = Scout::new(START, 0);
            let mut found = Vec::new();
            let mut still: Option<BTreeSet<u64>> = None;
            for set in lost.into_iter().chain([BTreeSet::new()]) {
                // Bytes that have arrived stay there.
                let set = match &still { None => set, Some(before) => before.intersection(&set).copied().collect() };
                found.extend(scout.advance(read(&bytes, &set)).iter().map(|p| p.range));
                for range in &found {
                    let inside = payloads.iter().any(|p| p.start <= range.start && range.end <= p.end);
                    prop_assert!(inside, "{range:?} of {payloads:?}");
                }
                still = Some(set);
            }
            let wanted: Vec<Range> = payloads.into_iter().filter(|p| !p.is_empty()).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
