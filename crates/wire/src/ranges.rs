//! Byte ranges, and sets of them. Receivers use them for the bytes that have arrived and for holes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes `start..end` of a parcel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// The position after the last byte.
    pub end: u64,
}

impl Range {
    /// `start..end`; empty if `end <= start`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// Number of bytes.
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it has no bytes.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The bytes that are in both ranges.
    pub fn intersect(self, other: Range) -> Range {
        Range::new(self.start.max(other.start), self.end.min(other.end))
    }
}

/// A set of bytes, stored as ranges that neither overlap nor touch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Range>", into = "Vec<Range>")]
pub struct Ranges {
    /// The end of each range, by its start.
    parts: BTreeMap<u64, u64>,
    /// Number of bytes in the set.
    bytes: u64,
}

impl Ranges {
    /// The empty set.
    pub const fn new() -> Self {
        Self { parts: BTreeMap::new(), bytes: 0 }
    }

    /// The set of all bytes of `0..total`.
    pub fn full(total: u64) -> Self {
        [Range::new(0, total)].into_iter().collect()
    }

    /// Number of bytes in the set.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the set is empty.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Number of separate ranges.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.parts.iter().map(|(&start, &end)| Range::new(start, end))
    }

    /// Adds `range`. Returns the parts of it that were not in the set, in ascending order.
    pub fn insert(&mut self, range: Range) -> Vec<Range> {
        if range.is_empty() {
            return Vec::new();
        }
        let fresh = self.missing_in(range);
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = self.parts.range(..=end).next_back().filter(|(_, &e)| e >= start) {
            self.parts.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.parts.insert(start, end);
        self.bytes += fresh.iter().map(|r| r.len()).sum::<u64>();
        fresh
    }

    /// The parts of `range` that are not in the set, in ascending order.
    pub fn missing_in(&self, range: Range) -> Vec<Range> {
        let mut holes = Vec::new();
        let mut at = range.start;
        let before = self.parts.range(..=range.start).next_back();
        let inside =
            self.parts.range(range.start.saturating_add(1)..range.end.max(range.start.saturating_add(1)));
        for (&start, &end) in before.into_iter().chain(inside) {
            if start > at {
                holes.push(Range::new(at, start.min(range.end)));
            }
            at = at.max(end);
        }
        if at < range.end {
            holes.push(Range::new(at, range.end));
        }
        holes
    }

    /// The bytes of `0..total` that are not in the set.
    pub fn holes(&self, total: u64) -> Ranges {
        self.missing_in(Range::new(0, total)).into_iter().collect()
    }

    /// Whether every byte of `range` is in the set.
    pub fn covers(&self, range: Range) -> bool {
        range.is_empty()
            || self.parts.range(..=range.start).next_back().is_some_and(|(_, &end)| end >= range.end)
    }

    /// Removes all bytes before `start`.
    pub fn trim(&mut self, start: u64) {
        while let Some((&s, &e)) = self.parts.first_key_value().filter(|(&s, _)| s < start) {
            self.parts.pop_first();
            self.bytes -= e.min(start) - s;
            if e > start {
                self.parts.insert(start, e);
            }
        }
    }

    /// The first range that ends after `at`.
    pub fn next(&self, at: u64) -> Option<Range> {
        let before = self.parts.range(..=at).next_back().filter(|(_, &end)| end > at);
        before.or_else(|| self.parts.range(at..).next()).map(|(&start, &end)| Range::new(start, end))
    }

    /// The parts of `range` that are in the set, in ascending order.
    pub fn within(&self, range: Range) -> impl Iterator<Item = Range> + '_ {
        let before = self.parts.range(..range.start).next_back();
        let inside = self.parts.range(range.start..range.end.max(range.start));
        let parts = before.into_iter().chain(inside);
        parts
            .map(move |(&start, &end)| Range::new(start, end).intersect(range))
            .filter(|part| !part.is_empty())
    }

    /// The first `limit` ranges, so that a message about them stays small.
    pub fn first(&self, limit: usize) -> Ranges {
        self.iter().take(limit).collect()
    }

    /// The `limit` longest ranges. Of two ranges of the same length, the first one is preferred.
    pub fn longest(&self, limit: usize) -> Ranges {
        let mut parts: Vec<Range> = self.iter().collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        parts.truncate(limit);
        parts.into()
    }
}

impl FromIterator<Range> for Ranges {
    fn from_iter<T: IntoIterator<Item = Range>>(iter: T) -> Self {
        let mut set = Self::new();
        for range in iter {
            set.insert(range);
        }
        set
    }
}

impl From<Vec<Range>> for Ranges {
    fn from(parts: Vec<Range>) -> Self {
        parts.into_iter().collect()
    }
}

impl From<Ranges> for Vec<Range> {
    fn from(set: Ranges) -> Self {
        set.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPAN: u64 = 64;

    fn arbitrary() -> impl Strategy<Value = Vec<Range>> {
        prop::collection::vec((0..SPAN, 0..SPAN).prop_map(|(a, b)| Range::new(a, b)), 0..20)
    }

    #[test]
    fn the_longest_are_kept() {
        let set: Ranges = [Range::new(0, 1), Range::new(10, 13), Range::new(20, 22), Range::new(30, 32)]
            .into_iter()
            .collect();
        let kept: Vec<Range> = set.longest(2).iter().collect();
        assert_eq!(kept, [Range::new(10, 13), Range::new(20, 22)]);
        assert_eq!(set.longest(9), set);
    }

    proptest! {
        /// Compares the set with the simplest model: one bool per byte.
        #[test]
        fn agrees_with_a_bitmap(ranges in arbitrary(), probe in (0..SPAN, 0..SPAN)) {
            let mut set = Ranges::new();
            let mut model = [false; SPAN as usize];
            for range in &ranges {
                let fresh: u64 = set.insert(*range).iter().map(|r| r.len()).sum();
                let mut expected = 0;
                for byte in range.start..range.end {
                    expected += u64::from(!std::mem::replace(&mut model[byte as usize], true));
                }
                prop_assert_eq!(fresh, expected);
            }
            prop_assert_eq!(set.bytes(), model.iter().filter(|&&b| b).count() as u64);
            let holes = set.holes(SPAN);
            for byte in 0..SPAN {
                let one = Range::new(byte, byte + 1);
                prop_assert_eq!(set.covers(one), model[byte as usize]);
                prop_assert_eq!(holes.covers(one), !model[byte as usize]);
            }
            let probe = Range::new(probe.0, probe.1);
            prop_assert_eq!(set.covers(probe), (probe.start..probe.end).all(|b| model[b as usize]));
            let parts: Vec<Range> = set.iter().collect();
            prop_assert!(parts.windows(2).all(|w| w[0].end < w[1].start), "disjoint and not touching");
            let within: Vec<Range> =
                parts.iter().map(|part| part.intersect(probe)).filter(|part| !part.is_empty()).collect();
            prop_assert_eq!(set.within(probe).collect::<Vec<_>>(), within);
            let next = parts.iter().find(|part| part.end > probe.start).copied();
            prop_assert_eq!(set.next(probe.start), next);
            set.trim(probe.start);
            let left: Vec<Range> = parts.iter().map(|p| Range::new(p.start.max(probe.start), p.end)).collect();
            let left: Vec<Range> = left.into_iter().filter(|part| !part.is_empty()).collect();
            prop_assert_eq!(set.bytes(), left.iter().map(|part| part.len()).sum::<u64>());
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), left);
        }
    }
}
