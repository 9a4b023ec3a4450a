//! A worker's sums, in two slots of memory that it shares with its node.

use std::sync::Arc;

use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Contribution, FoldError, LentMemory, SumsHead};
use thalweg_wire::Range;

use crate::setup::Setup;

/// Two slots for sums: one holds the last commit, the other holds that commit with the updates folded since
/// then.
pub(super) struct TwoSums {
    slots: [Accumulator; 2],
    base: Option<usize>,
    /// Whether updates were folded since the last commit.
    has_begun: bool,
}

impl TwoSums {
    /// Maps the two slots. If a predecessor has committed sums, this worker takes them over.
    pub fn new(setup: &Setup, arena: &Arena) -> Result<Self, FoldError> {
        let precision = setup.precision().ok_or(FoldError::Damaged("their precision is unknown"))?;
        let layout = Arc::new(setup.layout.clone());
        let half = arena.len() / 2;
        let slot = |start: u64| {
            let mut claim = arena.claim(Range::new(start, start + half)).ok();
            let cut = |bytes| claim.as_mut()?.split_to(bytes as u64).map(|part| Box::new(part) as LentMemory);
            Accumulator::within_part(layout.clone(), precision, setup.part, cut)
        };
        let mut sums = Self { slots: [slot(0)?, slot(half)?], base: None, has_begun: false };
        if let Some((slot, head)) = &setup.base {
            let base = usize::from(*slot != 0);
            sums.slots[base].adopt(&SumsHead::decode(head)?)?;
            sums.base = Some(base);
        }
        Ok(sums)
    }

    fn open(&self) -> usize {
        self.base.map_or(0, |base| 1 - base)
    }

    /// The slot (0 or 1) that holds the last commit.
    pub fn base(&self) -> Option<usize> {
        self.base
    }

    /// Resets both slots for a new round.
    pub fn begin(&mut self) {
        self.slots.iter().for_each(Accumulator::reset);
        (self.base, self.has_begun) = (None, false);
    }

    /// Discards the updates that were folded since the last commit.
    pub fn rollback(&mut self) {
        self.slots[self.open()].reset();
        self.has_begun = false;
    }

    /// Adds several updates to the sums. On failure returns the index of the update that cannot be added, and
    /// the error.
    pub fn fold(&mut self, updates: &[Contribution<'_>]) -> Result<(), (usize, FoldError)> {
        let open = &self.slots[self.open()];
        if let Some(base) = self.base.filter(|_| !self.has_begun) {
            open.reset();
            open.merge(&self.slots[base]).map_err(|error| (0, error))?;
        }
        let folded = open.fold_many(updates, open.part());
        self.has_begun = true;
        folded.map_err(|refusal| (refusal.update, refusal.error))
    }

    /// Commits: the current slot becomes the base, and later updates go to the other slot. Returns the slot
    /// and the head of its sums.
    pub fn commit(&mut self) -> Result<(usize, SumsHead), FoldError> {
        let slot = self.base.filter(|_| !self.has_begun).unwrap_or_else(|| self.open());
        let head = self.slots[slot].head()?;
        (self.base, self.has_begun) = (Some(slot), false);
        Ok((slot, head))
    }
}
