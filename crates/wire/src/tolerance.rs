//! What of an update may be lost, tensor by tensor (UniFL section 5.1: a threshold; here one for each tensor).
//!
//! Who knows the layout says it once for a job. The session asks again for what must come, whatever carries it, and a
//! transport that decides by itself what is sent again does so by the same rule. A client's update may go in another
//! order ([`crate::Spread`]), but never leaves its tensor: what is said of a tensor's bytes holds on the wire too.

use serde::{Deserialize, Serialize};

use crate::{Layout, Range, Ranges, WireError, ALIGN};

/// A whole, in the unit of [`Allowance`]'s shares.
pub const WHOLE: u32 = 1_000_000;

/// How much of one tensor may be lost. Shares are millionths of its bytes, of which each begun one counts as not lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowance {
    /// Which, by its place in the layout.
    pub tensor: u32,
    /// Share that may be missing: what is lost beyond it is sent again. 0 for a critical tensor.
    pub budget: u32,
    /// Share whose loss on the way refuses the update.
    pub refuse: u32,
}

/// What may be lost of one tensor, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The tensor's name.
    pub tensor: String,
    /// Its bytes in the update.
    pub range: Range,
    /// Most bytes that may be missing.
    pub budget: u64,
    /// Most bytes that may be lost.
    pub refuse: u64,
}

/// What of an update may be lost. Of a tensor without an [`Allowance`] all may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tolerance {
    allowances: Vec<Allowance>,
    /// By rising offset.
    limits: Vec<Limit>,
    critical: Ranges,
    bytes: u64,
}

impl Tolerance {
    /// The rule of these allowances, in an update of this layout.
    ///
    /// # Errors
    /// [`WireError::Layout`] for a tensor that there is not, or that is named twice.
    pub fn new(layout: &Layout, allowances: &[Allowance]) -> Result<Self, WireError> {
        let mut allowances = allowances.to_vec();
        allowances.sort_by_key(|allowance| allowance.tensor);
        if let Some(pair) = allowances.windows(2).find(|pair| pair[0].tensor == pair[1].tensor) {
            return Err(WireError::Layout(format!("tensor {} has two allowances", pair[0].tensor)));
        }
        let limits = allowances.iter().map(|allowance| limit(layout, allowance));
        let limits: Vec<Limit> = limits.collect::<Result<_, _>>()?;
        let critical = limits.iter().filter(|limit| limit.is_critical()).map(Limit::padded).collect();
        Ok(Self { allowances, limits, critical, bytes: layout.bytes() })
    }

    /// What it was made of, by tensor.
    pub fn allowances(&self) -> &[Allowance] {
        &self.allowances
    }

    /// Bytes of an update; 0 where that is not known.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all may be lost.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// The tensors of which not all may be lost, by rising offset.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Bytes of which none may be missing: those of critical tensors, and the gap behind each, for whoever takes only
    /// whole values would take too much beside a hole that begins there.
    pub fn critical(&self) -> &Ranges {
        &self.critical
    }

    /// The tensors of which bytes in `range` are, of those that [`Self::limits`] has, each with its place there.
    pub fn touched(&self, range: Range) -> impl Iterator<Item = (usize, &Limit)> {
        let first = self.limits.partition_point(|limit| limit.range.end <= range.start);
        let limits = self.limits.iter().enumerate().skip(first);
        limits.take_while(move |(_, limit)| limit.range.start < range.end)
    }

    /// What of `holes` has to be sent again: all in critical tensors, and in others what is beyond their budgets, the
    /// holes at the front being those that stay.
    pub fn owed(&self, holes: &Ranges) -> Ranges {
        let mut owed = Ranges::new();
        for limit in &self.limits {
            let mut left = limit.budget;
            for hole in holes.within(limit.range) {
                if hole.len() <= left {
                    left -= hole.len();
                } else {
                    owed.insert(hole);
                }
            }
        }
        owed
    }

    /// The first tensor of which `holes` have more than may be lost, and how many bytes they have of it.
    pub fn refused(&self, holes: &Ranges) -> Option<(&Limit, u64)> {
        let lost = |limit: &Limit| holes.within(limit.range).map(Range::len).sum::<u64>();
        self.limits.iter().map(|limit| (limit, lost(limit))).find(|(limit, lost)| *lost > limit.refuse)
    }
}

impl Limit {
    fn padded(&self) -> Range {
        Range::new(self.range.start, self.range.end.next_multiple_of(ALIGN))
    }

    /// Whether none of it may be missing.
    pub fn is_critical(&self) -> bool {
        self.budget == 0
    }
}

