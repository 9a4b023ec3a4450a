//! A worker's sums, in two slots of memory that it shares with its node.

use std::sync::Arc;

use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Contribution, FoldError, LentMemory, Precision, SumsHead};
use thalweg_wire::{Layout, Range};

use crate::setup::Setup;

/// Two slots for sums: one holds the last commit, the other holds that commit with the updates folded since
/// then.
pub(super) struct TwoSums {
    slots: [Accumulator; 2],
    base: Option<usize>,
    /// Whether updates were folded since the last commit.
    has_begun: bool,
    memory: Memory,
}

/// The memory in which the worker's sums lie, and perhaps those of the node's other workers.
struct Memory {
    arena: Arena,
    layout: Arc<Layout>,
    precision: Precision,
    part: Range,
    /// Bytes of a slot.
    half: u64,
    /// Bytes from the first slot of one worker to that of the next.
    stride: u64,
}

impl Memory {
    /// The slot of sums that begins at this byte.
    fn sums(&self, start: u64) -> Result<Accumulator, FoldError> {
        let mut claim = self.arena.claim(Range::new(start, start.saturating_add(self.half))).ok();
        let cut = |bytes| claim.as_mut()?.split_to(bytes as u64).map(|part| Box::new(part) as LentMemory);
        Accumulator::within_part(self.layout.clone(), self.precision, self.part, cut)
    }
}

impl TwoSums {
    /// Maps the two slots. If a predecessor has committed sums, this worker takes them over.
    pub fn new(setup: &Setup, arena: Arena) -> Result<Self, FoldError> {
        let precision = setup.precision().ok_or(FoldError::Damaged("their precision is unknown"))?;
        let layout = Arc::new(setup.layout.clone());
        let (half, stride) = (setup.sums_bytes / 2, setup.stride());
        let memory = Memory { arena, layout, precision, part: setup.part, half, stride };
        let slots = [memory.sums(setup.sums_start)?, memory.sums(setup.sums_start + half)?];
        let mut sums = Self { slots, base: None, has_begun: false, memory };
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
        self.start().map_err(|error| (0, error))?;
        let open = &self.slots[self.open()];
        let folded = open.fold_many(updates, open.part());
        folded.map_err(|refusal| (refusal.update, refusal.error))
    }

    /// Adds the committed sums in `slot` (0 or 1) of another worker, which have this encoded head. They lie in the
    /// memory that the node's workers share, and do not change.
    pub fn merge(&mut self, slot: u32, worker: u32, head: &[u8]) -> Result<(), FoldError> {
        self.start()?;
        let start = u64::from(worker).saturating_mul(self.memory.stride);
        let other = self.memory.sums(start.saturating_add(u64::from(slot != 0) * self.memory.half))?;
        other.adopt(&SumsHead::decode(head)?)?;
        self.slots[self.open()].merge(&other)
    }

    /// Prepares the open slot: it begins as a copy of the last commit.
    fn start(&mut self) -> Result<(), FoldError> {
        let open = &self.slots[self.open()];
        if let Some(base) = self.base.filter(|_| !self.has_begun) {
            open.reset();
            open.merge(&self.slots[base])?;
        }
        self.has_begun = true;
        Ok(())
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
