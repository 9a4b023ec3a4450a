//! Records which packet numbers have arrived, and chooses the numbers that an ACK reports.

use std::collections::VecDeque;

use thalweg_wire::Range;

use super::MAX_RANGES;

/// Maximum number of ranges that are remembered. On a path that reorders, gaps stay open far behind the
/// newest number.
const MAX_KEPT: usize = 1024;
/// Each ACK reports this many of the newest ranges, whether they have changed or not.
const REPORTED_NEWEST: usize = 16;
/// This many ACKs report a range after it has changed, since ACKs can be lost.
const REPORTS_PER_CHANGE: u64 = 3;

/// A range of packet numbers that have arrived.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    range: Range,
    /// Number of the first ACK that reports this range.
    first_ack: u64,
}

/// The newest packet numbers that have arrived, as descending ranges. The oldest ranges are forgotten (RFC
/// 9000, section 13.2.3).
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    ranges: VecDeque<Arrival>,
    /// Number of ACKs sent so far.
    acks: u64,
}

impl Arrivals {
    /// Adds a packet number. Ignores the largest number, which no sender uses, since no range could end after
    /// it.
    pub(super) fn insert(&mut self, number: u64) {
        let Some(end) = number.checked_add(1) else { return };
        let ranges = &mut self.ranges;
        // Almost always the number belongs to the newest range, or begins a new range after a gap.
        let at = ranges.iter().position(|arrival| arrival.range.start <= number).unwrap_or(ranges.len());
        if ranges.get(at).is_some_and(|arrival| number < arrival.range.end) {
            return;
        }
        let follows = ranges.get(at).is_some_and(|arrival| arrival.range.end == number);
        let precedes = at > 0 && ranges[at - 1].range.start == end;
        let first_ack = self.acks;
        match (follows, precedes) {
            (true, true) => {
                let end = ranges[at - 1].range.end;
                ranges[at] = Arrival { range: Range::new(ranges[at].range.start, end), first_ack };
                ranges.remove(at - 1);
            }
            (true, false) => {
                ranges[at] = Arrival { range: Range::new(ranges[at].range.start, end), first_ack }
            }
            (false, true) => {
                ranges[at - 1] = Arrival { range: Range::new(number, ranges[at - 1].range.end), first_ack };
            }
            (false, false) => ranges.insert(at, Arrival { range: Range::new(number, end), first_ack }),
        }
        ranges.truncate(MAX_KEPT);
    }

    /// The ranges that the next ACK reports, descending: the newest ranges, and the ranges that have changed
    /// recently. (A receiver reports recent arrivals in the same way in RFC 2018, section 4.)
    pub(super) fn report(&mut self) -> Vec<Range> {
        let ack = self.acks;
        self.acks += 1;
        let news = |&(at, arrival): &(usize, &Arrival)| {
            at < REPORTED_NEWEST || arrival.first_ack + REPORTS_PER_CHANGE > ack
        };
        let ranges = self.ranges.iter().enumerate().filter(news);
        ranges.map(|(_, arrival)| arrival.range).take(MAX_RANGES).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use thalweg_rng::Rng;

    #[test]
    fn the_newest_ranges_are_kept() {
        for seed in 0..200 {
            let (mut arrivals, mut received, mut rng) =
                (Arrivals::default(), BTreeSet::new(), Rng::new(&[seed]));
            let mut forgot = false;
            for _ in 0..300 {
                let number = rng.up_to(10 + seed * 2);
                arrivals.insert(number);
                received.insert(number);
                let ranges = arrivals.report();
                assert!(
                    ranges.len() <= MAX_RANGES && ranges.windows(2).all(|pair| pair[1].end < pair[0].start)
                );
                let named: BTreeSet<u64> = ranges.iter().flat_map(|range| range.start..range.end).collect();
                assert!(named.is_subset(&received) && named.last() == received.last());
                forgot |= arrivals.ranges.len() > REPORTED_NEWEST;
                assert!(forgot || named == received, "{ranges:?}");
            }
        }
    }

    /// A fuzzer found this case: the largest number has no number after it.
    #[test]
    fn the_last_number_is_of_no_range() {
        let mut arrivals = Arrivals::default();
        for number in [u64::MAX, u64::MAX - 1] {
            arrivals.insert(number);
        }
        assert_eq!(arrivals.report(), [Range::new(u64::MAX - 1, u64::MAX)]);
    }

    /// There are 300 gaps. One of them closes far behind the newest number.
    #[test]
    fn a_late_arrival_is_in_a_few_acks() {
        let mut arrivals = Arrivals::default();
        (0..300).for_each(|n| arrivals.insert(2 * n));
        for _ in 0..10 {
            arrivals.report();
        }
        arrivals.insert(101);
        for ack in 0..5 {
            let ranges = arrivals.report();
            let late = ranges.contains(&Range::new(100, 103));
            assert_eq!((late, ranges.len()), if ack < 3 { (true, 17) } else { (false, 16) });
        }
    }

    #[test]
    fn gaps_close() {
        let mut arrivals = Arrivals::default();
        for number in [1, 3, 5, 4, 2] {
            arrivals.insert(number);
        }
        assert_eq!(arrivals.report(), [Range::new(1, 6)]);
    }
}
