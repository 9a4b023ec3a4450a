//! Which holes are masked and which are retransmitted: critical ranges, the `reliable` dial, loss budgets
//! (UniFL section 5.1, requirement U-O1).

use std::collections::BTreeMap;

use thalweg_wire::{Range, Ranges};

/// The loss policy of a flow: which bytes may be lost, and how many.
#[derive(Debug, Clone)]
pub struct Policy {
    critical: Steps,
    /// The fraction of lost bytes that is retransmitted, evenly spread over the holes: 0 masks every hole,
    /// 1 retransmits every hole.
    pub reliable: f64,
    /// The largest hole that is masked, in bytes. A larger one is retransmitted. This bounds what one forged
    /// segment can mask.
    pub largest: u64,
    budgets: Vec<Spent>,
    /// Bytes to retransmit that `reliable` has added up and that no hole has used yet.
    owed: f64,
}

/// A limit on the loss of a set of bytes.
#[derive(Debug, Clone)]
pub struct Budget {
    /// The bytes that the budget covers: those of an update, or of a tensor.
    pub ranges: Ranges,
    /// Fraction of these bytes that may be masked. Holes beyond it are retransmitted.
    pub mask: f64,
    /// The flow ends when more than this fraction of these bytes is lost, whether masked or retransmitted.
    pub refuse: f64,
    /// Lower bound of both limits, in bytes.
    pub at_least: u64,
    /// Total bytes of the budget, if the application knows them before it knows all ranges. Otherwise the
    /// total is the length of `ranges`.
    pub of: Option<u64>,
}

#[derive(Debug, Clone)]
struct Spent {
    budget: Budget,
    masked: u64,
    lost: u64,
}

/// Says that more bytes were lost than a budget allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Bytes lost.
    pub lost: u64,
    /// Total bytes of the budget.
    pub of: u64,
    /// Index of the budget, in the order in which they were added.
    pub budget: usize,
}

/// What to do about a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Mask,
    Repair,
    /// Too many bytes are lost; end the flow.
    Refuse(Excess),
}

impl Default for Policy {
    fn default() -> Self {
        Self { critical: Steps::new(true), reliable: 0.0, largest: 1 << 20, budgets: Vec::new(), owed: 0.0 }
    }
}

impl Policy {
    /// A policy under which every byte is critical until [`Self::permit`] says that it may be lost.
    pub fn critical() -> Self {
        Self::default()
    }

    /// A policy under which every byte may be lost unless [`Self::protect`] covers it.
    pub fn lossy() -> Self {
        Self { critical: Steps::new(false), ..Self::default() }
    }

    /// Makes `range` critical: its holes are retransmitted, never masked. Holes that are already masked stay
    /// masked.
    pub fn protect(&mut self, range: Range) {
        self.critical.set(range, true);
    }

    /// Allows holes in `range` to be masked.
    pub fn permit(&mut self, range: Range) {
        self.critical.set(range, false);
    }

    /// Adds a budget. It does not count holes that were judged before this call.
    pub fn limit(&mut self, budget: Budget) {
        self.budgets.push(Spent { budget, masked: 0, lost: 0 });
    }

    /// Adds bytes to the ranges of a budget. `budget` is its index, in the order in which budgets were added.
    pub fn extend(&mut self, budget: usize, range: Range) {
        if let Some(spent) = self.budgets.get_mut(budget) {
            spent.budget.ranges.insert(range);
        }
    }

    /// Removes all budgets, and forgets how much of them was spent.
    pub fn unlimit(&mut self) {
        self.budgets.clear();
    }

    /// Whether a byte is critical.
    pub fn is_critical(&self, offset: u64) -> bool {
        self.critical.at(offset)
    }

