//! Which packet numbers have come.

use std::collections::VecDeque;

use thalweg_wire::Range;

use super::MAX_RANGES;

/// The newest packet numbers that have come, as ranges, descending. Older ones are forgotten: the sender has
/// decided about them long ago (RFC 9000, section 13.2.3).
#[derive(Debug, Default)]
pub(super) struct Arrivals(VecDeque<Range>);

impl Arrivals {
    /// Adds a packet number. No sender uses the last number, since no range could end behind it.
    pub(super) fn insert(&mut self, number: u64) {
        let Some(end) = number.checked_add(1) else { return };
        // Almost always it is in the newest range, or in the one behind a new gap.
        let at = self.0.iter().position(|range| range.start <= number).unwrap_or(self.0.len());
        if self.0.get(at).is_some_and(|range| number < range.end) {
            return;
        }
        let follows = self.0.get(at).is_some_and(|range| range.end == number);
        let precedes = at > 0 && self.0[at - 1].start == end;
        match (follows, precedes) {
            (true, true) => {
                self.0[at].end = self.0[at - 1].end;
                self.0.remove(at - 1);
            }
            (true, false) => self.0[at].end = end,
            (false, true) => self.0[at - 1].start = number,
            (false, false) => self.0.insert(at, Range::new(number, end)),
        }
        self.0.truncate(MAX_RANGES);
    }

    /// The ranges, descending.
    pub(super) fn ranges(&self) -> Vec<Range> {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use thalweg_dice::Dice;

    #[test]
    fn the_ranges_are_the_newest_of_what_came() {
        for seed in 0..200 {
            let (mut arrivals, mut came, mut dice) =
                (Arrivals::default(), BTreeSet::new(), Dice::new(&[seed]));
            let mut forgot = false;
            for _ in 0..300 {
                let number = dice.up_to(10 + seed * 2);
                arrivals.insert(number);
                came.insert(number);
                let ranges = arrivals.ranges();
                assert!(
                    ranges.len() <= MAX_RANGES && ranges.windows(2).all(|pair| pair[1].end < pair[0].start)
                );
                let named: BTreeSet<u64> = ranges.iter().flat_map(|range| range.start..range.end).collect();
                assert!(named.is_subset(&came) && named.last() == came.last());
                forgot |= ranges.len() == MAX_RANGES;
                assert!(forgot || named == came, "{ranges:?}");
            }
        }
    }

    /// Found by the fuzzer.
    #[test]
    fn the_last_number_is_of_no_range() {
        let mut arrivals = Arrivals::default();
        for number in [u64::MAX, u64::MAX - 1] {
            arrivals.insert(number);
        }
        assert_eq!(arrivals.ranges(), [Range::new(u64::MAX - 1, u64::MAX)]);
    }

    #[test]
    fn gaps_close() {
        let mut arrivals = Arrivals::default();
        for number in [1, 3, 5, 4, 2] {
            arrivals.insert(number);
        }
        assert_eq!(arrivals.ranges(), [Range::new(1, 6)]);
    }
}
