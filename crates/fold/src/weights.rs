//! How much weight each byte of a stripe has received, run-length, and how large its sum may be.
//!
//! Weights add up as integers (multiples of 2^-60), so that their sums are exact in any order: neighbouring
//! runs that received the same clients are equal and become one, however the chunks were cut and reordered.
//!
//! Magnitudes are bounds: what was folded to any byte of a run is no larger in sum. Of runs that become one
//! the larger bound counts, so it never exceeds the sum over the clients of each one's largest value in the
//! stripe.

use std::ops::Range;

use thalweg_wire as wire;

use crate::{exact, sums, FoldError};

/// Least weight other than 0.
pub const MIN_WEIGHT: f64 = 1.0 / (1_u64 << 30) as f64;
/// Most weight of one contribution.
pub const MAX_WEIGHT: f64 = (1_u64 << 40) as f64;
/// Most contributions to an element of sums that are merged. So many overflow the sums of no precision.
pub const MAX_CONTRIBUTIONS: u32 = 1 << 22;
/// [`MIN_WEIGHT`] and [`MAX_WEIGHT`] in units.
pub(crate) const MIN_UNITS: u128 = 1 << 30;
pub(crate) const MAX_UNITS: u128 = 1 << 100;
const ONE_UNITS: u128 = 1 << 60;
const UNITS: f64 = ONE_UNITS as f64;

/// The weight of one contribution, in integer units and as the multiplier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weight {
    /// The multiplier: exactly `units` times 2^-60.
    pub(crate) value: f64,
    pub(crate) units: u128,
}

impl Weight {
    /// `None` for 0: such a contribution changes nothing.
    pub(crate) fn new(weight: f64, single: bool) -> Result<Option<Self>, FoldError> {
        if weight == 0.0 {
            return Ok(None);
        }
        if !(MIN_WEIGHT..=MAX_WEIGHT).contains(&weight) {
            return Err(FoldError::Weight(weight));
        }
        // What is multiplied by is what is divided by in the end: an f32 accumulator multiplies by an f32.
        let weight = if single { f64::from(weight as f32) } else { weight };
        let units = (weight * UNITS).round() as u128;
        Ok(Some(Self { value: value_of(units), units }))
    }

    /// What is missing to a weight of 1, exactly; 0 if nothing is.
    pub(crate) fn missing_to_one(part: &Weighted) -> Self {
        let units = ONE_UNITS.saturating_sub(part.units);
        Self { value: value_of(units), units }
    }
}

pub(crate) fn value_of(units: u128) -> f64 {
    units as f64 / UNITS
}

/// Most separately weighted pieces a stripe keeps account of; chunks cut at multiples of 64 bytes need half.
pub const MAX_RUNS: usize = 4096;

/// Why a stripe cannot take a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// Its account of weights would have too many runs.
    Runs,
    /// Its exact sums might overflow.
    Sums,
    /// It could not tell how much came.
    Contributions,
}

/// Neighbouring bytes with the same weight, up to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    end: usize,
    contributions: u32,
    units: u128,
    magnitude: u64,
}

/// Bytes that received the same weight.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Weighted {
    pub(crate) bytes: Range<usize>,
    pub(crate) contributions: u32,
    units: u128,
    pub(crate) magnitude: u64,
}

impl Weighted {
    /// The sum of the weights, rounded once.
    pub(crate) fn weight(&self) -> f64 {
        value_of(self.units)
    }

    /// Whether no bytes came.
    pub(crate) fn is_hole(&self) -> bool {
        self.contributions == 0
    }

    /// Whether so much came that it cannot be told how much.
    pub(crate) fn is_full(&self) -> bool {
        self.contributions == u32::MAX || self.units == u128::MAX
    }

    /// Whether so much more can be told.
    pub(crate) fn has_count_for(&self, more: &Weighted) -> bool {
        self.contributions.saturating_add(more.contributions) <= MAX_CONTRIBUTIONS
    }

    /// The run of the update, given where the stripe starts.
    pub(crate) fn at(&self, start: u64) -> sums::WeightRun {
        let bytes = wire::Range::new(start + self.bytes.start as u64, start + self.bytes.end as u64);
        let Self { contributions, units, magnitude, .. } = *self;
        sums::WeightRun { bytes, contributions, units, magnitude }
    }

