//! Which part of its model a node sends in an iteration, where it does not send all of it.
//!
//! All nodes send the same part in the same iteration. Each part begins where the one of the iteration before
//! ends. So after about 1 / share iterations, every byte of the model has been averaged once. For bytes that
//! are not sent, as for lost ones, a node uses its own values.

use thalweg_wire::{Range, Ranges};

/// Parts begin and end at multiples of this many bytes, so that no value is cut.
const UNIT: u64 = 64;

/// The size of a model, and the fraction of it that is sent in an iteration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub bytes: u64,
    /// A fraction, more than 0; 1 or more means the whole model.
    pub share: f64,
}

impl Size {
    /// The ranges that are sent in an iteration; `None` if the whole model is sent.
    pub fn part(self, round: u32) -> Option<Ranges> {
        let units = self.bytes.div_ceil(UNIT);
        let many = ((units as f64 * self.share).ceil() as u64).max(1);
        if many >= units {
            return None;
        }
        let passed = u128::from(round.saturating_sub(1)) * u128::from(many) % u128::from(units);
        let first = passed as u64; // less than `units`
        let end = first + many;
        let cut = |from: u64, to: u64| Range::new((from * UNIT).min(self.bytes), (to * UNIT).min(self.bytes));
        let both = [cut(0, end.saturating_sub(units)), cut(first, end.min(units))];
        Some(both.into_iter().filter(|range| !range.is_empty()).collect())
    }

    /// The ranges that are sent in an iteration, also if that is the whole model.
    pub fn wanted(self, round: u32) -> Ranges {
        self.part(round).unwrap_or_else(|| Ranges::full(self.bytes))
    }

    /// Converts a range of the model to its position among the bytes that are sent, which are sent in
    /// ascending order.
    pub fn within(self, round: u32, range: Range) -> Range {
        let Some(part) = self.part(round) else { return range };
        let before = |at: u64| part.within(Range::new(0, at)).map(|range| range.len()).sum();
        Range::new(before(range.start), before(range.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(bytes: u64, share: f64, rounds: u32) -> Vec<Ranges> {
        (1..=rounds).map(|round| Size { bytes, share }.wanted(round)).collect()
    }

    #[test]
    fn parts_follow_one_another_and_come_to_the_whole() {
        for (bytes, share, rounds) in
            [(1000, 0.25, 4), (1000, 0.1, 8), (64, 0.5, 1), (6400, 0.3, 4), (0, 0.5, 1)]
        {
            let found = parts(bytes, share, rounds);
            let mut all = Ranges::new();
            found.iter().flat_map(Ranges::iter).for_each(|range| _ = all.insert(range));
            assert_eq!(all, Ranges::full(bytes), "{bytes} {share}");
            for part in &found {
                let most = (bytes as f64 * share).ceil() as u64 + UNIT;
                assert!(part.bytes() <= most && part.count() <= 2, "{part:?}");
                assert!(part.iter().all(|r| r.start % UNIT == 0 && (r.end % UNIT == 0 || r.end == bytes)));
            }
        }
    }

    #[test]
    fn a_part_that_reaches_the_end_goes_on_at_the_beginning() {
        let found = parts(640, 0.4, 3);
        let ranges = |all: &[(u64, u64)]| all.iter().map(|&(a, b)| Range::new(a, b)).collect::<Ranges>();
        assert_eq!(found, [ranges(&[(0, 256)]), ranges(&[(256, 512)]), ranges(&[(0, 128), (512, 640)])]);
        let size = Size { bytes: 640, share: 0.4 };
        assert_eq!(size.within(3, Range::new(512, 576)), Range::new(128, 192));
        assert_eq!(size.within(2, Range::new(256, 320)), Range::new(0, 64));
    }

    #[test]
    fn all_is_all_in_every_iteration() {
        for round in [0, 1, 7, u32::MAX] {
            assert!(Size { bytes: 1000, share: 1.0 }.part(round).is_none());
            assert_eq!(Size { bytes: 1 << 40, share: 1e-9 }.wanted(round).count(), 1);
        }
    }
}
