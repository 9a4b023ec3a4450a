//! Makes the stream to a server. It puts zeros for holes, and widens holes so that no value is cut in half.
//! It has no IO.
//!
//! Bytes are passed on in whole units, since a unit with any lost byte is zeroed as a whole. But if nothing
//! follows a part of a unit for a while, that part is sent as it is, because the server may wait for it. If
//! the rest of the unit is then lost, the map still lists the whole unit, although its first part has
//! arrived.

use thalweg_wire::Range;

/// Maximum number of bytes that are buffered.
const BLOCK: usize = 64 << 10;
/// Maximum number of bytes of a unit.
pub(super) const MOST_UNIT: u64 = 4096;

pub(super) struct Cut {
    /// Bytes of a unit; 1 widens no hole.
    unit: u64,
    /// Stream offset from which units are counted. There are no holes before it.
    base: u64,
    /// Stream offset of the first byte in the block.
    start: u64,
    block: Box<[u8]>,
    filled: usize,
    /// End of the last hole, after widening.
    hole_end: u64,
    /// Bytes in holes.
    missing: u64,
    holes: u64,
}

impl Cut {
    pub(super) fn new(unit: u64, base: u64) -> Self {
        let block = vec![0; BLOCK].into_boxed_slice();
        let unit = unit.clamp(1, MOST_UNIT);
        Self { unit, base, start: 0, block, filled: 0, hole_end: 0, missing: 0, holes: 0 }
    }

    /// One past the last byte that has arrived or is lost.
    pub(super) fn position(&self) -> u64 {
        self.start + self.filled as u64
    }

    /// Bytes in holes, up to the current end of the stream.
    pub(super) fn missing(&self) -> u64 {
        self.missing - self.hole_end.saturating_sub(self.position())
    }

    /// Number of holes that were returned.
    pub(super) fn holes(&self) -> u64 {
        self.holes
    }