    /// Cuts `range` into pieces, each with a flag that says whether it is critical.
    pub(super) fn pieces(&self, range: Range) -> impl Iterator<Item = (Range, bool)> + '_ {
        self.critical.pieces(range)
    }

    /// Decides whether to mask a hole that is not critical. `seen` is one past the highest byte that has
    /// arrived. `again`: budgets have already counted this hole as lost.
    pub(super) fn judge(&mut self, hole: Range, seen: u64, again: bool) -> Verdict {
        let mut repair = hole.len() > self.largest;
        for (budget, spent) in self.budgets.iter_mut().enumerate() {
            let bytes = spent.budget.within(hole);
            if bytes == 0 {
                continue;
            }
            let whole = spent.budget.bytes(seen);
            let share = |share: f64| ((share * whole as f64) as u64).max(spent.budget.at_least);
            if !again {
                spent.lost += bytes;
            }
            if spent.lost > share(spent.budget.refuse) {
                return Verdict::Refuse(Excess { lost: spent.lost, of: whole, budget });
            }
            repair |= spent.masked + bytes > share(spent.budget.mask);
        }
        if !repair && self.reliable > 0.0 {
            self.owed += self.reliable.min(1.0) * hole.len() as f64;
            if self.owed >= hole.len() as f64 {
                self.owed -= hole.len() as f64;
                repair = true;
            }
        }
        if repair {
            return Verdict::Repair;
        }
        self.masked(hole, true);
        Verdict::Mask
    }

    /// Notes that late data has filled a masked hole, so budgets stop counting these bytes.
    pub(super) fn filled(&mut self, part: Range) {
        self.masked(part, false);
    }

    fn masked(&mut self, part: Range, more: bool) {
        for spent in &mut self.budgets {
            let bytes = spent.budget.within(part);
            if more {
                spent.masked += bytes;
            } else {
                spent.masked = spent.masked.saturating_sub(bytes);
                spent.lost = spent.lost.saturating_sub(bytes);
            }
        }
    }

    /// Forgets which ranges are critical below `offset`: the stream will not ask for them again.
    pub(super) fn forget(&mut self, offset: u64) {
        self.critical.forget(offset);
    }
}

impl Budget {
    /// Bytes of `range` that belong to the budget.
    fn within(&self, range: Range) -> u64 {
        self.ranges.within(range).map(Range::len).sum()
    }

    /// Total bytes: `of` if given, else the length of `ranges`. An endless range counts up to `seen`.
    fn bytes(&self, seen: u64) -> u64 {
        if let Some(bytes) = self.of {
            return bytes;
        }
        let endless = self.ranges.iter().last().is_some_and(|last| last.end == u64::MAX);
        let end = if endless { seen } else { u64::MAX };
        self.within(Range::new(0, end))
    }
}

/// A flag for each offset. The map holds the offsets at which the flag changes.
#[derive(Debug, Clone)]
struct Steps(BTreeMap<u64, bool>);

impl Steps {
    fn new(flag: bool) -> Self {
        Self([(0, flag)].into())
    }

    fn at(&self, offset: u64) -> bool {
        self.0.range(..=offset).next_back().is_some_and(|(_, &flag)| flag)
    }

    fn set(&mut self, range: Range, flag: bool) {
        if range.is_empty() {
            return;
        }
        let after = self.at(range.end);
        let inside: Vec<u64> = self.0.range(range.start..=range.end).map(|(&at, _)| at).collect();
        for at in inside {
            self.0.remove(&at);
        }
        let before = range.start.checked_sub(1).map(|at| self.at(at));
        if before != Some(flag) {
            self.0.insert(range.start, flag);
        }
        if after != flag {
            self.0.insert(range.end, after);
        }
    }

