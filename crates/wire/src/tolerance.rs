//! How much of an update may be lost, tensor by tensor. UniFL (section 5.1) has one threshold; here each
//! tensor has its own.
//!
//! The server sets the rule once for a job. The session asks again for bytes that must arrive, over any
//! transport. A transport that decides by itself what to retransmit uses the same rule. An update may be sent
//! in another order ([`crate::Spread`]), but no byte leaves its tensor. So a rule about a tensor's bytes
//! holds on the wire too.

use serde::{Deserialize, Serialize};

use crate::{Layout, Range, Ranges, WireError, ALIGN};

/// A fraction of 1, in the unit of [`Allowance`]'s fields.
pub const WHOLE: u32 = 1_000_000;

/// How much of one tensor may be lost. Fractions are in millionths of the tensor's bytes, rounded down to
/// whole bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allowance {
    /// The tensor's index in the layout.
    pub tensor: u32,
    /// The fraction that may stay missing. What is lost beyond it is sent again. 0 for a critical tensor.
    pub budget: u32,
    /// If more than this fraction is lost on the way, the update is refused.
    pub refuse: u32,
}

/// How much of one tensor may be lost, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The tensor's name.
    pub tensor: String,
    /// The tensor's bytes in the update.
    pub range: Range,
    /// Maximum number of bytes that may stay missing.
    pub budget: u64,
    /// Maximum number of bytes that may be lost on the way without refusing the update.
    pub refuse: u64,
}

/// How much of an update may be lost. A tensor without an [`Allowance`] may be lost entirely.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tolerance {
    allowances: Vec<Allowance>,
    /// The limits in ascending order of the tensors' offsets.
    limits: Vec<Limit>,
    /// The bytes of critical tensors, with the padding after each.
    critical: Ranges,
    /// Bytes of a whole update.
    bytes: u64,
}

impl Tolerance {
    /// The tolerance that these allowances define for an update of this layout.
    ///
    /// # Errors
    /// [`WireError::Layout`] if an allowance names a tensor that does not exist, or two name the same one.
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

    /// The allowances, in ascending order of the tensors.
    pub fn allowances(&self) -> &[Allowance] {
        &self.allowances
    }

    /// Bytes of a whole update; 0 if unknown.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all bytes may be lost.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// The limits of all tensors that have one, in ascending order of offsets.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Bytes that must all arrive: critical tensors, each with the padding after it. Where holes are extended
    /// to whole values, a hole that begins in the padding could otherwise reach into the tensor.
    pub fn critical(&self) -> &Ranges {
        &self.critical
    }

    /// The limits whose tensors overlap `range`, each with its index in [`Self::limits`].
    pub fn touched(&self, range: Range) -> impl Iterator<Item = (usize, &Limit)> {
        let first = self.limits.partition_point(|limit| limit.range.end <= range.start);
        let limits = self.limits.iter().enumerate().skip(first);
        limits.take_while(move |(_, limit)| limit.range.start < range.end)
    }

    /// The parts of `holes` that must be sent again. In a critical tensor these are all holes. In other
    /// tensors, holes are accepted in ascending order, each if the rest of the budget suffices for it.
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

    /// The first tensor of which `holes` cover more than may be lost, and how many of its bytes they cover.
    pub fn refused(&self, holes: &Ranges) -> Option<(&Limit, u64)> {
        let lost = |limit: &Limit| holes.within(limit.range).map(Range::len).sum::<u64>();
        self.limits.iter().map(|limit| (limit, lost(limit))).find(|(limit, lost)| *lost > limit.refuse)
    }
}

impl Limit {
    fn padded(&self) -> Range {
        Range::new(self.range.start, self.range.end.next_multiple_of(ALIGN))
    }

    /// Whether all of the tensor's bytes must arrive.
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

    /// Four tensors of 100 floats. Each begins 448 bytes after the one before.
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
        // The third tensor may lack 20 of its 400 bytes.
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
        /// What stays missing is within every tensor's budget. Only missing bytes of tensors with a rule are
        /// owed. Once the owed bytes have arrived, no more are owed.
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