    /// The buffer for the next bytes. It has room for at least one.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.block[self.filled..]
    }

    /// The caller has written `count` bytes into the buffer.
    pub(super) fn received(&mut self, count: usize) {
        let inside = self.hole_end.saturating_sub(self.position()).min(count as u64) as usize;
        self.block[self.filled..self.filled + inside].fill(0);
        self.filled += count;
    }

    /// The next `count` bytes are a hole. Returns the widened part that the map does not have yet.
    pub(super) fn lost(&mut self, count: usize) -> Option<Range> {
        let at = self.position();
        let hole = Range::new(self.below(at).max(self.hole_end), self.above(at + count as u64));
        let held = at.saturating_sub(hole.start).min(self.filled as u64) as usize;
        self.block[self.filled - held..self.filled + count].fill(0);
        self.filled += count;
        if hole.is_empty() {
            return None;
        }
        self.hole_end = hole.end;
        self.missing += hole.len();
        self.holes += 1;
        Some(hole)
    }

    /// Bytes that may be sent to the server: whole units and holes.
    pub(super) fn whole(&self) -> &[u8] {
        let end = self.below(self.position()).max(self.hole_end.min(self.position()));
        &self.block[..end.saturating_sub(self.start) as usize]
    }

    /// All buffered bytes, including a part of a unit.
    pub(super) fn all(&self) -> &[u8] {
        &self.block[..self.filled]
    }

    /// Whether a part of a unit is buffered, which waits for the rest of the unit.
    pub(super) fn holds(&self) -> bool {
        self.filled > 0
    }

    /// The caller has sent `count` bytes to the server.
    pub(super) fn sent(&mut self, count: usize) {
        self.block.copy_within(count..self.filled, 0);
        self.filled -= count;
        self.start += count as u64;
    }

    /// The offset at which the unit with offset `at` begins.
    fn below(&self, at: u64) -> u64 {
        at - at.saturating_sub(self.base) % self.unit
    }

    /// The offset at which the unit with the byte before `at` ends.
    fn above(&self, at: u64) -> u64 {
        let over = at.saturating_sub(self.base) % self.unit;
        if over == 0 {
            at
        } else {
            at.saturating_add(self.unit - over)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn byte(at: u64) -> u8 {
        (at % 255) as u8 + 1
    }

    /// Passes a stream on in pieces. Each piece says whether it is lost, and whether nothing follows it for a
    /// while.
    fn hand(unit: u64, base: u64, pieces: &[(usize, bool, bool)]) -> (Vec<u8>, Vec<Range>, u64) {
        let (mut cut, mut sent, mut map) = (Cut::new(unit, base), Vec::new(), Vec::new());
        for &(length, lost, pause) in pieces {
            let at = cut.position();
            // No byte before `base` is ever lost.
            if lost && at >= base {
                map.extend(cut.lost(length));
            } else {
                let room = cut.room();
                room[..length].iter_mut().zip(at..).for_each(|(to, at)| *to = byte(at));
                cut.received(length);
            }
            let now = if pause { cut.all() } else { cut.whole() }.len();
            sent.extend_from_slice(&cut.all()[..now]);
            cut.sent(now);
        }
        sent.extend_from_slice(cut.all());
        (sent, map, cut.missing())
    }

    #[test]
    fn a_hole_is_widened_to_whole_units() {
        let (sent, map, missing) = hand(8, 0, &[(20, false, false), (10, true, false), (10, false, false)]);
        assert_eq!((map, missing), (vec![Range::new(16, 32)], 16));
        let expected: Vec<u8> = (0..40).map(|at| if (16..32).contains(&at) { 0 } else { byte(at) }).collect();
        assert_eq!(sent, expected);
    }

    #[test]
    fn units_are_counted_from_the_base() {
        let (_, map, _) = hand(4, 13, &[(20, false, false), (2, true, false), (10, false, false)]);
        assert_eq!(map, [Range::new(17, 25)]);
    }

    #[test]
    fn a_part_that_had_to_go_counts_as_lost_all_the_same() {
        let (sent, map, _) = hand(8, 0, &[(20, false, true), (4, true, false), (8, false, false)]);
        assert_eq!(map, [Range::new(16, 24)]);
        assert_eq!((sent[19], &sent[20..24], sent[24]), (byte(19), &[0; 4][..], byte(24)));
    }

    #[test]
    fn a_hole_at_the_end_misses_no_more_than_there_was() {
        let (sent, map, missing) = hand(8, 0, &[(8, false, false), (3, true, false)]);
        assert_eq!((sent.len(), map, missing), (11, vec![Range::new(8, 16)], 3));
    }

    proptest! {
        /// The whole stream is passed on, in its full length. Outside the holes of the map, it equals the
        /// stream that was sent. Every lost byte is in the map. The holes of the map are whole units, in
        /// ascending order. Without pauses, or with units of one byte, all bytes in the map's holes are zero.
        #[test]
        fn what_is_not_in_the_map_is_what_was_sent(
            unit in prop::sample::select(vec![1_u64, 2, 4, 8, 12, 4096]),
            base in 0..100_u64,
            pieces in prop::collection::vec((1..3000_usize, any::<bool>(), any::<bool>()), 0..60),
            pauses in any::<bool>(),
        ) {
            let pieces: Vec<_> = pieces.into_iter().map(|(n, lost, pause)| (n, lost, pause && pauses)).collect();
            let (sent, map, missing) = hand(unit, base, &pieces);
            let length: usize = pieces.iter().map(|piece| piece.0).sum();
            prop_assert_eq!(sent.len(), length);
            let mut holes = vec![false; length];
            let mut last = 0;
            for hole in &map {
                prop_assert!(hole.start >= last.max(base) && !hole.is_empty());
                prop_assert_eq!(((hole.start - base) % unit, (hole.end - base) % unit), (0, 0));
                last = hole.end;
                holes.iter_mut().take(hole.end as usize).skip(hole.start as usize).for_each(|flag| *flag = true);
            }
            prop_assert_eq!(missing as usize, holes.iter().filter(|&&flag| flag).count());
            let mut at = 0_usize;
            for &(count, lost, _) in &pieces {
                let lost = lost && at as u64 >= base;
                for room in at..at + count {
                    prop_assert!(holes[room] || !lost);
                    let zero = lost || (holes[room] && (!pauses || unit == 1));
                    if zero {
                        prop_assert_eq!(sent[room], 0);
                    } else if !holes[room] {
                        prop_assert_eq!(sent[room], byte(room as u64));
                    }
                }
                at += count;
            }
        }
    }
}