    fn pieces(&self, range: Range) -> impl Iterator<Item = (Range, bool)> + '_ {
        let mut start = range.start;
        std::iter::from_fn(move || {
            if start >= range.end {
                return None;
            }
            let flag = self.at(start);
            let changes = self.0.range(start + 1..range.end).find(|(_, &other)| other != flag);
            let end = changes.map_or(range.end, |(&at, _)| at);
            let piece = Range::new(start, end);
            start = end;
            Some((piece, flag))
        })
    }

    fn forget(&mut self, offset: u64) {
        let flag = self.at(offset);
        self.0 = self.0.split_off(&offset);
        self.0.insert(0, flag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(policy: &Policy, start: u64, end: u64) -> Vec<(u64, u64, bool)> {
        policy.pieces(Range::new(start, end)).map(|(r, flag)| (r.start, r.end, flag)).collect()
    }

    #[test]
    fn ranges_are_protected_and_permitted() {
        let mut policy = Policy::critical();
        policy.permit(Range::new(100, 200));
        policy.permit(Range::new(150, 300));
        policy.protect(Range::new(120, 130));
        let all = [(0, 100, true), (100, 120, false), (120, 130, true), (130, 300, false), (300, 400, true)];
        assert_eq!(pieces(&policy, 0, 400), all);
        assert_eq!(pieces(&policy, 125, 126), [(125, 126, true)]);
        policy.forget(125);
        assert_eq!(pieces(&policy, 125, 310), [(125, 130, true), (130, 300, false), (300, 310, true)]);
        policy.permit(Range::new(0, u64::MAX));
        assert_eq!(pieces(&policy, 0, u64::MAX), [(0, u64::MAX, false)]);
    }

    #[test]
    fn the_dial_repairs_its_share() {
        for reliable in [0.0, 0.1, 0.5, 1.0] {
            let mut policy = Policy { reliable, ..Policy::lossy() };
            let hole = |i: u64| Range::new(i * 3000, i * 3000 + 1448);
            let repaired =
                (0..1000).filter(|&i| policy.judge(hole(i), 1 << 30, false) == Verdict::Repair).count();
            assert!((repaired as f64 - reliable * 1000.0).abs() <= 1.0, "{reliable}: {repaired}");
        }
    }

    #[test]
    fn a_budget_masks_then_repairs_then_refuses() {
        let mut policy = Policy::lossy();
        let ranges = [Range::new(1000, 11_000)].into_iter().collect();
        policy.limit(Budget { ranges, mask: 0.02, refuse: 0.05, at_least: 0, of: None });
        let mut judge = |start: u64| policy.judge(Range::new(start, start + 100), 20_000, false);
        let verdicts: Vec<Verdict> = (0..7).map(|i| judge(2000 + i * 1000)).collect();
        let refuse = |lost| Verdict::Refuse(Excess { lost, of: 10_000, budget: 0 });
        let (m, r) = (Verdict::Mask, Verdict::Repair);
        assert_eq!(verdicts, [m, m, r, r, r, refuse(600), refuse(700)]);
        assert_eq!(judge(12_000), Verdict::Mask);
        // Budgets stop counting late data.
        policy.filled(Range::new(2000, 2100));
        policy.filled(Range::new(3000, 3100));
        assert_eq!(policy.judge(Range::new(9000, 9100), 20_000, true), Verdict::Mask);
    }

    #[test]
    fn a_budget_that_is_taken_away_counts_no_more() {
        let mut policy = Policy::lossy();
        let ranges: Ranges = [Range::new(0, u64::MAX)].into_iter().collect();
        policy.limit(Budget { ranges, mask: 0.0, refuse: 1.0, at_least: 0, of: None });
        assert_eq!(policy.judge(Range::new(0, 100), 1000, false), Verdict::Repair);
        policy.unlimit();
        assert_eq!(policy.judge(Range::new(200, 300), 1000, false), Verdict::Mask);
    }

    /// A tensor's ranges become known as its chunks arrive. Its limits count all its bytes from the start.
    #[test]
    fn a_budget_grows_with_what_is_known_of_its_bytes() {
        let mut policy = Policy::lossy();
        let all: Ranges = [Range::new(0, u64::MAX)].into_iter().collect();
        policy.limit(Budget { ranges: all, mask: 1.0, refuse: 1.0, at_least: 0, of: None });
        policy.limit(Budget { ranges: Ranges::new(), mask: 0.1, refuse: 0.3, at_least: 0, of: Some(1000) });
        let judge = |policy: &mut Policy, start| policy.judge(Range::new(start, start + 100), 5000, false);
        policy.extend(1, Range::new(50, 550));
        assert_eq!(judge(&mut policy, 100), Verdict::Mask);
        assert_eq!(judge(&mut policy, 300), Verdict::Repair);
        assert_eq!(judge(&mut policy, 600), Verdict::Mask, "it is not of the tensor, for all that is known");
        policy.extend(1, Range::new(600, 1100));
        policy.extend(7, Range::new(0, 5000));
        assert_eq!(judge(&mut policy, 700), Verdict::Repair);
        assert_eq!(judge(&mut policy, 900), Verdict::Refuse(Excess { lost: 400, of: 1000, budget: 1 }));
    }

    #[test]
    fn a_large_hole_is_not_masked() {
        let mut policy = Policy { largest: 5000, ..Policy::lossy() };
        assert_eq!(policy.judge(Range::new(0, 5001), 9000, false), Verdict::Repair);
        assert_eq!(policy.judge(Range::new(0, 5000), 9000, false), Verdict::Mask);
    }
}
