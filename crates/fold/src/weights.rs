//! Records how much weight each byte of a stripe has received, run-length encoded, and bounds how large its
//! sum may be.
//!
//! Weights are added as integers (multiples of 2^-60), so their sums are exact in any order. Neighbouring
//! runs that received the same weight become one, however the chunks were cut and reordered.
//!
//! A run's magnitude is an upper bound: the sum of the magnitudes of all that was folded to any of its bytes
//! is not larger. If two runs become one, the larger bound counts. So the bound never exceeds the sum, over
//! all clients, of each client's largest value in the stripe.

use std::ops::Range;

use thalweg_wire as wire;

use crate::{exact, sums, FoldError};

/// Least weight other than 0.
pub const MIN_WEIGHT: f64 = 1.0 / (1_u64 << 30) as f64;
/// Greatest weight of a contribution.
pub const MAX_WEIGHT: f64 = (1_u64 << 40) as f64;
/// Maximum number of contributions to an element of merged sums. With this number, sums of no precision
/// overflow.
pub const MAX_CONTRIBUTIONS: u32 = 1 << 22;
/// [`MIN_WEIGHT`] and [`MAX_WEIGHT`] in units.
pub(crate) const MIN_UNITS: u128 = 1 << 30;
pub(crate) const MAX_UNITS: u128 = 1 << 100;
const ONE_UNITS: u128 = 1 << 60;
const UNITS: f64 = ONE_UNITS as f64;

/// The weight of one contribution in two forms: `units`, an integer number of 2^-60, and `value`, the float by
/// which the values of its update are multiplied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weight {
    /// The multiplier: exactly `units` times 2^-60.
    pub(crate) value: f64,
    pub(crate) units: u128,
}

impl Weight {
    /// `None` if the weight is 0, since such a contribution changes nothing.
    pub(crate) fn new(weight: f64, single: bool) -> Result<Option<Self>, FoldError> {
        if weight == 0.0 {
            return Ok(None);
        }
        if !(MIN_WEIGHT..=MAX_WEIGHT).contains(&weight) {
            return Err(FoldError::Weight(weight));
        }
        // The multiplier and the later divisor must be the same number. An f32 accumulator multiplies by an
        // f32.
        let weight = if single { f64::from(weight as f32) } else { weight };
        let units = (weight * UNITS).round() as u128;
        Ok(Some(Self { value: value_of(units), units }))
    }

    /// The weight that is missing to 1, exactly; 0 if the weight is 1 or more.
    pub(crate) fn missing_to_one(part: &Weighted) -> Self {
        let units = ONE_UNITS.saturating_sub(part.units);
        Self { value: value_of(units), units }
    }
}

pub(crate) fn value_of(units: u128) -> f64 {
    units as f64 / UNITS
}

/// Maximum number of weight runs of a stripe. Chunks that are cut at multiples of 64 bytes need at most half
/// of them.
pub const MAX_RUNS: usize = 4096;

/// Why a stripe cannot take a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The stripe would have too many weight runs.
    Runs,
    /// The stripe's exact sums might overflow.
    Sums,
    /// The number of contributions, or their weight, could not be counted.
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

    /// Whether no contribution has arrived for these bytes.
    pub(crate) fn is_hole(&self) -> bool {
        self.contributions == 0
    }

    /// Whether there were too many contributions or too much weight to count.
    pub(crate) fn is_full(&self) -> bool {
        self.contributions == u32::MAX || self.units == u128::MAX
    }

    /// Whether the contributions of `more` can be counted as well.
    pub(crate) fn has_count_for(&self, more: &Weighted) -> bool {
        self.contributions.saturating_add(more.contributions) <= MAX_CONTRIBUTIONS
    }

    /// This run as a range of the update, which the stripe begins at `start`.
    pub(crate) fn at(&self, start: u64) -> sums::WeightRun {
        let bytes = wire::Range::new(start + self.bytes.start as u64, start + self.bytes.end as u64);
        let Self { contributions, units, magnitude, .. } = *self;
        sums::WeightRun { bytes, contributions, units, magnitude }
    }

    /// A part of a run of the update, as the range `bytes` of the stripe.
    pub(crate) fn of(run: &sums::WeightRun, bytes: Range<usize>) -> Self {
        let sums::WeightRun { contributions, units, magnitude, .. } = *run;
        Self { bytes, contributions, units, magnitude }
    }
}

/// The weights of bytes `0..length` of a stripe.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    /// Ascending by their ends. The last run ends at the stripe's length. There is always at least one.
    runs: Vec<Run>,
}

impl Weights {
    pub(crate) fn new(length: usize) -> Self {
        Self { runs: vec![Run { end: length, contributions: 0, units: 0, magnitude: 0 }] }
    }

    /// Length of the stripe in bytes.
    pub(crate) fn length(&self) -> usize {
        self.runs.last().map_or(0, |r| r.end)
    }

    /// Number of runs.
    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }

    /// Forgets all contributions. The memory of the runs is kept.
    pub(crate) fn clear(&mut self) {
        let end = self.length();
        self.runs.clear();
        self.runs.push(Run { end, contributions: 0, units: 0, magnitude: 0 });
    }

    /// Checks that there is room for a contribution to `bytes`, whose weighted values are at most
    /// `magnitude`. `pending`: number of borders that other pieces will add before this one.
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

    /// By how many the number of runs would grow with borders at both ends of `bytes`.
    pub(crate) fn splits(&self, bytes: &Range<usize>) -> usize {
        [bytes.start, bytes.end].into_iter().filter(|&at| at > 0 && !self.is_border(at)).count()
    }

    /// By how many the number of runs would grow with borders at both ends of each of `parts`, which are
    /// ascending and disjoint.
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

    /// The weight that each part of `bytes` has received, in ascending order.
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

    /// The parts for which contributions have arrived, in ascending order.
    pub(crate) fn covered(&self) -> impl Iterator<Item = Weighted> + '_ {
        self.within(0..self.length()).filter(|part| !part.is_hole())
    }

    /// Records one contribution to `bytes`, whose weighted values are at most `magnitude`.
    pub(crate) fn add(&mut self, bytes: Range<usize>, weight: Weight, magnitude: u64) {
        self.merge(&Weighted { bytes, contributions: 1, units: weight.units, magnitude });
    }

    /// Records what the bytes of another accumulator have received.
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
        // Inner neighbours were different before, and still are.
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

    /// Makes a border at `at`. Returns the index of the run that starts there.
    fn split(&mut self, at: usize) -> usize {
        let index = self.after(at);
        let start = index.checked_sub(1).map_or(0, |before| self.runs[before].end);
        if start == at || index == self.runs.len() {
            return index;
        }
        self.runs.insert(index, Run { end: at, ..self.runs[index] });
        index + 1
    }

    /// Removes the border before run `index` if both sides have the same weight.
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
        /// Compares with the plainest model, which has a weight for each byte.
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
        // In f64, 0.1 + 0.2 + 0.3 differs from 0.3 + 0.2 + 0.1. Here it must not.
        for (w, order) in [(0.1, [0, 1, 2]), (0.2, [2, 0, 1]), (0.3, [1, 2, 0])] {
            let weight = Weight::new(w, false).unwrap().unwrap();
            for part in order {
                weights.add([0..30, 30..70, 70..100][part].clone(), weight, 1 + part as u64);
            }
        }
        let all: Vec<Weighted> = weights.covered().collect();
        // No value of any of the three clients was larger than 3.
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
