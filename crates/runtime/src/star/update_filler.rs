//! Fills in updates before they are folded, and writes the mean into the model. Both depend on the order of
//! elements in which updates arrive.

use std::sync::{Arc, Mutex};

use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Replacement, Summary};
use thalweg_wire::{Layout, Ranges, Spread};

use super::reduce::{NoMean, Writable};
use super::repair::Filler;
use crate::lock;
use crate::mean::{check_means, take_mean};
use crate::options::ServerOptions;

/// Fills in updates, and writes means into the model.
pub(crate) struct UpdateFiller {
    layout: Arc<Layout>,
    model: Arena,
    filler: Filler,
    /// The order in which updates arrive; `None` if it is the model's order.
    order: Option<Spread>,
    /// Buffer for the model in that order. It is kept because touching fresh pages costs more time than the
    /// copy.
    wire: Mutex<Vec<u8>>,
}

impl UpdateFiller {
    /// Fills in updates of this layout, whose mean becomes the next `model`.
    pub fn new(layout: Arc<Layout>, model: Arena, options: &ServerOptions) -> Self {
        let filler = Filler::new(options.repair.stand_in());
        Self { layout, model, filler, order: options.repair.order(options.seed), wire: Mutex::default() }
    }

    /// Whether updates arrive in an order that differs from the model's order.
    pub fn reorders(&self) -> bool {
        self.order.is_some()
    }

    /// Whether an update with these holes must be filled in (or kept as a stand-in). Otherwise it is folded
    /// as it arrived.
    pub fn is_due(&self, holes: &Ranges) -> bool {
        !holes.is_empty() || self.filler.keeps_updates()
    }

    /// Fills in an update. Returns the ranges that are to be folded.
    ///
    /// # Errors
    /// The reason why there is no stand-in.
    pub fn fill(&self, sender: u32, update: &mut [u8], holes: &Ranges) -> Result<Ranges, String> {
        let mut global = self.model.lend(self.model.range()).map_err(|e| e.to_string())?;
        if let Some(order) = self.order.filter(|_| self.filler.reads_global()) {
            let mut wire = vec![0; global.len()];
            order.to_wire(&self.layout, &global, &mut wire);
            global = wire.into();
        }
        self.filler.fill(&self.layout, sender, update, holes, &global)
    }

    /// Forgets the last filled-in update of this sender: it was not folded, so it must not stand in for a
    /// later one.
    pub fn forget(&self, sender: u32) {
        self.filler.forget(sender);
    }

    /// Writes the mean of these sums into the model that `into` gives. Each of `sums` covers a part of the
    /// updates' bytes.
    ///
    /// # Errors
    /// The reason why there is no mean. The model then stays as it was.
    pub fn end(&self, sums: &[Accumulator], into: Writable<'_>) -> Result<Summary, NoMean> {
        check_means(sums).map_err(NoMean::Sums)?;
        let mut model = into().map_err(NoMean::Model)?;
        self.put_mean(sums, &mut model).map_err(NoMean::Sums)
    }

    /// Writes the mean into the model, in the model's order.
    fn put_mean(&self, sums: &[Accumulator], model: &mut [u8]) -> Result<Summary, String> {
        let Some(order) = self.order else { return take_mean(sums, model, Replacement::KeepLocal) };
        let mut wire = lock(&self.wire);
        wire.resize(model.len(), 0);
        order.to_wire(&self.layout, model, &mut wire);
        let summary = take_mean(sums, &mut wire, Replacement::KeepLocal)?;
        order.to_order(&self.layout, &wire, model);
        Ok(summary)
    }
}