fn limit(layout: &Layout, allowance: &Allowance) -> Result<Limit, WireError> {
    let Some(tensor) = layout.tensors().get(allowance.tensor as usize) else {
        let what = format!("an allowance is for tensor {} of {}", allowance.tensor, layout.tensors().len());
        return Err(WireError::Layout(what));
    };
    let range = tensor.range();
    let bytes = |share: u32| {
        let part = u128::from(range.len()) * u128::from(share.min(WHOLE)) / u128::from(WHOLE);
        part as u64 // no more than the tensor has
    };
    let (budget, refuse) = (bytes(allowance.budget), bytes(allowance.refuse));
    Ok(Limit { tensor: tensor.name.clone(), range, budget, refuse })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Dtype;

    /// Four tensors of 100 floats, 448 bytes from one to the next.
    fn layout() -> Layout {
        Layout::pack(["a", "b", "c", "d"].map(|name| (name, Dtype::F32, vec![100]))).unwrap()
    }

    fn allowance(tensor: u32, budget: u32, refuse: u32) -> Allowance {
        Allowance { tensor, budget, refuse }
    }

    fn ranges(parts: &[(u64, u64)]) -> Ranges {
        parts.iter().map(|&(start, end)| Range::new(start, end)).collect()
    }

    #[test]
    fn critical_tensors_are_owed_whole_and_others_beyond_their_budgets() {
        let rule = Tolerance::new(&layout(), &[allowance(2, 50_000, WHOLE), allowance(0, 0, WHOLE)]).unwrap();
        assert_eq!(rule.critical(), &ranges(&[(0, 448)]));
        // The third may miss 20 of its 400 bytes.
        let holes = ranges(&[(8, 16), (390, 460), (900, 912), (920, 930), (940, 948), (1300, 1400)]);
        assert_eq!(rule.owed(&holes), ranges(&[(8, 16), (390, 400), (920, 930)]));
        let touched: Vec<usize> = rule.touched(Range::new(399, 897)).map(|(place, _)| place).collect();
        assert_eq!(touched, [0, 1]);
        assert_eq!(rule.touched(Range::new(400, 896)).count(), 0);
        assert!(Tolerance::default().owed(&holes).is_empty() && Tolerance::default().is_empty());
    }

    #[test]
    fn over_its_limit_a_tensor_is_refused_by_name() {
        let rule = Tolerance::new(&layout(), &[allowance(1, WHOLE, 100_000)]).unwrap();
        assert_eq!(rule.refused(&ranges(&[(0, 400), (448, 488)])), None);
        let holes = ranges(&[(448, 488), (500, 501)]);
        let (limit, lost) = rule.refused(&holes).unwrap();
        assert_eq!((limit.tensor.as_str(), limit.refuse, lost), ("b", 40, 41));
        assert!(rule.owed(&holes).is_empty(), "there is no budget");
    }

    #[test]
    fn allowances_of_no_tensor_are_refused() {
        let beyond = Tolerance::new(&layout(), &[allowance(4, 0, 0)]).unwrap_err();
        assert!(beyond.to_string().contains("tensor 4 of 4"), "{beyond}");
        let twice = Tolerance::new(&layout(), &[allowance(1, 0, 0), allowance(1, 5, 5)]).unwrap_err();
        assert!(twice.to_string().contains("two allowances"), "{twice}");
    }

    proptest! {
        /// What stays missing is within every tensor's budget, and nothing is owed that was not missing, or of a tensor
        /// without a rule. Asking for it until it comes ends.
        #[test]
        fn what_is_not_owed_is_within_the_budgets(
            shares in prop::collection::vec((0..4_u32, 0..WHOLE, 0..WHOLE), 0..4),
            holes in prop::collection::vec((0..1800_u64, 1..60_u64), 0..30),
        ) {
            let mut seen = std::collections::BTreeSet::new();
            let shares: Vec<Allowance> =
                shares.iter().filter(|(t, ..)| seen.insert(*t)).map(|&(t, b, r)| allowance(t, b, r)).collect();
            let rule = Tolerance::new(&layout(), &shares).unwrap();
            let holes: Ranges = holes.iter().map(|&(start, length)| Range::new(start, start + length)).collect();
            let owed = rule.owed(&holes);
            prop_assert!(owed.iter().all(|part| holes.covers(part)));
            let named: Ranges = rule.limits().iter().map(|limit| limit.range).collect();
            prop_assert!(owed.iter().all(|part| named.covers(part)));
            let left: Ranges = holes.iter().flat_map(|hole| owed.missing_in(hole)).collect();
            for limit in rule.limits() {
                let missing: u64 = left.within(limit.range).map(Range::len).sum();
                prop_assert!(missing <= limit.budget, "{missing} of {limit:?}");
            }
            prop_assert!(rule.owed(&left).is_empty());
        }
    }
}