    /// Part of a run of the update, as `bytes` of the stripe.
    pub(crate) fn of(run: &sums::WeightRun, bytes: Range<usize>) -> Self {
        let sums::WeightRun { contributions, units, magnitude, .. } = *run;
        Self { bytes, contributions, units, magnitude }
    }
}

/// The weights of bytes `0..length` of a stripe.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    /// Rising, the last one ends at the length; never empty.
    runs: Vec<Run>,
}

impl Weights {
    pub(crate) fn new(length: usize) -> Self {
        Self { runs: vec![Run { end: length, contributions: 0, units: 0, magnitude: 0 }] }
    }

    /// Bytes of the stripe.
    pub(crate) fn length(&self) -> usize {
        self.runs.last().map_or(0, |r| r.end)
    }

    /// Number of runs.
    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }

    /// Bytes received nothing again; the memory of the runs stays.
    pub(crate) fn clear(&mut self) {
        let end = self.length();
        self.runs.clear();
        self.runs.push(Run { end, contributions: 0, units: 0, magnitude: 0 });
    }

    /// Whether there is room for a contribution to `bytes` of values up to `magnitude`, weighted, when
    /// `pending` borders more will have been made before.
    pub(crate) fn has_room(&self, bytes: &Range<usize>, magnitude: u64, pending: usize) -> Result<(), Full> {
        let count = self.count() + pending;
        if count + 2 > MAX_RUNS && count + self.splits(bytes) > MAX_RUNS {
            return Err(Full::Runs);
        }
        let fits = |part: Weighted| part.magnitude.saturating_add(magnitude) <= exact::MOST;
        if magnitude > 0 && !self.within(bytes.clone()).all(fits) {
            return Err(Full::Sums);
        }
        Ok(())
    }

    /// How many runs more there would be with borders at both ends of `bytes`.
    pub(crate) fn splits(&self, bytes: &Range<usize>) -> usize {
        [bytes.start, bytes.end].into_iter().filter(|&at| at > 0 && !self.is_border(at)).count()
    }

    /// How many runs more there would be with borders at both ends of each of these, which are rising and
    /// disjoint.
    pub(crate) fn splits_of(&self, parts: impl Iterator<Item = Range<usize>>) -> usize {
        let mut last = 0;
        let ends = parts.flat_map(|bytes| [bytes.start, bytes.end]);
        let fresh = ends.filter(|&at| {
            let fresh = at > last && !self.is_border(at);
            last = at;
            fresh
        });
        fresh.count()
    }

    /// What each part of `bytes` has received, rising.
    pub(crate) fn within(&self, bytes: Range<usize>) -> impl Iterator<Item = Weighted> + '_ {
        let mut start = bytes.start;
        let first = self.after(bytes.start);
        self.runs[first..].iter().map_while(move |run| {
            let end = run.end.min(bytes.end);
            let part = start..end;
            start = end;
            (!part.is_empty()).then_some(Weighted {
                bytes: part,
                contributions: run.contributions,
                units: run.units,
                magnitude: run.magnitude,
            })
        })
    }

    /// What came, rising.
    pub(crate) fn covered(&self) -> impl Iterator<Item = Weighted> + '_ {
        self.within(0..self.length()).filter(|part| !part.is_hole())
    }

    /// One contribution to `bytes`, of values no larger than `magnitude`, weighted.
    pub(crate) fn add(&mut self, bytes: Range<usize>, weight: Weight, magnitude: u64) {
        self.merge(&Weighted { bytes, contributions: 1, units: weight.units, magnitude });
    }

    /// What another accumulator's bytes received.
    pub(crate) fn merge(&mut self, part: &Weighted) {
        let Weighted { bytes, contributions, units, magnitude } = part.clone();
        if bytes.is_empty() {
            return;
        }
        let first = self.split(bytes.start);
        let last = self.split(bytes.end);
        for run in &mut self.runs[first..last] {
            run.units = run.units.saturating_add(units);
            run.contributions = run.contributions.saturating_add(contributions);
            run.magnitude = run.magnitude.saturating_add(magnitude);
        }
        // Inner neighbours differed before and still do.
        self.join(last);
        self.join(first);
    }

    /// Index of the first run that ends after `at`.
    fn after(&self, at: usize) -> usize {
        self.runs.partition_point(|r| r.end <= at)
    }

    fn is_border(&self, at: usize) -> bool {
        self.runs.binary_search_by_key(&at, |r| r.end).is_ok()
    }

    /// Makes a border at `at`; returns the index of the run that starts there.
    fn split(&mut self, at: usize) -> usize {
        let index = self.after(at);
        let start = index.checked_sub(1).map_or(0, |before| self.runs[before].end);
        if start == at || index == self.runs.len() {
            return index;
        }
        self.runs.insert(index, Run { end: at, ..self.runs[index] });
        index + 1
    }

    /// Drops the border before run `index` if both sides are equal.
    fn join(&mut self, index: usize) {
        if index == 0 || index >= self.runs.len() {
            return;
        }
        let (before, after) = (self.runs[index - 1], self.runs[index]);
        if (before.units, before.contributions) == (after.units, after.contributions) {
            self.runs[index].magnitude = before.magnitude.max(after.magnitude);
            self.runs.remove(index - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPAN: usize = 48;

    proptest! {
        /// Against the plainest model: a weight a byte.
        #[test]
        fn agrees_with_a_weight_per_byte(
            adds in prop::collection::vec((0..SPAN, 0..=SPAN, 1..4_u32), 0..30),
            probe in (0..SPAN, 0..=SPAN),
        ) {
            let mut weights = Weights::new(SPAN);
            let mut model = [(0.0, 0); SPAN];
            let mut magnitudes = [0; SPAN];
            for (start, end, w) in adds {
                let weight = Weight::new(f64::from(w) / 4.0, false).unwrap().unwrap();
                weights.add(start..end, weight, u64::from(w) + start as u64);
                for byte in model.iter_mut().take(end).skip(start) {
                    *byte = (byte.0 + weight.value, byte.1 + 1);
                }
                magnitudes.iter_mut().take(end).skip(start).for_each(|m| *m += u64::from(w) + start as u64);
            }
            let all: Vec<Weighted> = weights.within(0..SPAN).collect();
            prop_assert_eq!(all.len(), weights.count());
            for pair in all.windows(2) {
                prop_assert_eq!(pair[0].bytes.end, pair[1].bytes.start);
                prop_assert!(pair[0].units != pair[1].units || pair[0].contributions != pair[1].contributions);
            }
            let mut at = probe.0;
            for part in weights.within(probe.0..probe.1) {
                prop_assert_eq!(part.bytes.start, at);
                for byte in part.bytes.clone() {
                    prop_assert_eq!((part.weight(), part.contributions), model[byte]);
                    prop_assert!(part.magnitude >= magnitudes[byte], "a bound");
                }
                at = part.bytes.end;
            }
            prop_assert_eq!(at, probe.1.max(probe.0));
            weights.clear();
            prop_assert_eq!((weights.count(), weights.covered().count()), (1, 0));
        }
    }

    #[test]
    fn chunks_in_any_order_become_one_run() {
        let mut weights = Weights::new(100);
        // 0.1 + 0.2 + 0.3 differs from 0.3 + 0.2 + 0.1 in f64; here it must not.
        for (w, order) in [(0.1, [0, 1, 2]), (0.2, [2, 0, 1]), (0.3, [1, 2, 0])] {
            let weight = Weight::new(w, false).unwrap().unwrap();
            for part in order {
                weights.add([0..30, 30..70, 70..100][part].clone(), weight, 1 + part as u64);
            }
        }
        let all: Vec<Weighted> = weights.covered().collect();
        // Each of three clients had no larger a part than 3.
        assert_eq!((all.len(), all[0].contributions, all[0].magnitude), (1, 3, 9));
    }

    #[test]
    fn refuses_what_is_no_weight() {
        for weight in [-1.0, f64::NAN, f64::INFINITY, 1e-12, 1e13] {
            let message = Weight::new(weight, true).unwrap_err().to_string();
            assert!(message.contains("number of samples"), "{message}");
        }
        assert_eq!(Weight::new(0.0, true), Ok(None));
        let value = |weight, single| Weight::new(weight, single).unwrap().unwrap().value;
        assert_eq!((value(600.0, true), value(0.1, false)), (600.0, 0.1));
        assert_eq!(value(0.1, true), f64::from(0.1_f32), "divided by what was multiplied by");
    }
}
