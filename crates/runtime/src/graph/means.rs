//! Memory for the means of segments (averaging by segments in `thalweg_proto`'s graph). Links send the mean
//! of the node's own segment, and receive those of the neighbours' segments.

use std::sync::Mutex;

use thalweg_arena::{Arena, Claim};
use thalweg_fold::{Accumulator, Replacement};
use thalweg_wire::{Range, Ranges};

use super::options::MixingRule;
use crate::lock;

/// The means of one iteration.
pub(crate) struct Means {
    arena: Arena,
    rule: MixingRule,
    /// The own model's weight in the current iteration, under [`MixingRule::Renormalise`].
    own: Mutex<f64>,
}

impl Means {
    /// Means in the memory of `arena`, which is as long as the model.
    pub fn new(arena: Arena, rule: MixingRule) -> Self {
        Self { arena, rule, own: Mutex::new(0.0) }
    }

    pub fn weigh_own(&self, weight: f64) {
        *lock(&self.own) = weight;
    }

    /// The own model's weight in the form that the state machine needs.
    pub fn own(&self) -> Option<f64> {
        (self.rule == MixingRule::Renormalise).then(|| *lock(&self.own))
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Mixes the own model's bytes `range` into the sums, and stores the mean.
    ///
    /// # Errors
    /// The reason, if the sums give no model.
    pub fn average(&self, sums: &Accumulator, range: Range, own: &[u8]) -> Result<(), String> {
        let text = |error: thalweg_fold::FoldError| error.to_string();
        let mut place = self.arena.claim(range).map_err(|busy| busy.to_string())?;
        place.copy_from_slice(own);
        let repair = match self.own() {
            None => Replacement::Complement,
            Some(weight) => {
                sums.check(range.start, own, weight).map_err(text)?;
                sums.fold(range.start, own, weight).map_err(text)?;
                Replacement::KeepLocal
            }
        };
        sums.finish_range(range.start, &mut place, repair).map_err(text)
    }

    /// The memory of a neighbour's mean. `None` if a part of it is in use.
    pub fn claim(&self, range: Range) -> Option<Claim> {
        self.arena.claim(range).ok()
    }

    /// Copies the means of these ranges into a model.
    ///
    /// # Errors
    /// The reason, if a mean is still being written.
    pub fn take(&self, ranges: &Ranges, model: &mut [u8]) -> Result<(), String> {
        for range in ranges.iter() {
            let mean = self.arena.lend(range).map_err(|busy| busy.to_string())?;
            model[range.start as usize..range.end as usize].copy_from_slice(&mean);
        }
        Ok(())
    }
}
