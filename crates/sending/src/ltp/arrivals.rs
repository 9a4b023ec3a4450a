//! Which packet numbers have come.

use std::collections::VecDeque;

use thalweg_wire::Range;

use super::MAX_RANGES;

/// Ranges that are remembered. A path that reorders leaves gaps far behind the newest number.
const KEPT: usize = 1024;
/// The newest ranges are in each acknowledgement, whether they are news or not.
const NEWEST: usize = 16;
/// What is news is in so many acknowledgements, since some get lost.
const REPEATED: u64 = 3;

/// Packet numbers that have come.
#[derive(Debug, Clone, Copy)]
struct Came {
    range: Range,
    /// The acknowledgement that says so first.
    told_in: u64,
}

/// The newest packet numbers that have come, as ranges, descending. Older ones are forgotten (RFC 9000,
/// section 13.2.3).
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    ranges: VecDeque<Came>,
    /// Acknowledgements so far.
    told: u64,
}

impl Arrivals {
    /// Adds a packet number. No sender uses the last number, since no range could end behind it.
    pub(super) fn insert(&mut self, number: u64) {
        let Some(end) = number.checked_add(1) else { return };
        let ranges = &mut self.ranges;
        // Almost always it is in the newest range, or in the one behind a new gap.
        let at = ranges.iter().position(|came| came.range.start <= number).unwrap_or(ranges.len());
        if ranges.get(at).is_some_and(|came| number < came.range.end) {
            return;
        }
        let follows = ranges.get(at).is_some_and(|came| came.range.end == number);
        let precedes = at > 0 && ranges[at - 1].range.start == end;
        let told_in = self.told;
        match (follows, precedes) {
            (true, true) => {
                let end = ranges[at - 1].range.end;
                ranges[at] = Came { range: Range::new(ranges[at].range.start, end), told_in };
                ranges.remove(at - 1);
            }
            (true, false) => ranges[at] = Came { range: Range::new(ranges[at].range.start, end), told_in },
            (false, true) => {
                ranges[at - 1] = Came { range: Range::new(number, ranges[at - 1].range.end), told_in };
            }
            (false, false) => ranges.insert(at, Came { range: Range::new(number, end), told_in }),
        }
        ranges.truncate(KEPT);
    }

    /// The ranges of the next acknowledgement, descending: the newest, and those that are news (RFC 2018,
    /// section 4, has a receiver report what came last in the same way).
    pub(super) fn tell(&mut self) -> Vec<Range> {
        let told = self.told;
        self.told += 1;
        let news = |&(at, came): &(usize, &Came)| at < NEWEST || came.told_in + REPEATED > told;
        let ranges = self.ranges.iter().enumerate().filter(news);
        ranges.map(|(_, came)| came.range).take(MAX_RANGES).collect()
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
                let ranges = arrivals.tell();
                assert!(
                    ranges.len() <= MAX_RANGES && ranges.windows(2).all(|pair| pair[1].end < pair[0].start)
                );
                let named: BTreeSet<u64> = ranges.iter().flat_map(|range| range.start..range.end).collect();
                assert!(named.is_subset(&came) && named.last() == came.last());
                forgot |= arrivals.ranges.len() > NEWEST;
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
        assert_eq!(arrivals.tell(), [Range::new(u64::MAX - 1, u64::MAX)]);
    }

    /// 300 gaps, of which one closes far behind the newest number.
    #[test]
    fn what_comes_late_is_told_a_few_times() {
        let mut arrivals = Arrivals::default();
        (0..300).for_each(|n| arrivals.insert(2 * n));
        for _ in 0..10 {
            arrivals.tell();
        }
        arrivals.insert(101);
        for told in 0..5 {
            let ranges = arrivals.tell();
            let late = ranges.contains(&Range::new(100, 103));
            assert_eq!((late, ranges.len()), if told < 3 { (true, 17) } else { (false, 16) });
        }
    }

    #[test]
    fn gaps_close() {
        let mut arrivals = Arrivals::default();
        for number in [1, 3, 5, 4, 2] {
            arrivals.insert(number);
        }
        assert_eq!(arrivals.tell(), [Range::new(1, 6)]);
    }
}
