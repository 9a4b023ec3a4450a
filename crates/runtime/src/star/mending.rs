//! What happens to an update before it is folded, and to the sums afterwards: both know the order in which updates come.

use std::sync::{Arc, Mutex};

use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Repair, Summary};
use thalweg_wire::{Layout, Ranges, Spread};

use super::reduce::{NoMean, Writable};
use super::repair::Mender;
use crate::lock;
use crate::mean::{check_means, take_mean};
use crate::options::ServerOptions;

/// Mends updates, and takes means into the model.
pub(crate) struct Mending {
    layout: Arc<Layout>,
    model: Arena,
    mender: Mender,
    /// In which order updates come, if it is not the model's.
    order: Option<Spread>,
    /// The model in that order, for a moment: kept since fresh pages cost more than the copy.
    wire: Mutex<Vec<u8>>,
}

impl Mending {
    /// For updates of this layout, whose mean becomes the next `model`.
    pub fn new(layout: Arc<Layout>, model: Arena, options: &ServerOptions) -> Self {
        let mender = Mender::new(options.repair.stand_in());
        Self { layout, model, mender, order: options.repair.order(options.seed), wire: Mutex::default() }
    }

    /// Whether updates come in another order than the model's.
    pub fn reorders(&self) -> bool {
        self.order.is_some()
    }

    /// Whether an update with these holes has to be mended; otherwise it is folded as it came.
    pub fn is_due(&self, holes: &Ranges) -> bool {
        !holes.is_empty() || self.mender.keeps_updates()
    }

    /// Mends an update; returns what of it is to be folded.
    ///
    /// # Errors
    /// Why nothing can stand in.
    pub fn mend(&self, sender: u32, update: &mut [u8], holes: &Ranges) -> Result<Ranges, String> {
        let mut global = self.model.lend(self.model.range()).map_err(|e| e.to_string())?;
        if let Some(order) = self.order.filter(|_| self.mender.reads_global()) {
            let mut wire = vec![0; global.len()];
            order.to_wire(&self.layout, &global, &mut wire);
            global = wire.into();
        }
        self.mender.mend(&self.layout, sender, update, holes, &global)
    }

    /// The update that was mended last was not folded: it stands in for nothing.
    pub fn forget(&self, sender: u32) {
        self.mender.forget(sender);
    }

    /// Takes the mean of these sums, each of which is of its own part of updates, into the model that `into` gives.
    ///
    /// # Errors
    /// Why there is no mean; the model then stays as it was.
    pub fn end(&self, sums: &[Accumulator], into: Writable<'_>) -> Result<Summary, NoMean> {
        check_means(sums).map_err(NoMean::Sums)?;
        let mut model = into().map_err(NoMean::Model)?;
        self.put_mean(sums, &mut model).map_err(NoMean::Sums)
    }

    /// The mean, into the model; in order, if updates came in another.
    fn put_mean(&self, sums: &[Accumulator], model: &mut [u8]) -> Result<Summary, String> {
        let Some(order) = self.order else { return take_mean(sums, model, Repair::KeepLocal) };
        let mut wire = lock(&self.wire);
        wire.resize(model.len(), 0);
        order.to_wire(&self.layout, model, &mut wire);
        let summary = take_mean(sums, &mut wire, Repair::KeepLocal)?;
        order.to_order(&self.layout, &wire, model);
        Ok(summary)
    }
}
