//! A stream to a server, with zeros for holes, and holes widened so that no value is halved. Without IO.
//!
//! Bytes are passed on in whole units, since a unit in which a hole begins is zeroed as a whole. If nothing
//! follows a part of a unit, that part has to go as it is, because somebody may wait for it. If the rest is
//! lost then, the map still lists the whole unit, although its first part is what came.

use thalweg_wire::Range;

/// The most bytes in progress.
const BLOCK: usize = 64 << 10;
/// The largest unit.
pub(super) const MOST_UNIT: u64 = 4096;

pub(super) struct Cut {
    /// Bytes of a unit; 1 widens nothing.
    unit: u64,
    /// Offset from which units are counted. There are no holes before it.
    base: u64,
    /// Offset of the block's first byte.
    start: u64,
    block: Box<[u8]>,
    filled: usize,
    /// End of the last hole, widened.
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

    /// One past the last byte taken.
    pub(super) fn position(&self) -> u64 {
        self.start + self.filled as u64
    }

    /// Bytes in holes, as far as the stream reaches.
    pub(super) fn missing(&self) -> u64 {
        self.missing - self.hole_end.saturating_sub(self.position())
    }

    /// Holes, each as it was given out.
    pub(super) fn holes(&self) -> u64 {
        self.holes
    }

    /// Buffer for the next bytes, at least one.
    pub(super) fn place(&mut self) -> &mut [u8] {
        &mut self.block[self.filled..]
    }

    /// `count` bytes have been written to the buffer.
    pub(super) fn came(&mut self, count: usize) {
        let inside = self.hole_end.saturating_sub(self.position()).min(count as u64) as usize;
        self.block[self.filled..self.filled + inside].fill(0);
        self.filled += count;
    }

    /// The next `count` bytes are a hole. Returns the part that is new to the map, widened.
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

    /// Bytes that may go to the server: whole units, and holes.
    pub(super) fn whole(&self) -> &[u8] {
        let end = self.below(self.position()).max(self.hole_end.min(self.position()));
        &self.block[..end.saturating_sub(self.start) as usize]
    }

    /// All bytes, including a part of a unit.
    pub(super) fn all(&self) -> &[u8] {
        &self.block[..self.filled]
    }

    /// Whether a part of a unit waits for the rest.
    pub(super) fn holds(&self) -> bool {
        self.filled > 0
    }

    /// `count` bytes have gone to the server.
    pub(super) fn gone(&mut self, count: usize) {
        self.block.copy_within(count..self.filled, 0);
        self.filled -= count;
        self.start += count as u64;
    }

    /// Where the unit of an offset begins.
    fn below(&self, at: u64) -> u64 {
        at - at.saturating_sub(self.base) % self.unit
    }

    /// Where the unit in front of an offset ends.
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

    /// A stream in pieces, each with whether it is lost and whether nothing follows it for a while.
    fn hand(unit: u64, base: u64, pieces: &[(usize, bool, bool)]) -> (Vec<u8>, Vec<Range>, u64) {
        let (mut cut, mut sent, mut map) = (Cut::new(unit, base), Vec::new(), Vec::new());
        for &(length, lost, pause) in pieces {
            let at = cut.position();
            // Nothing before `base` is ever lost.
            if lost && at >= base {
                map.extend(cut.lost(length));
            } else {
                let place = cut.place();
                place[..length].iter_mut().zip(at..).for_each(|(to, at)| *to = byte(at));
                cut.came(length);
            }
            let now = if pause { cut.all() } else { cut.whole() }.len();
            sent.extend_from_slice(&cut.all()[..now]);
            cut.gone(now);
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
        /// All of the stream goes on, in its length; outside of the map it is what was sent, and every lost
        /// byte is in the map, whose holes are of whole units and rise. Without pauses, and with units of one
        /// byte, what is in the map is zero.
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
                for place in at..at + count {
                    prop_assert!(holes[place] || !lost);
                    let zero = lost || (holes[place] && (!pauses || unit == 1));
                    if zero {
                        prop_assert_eq!(sent[place], 0);
                    } else if !holes[place] {
                        prop_assert_eq!(sent[place], byte(place as u64));
                    }
                }
                at += count;
            }
        }
    }
}
