//! Fills in updates before they are folded, and writes the mean into the model. Both depend on the order of
//! elements in which updates arrive.

use std::sync::{Arc, Mutex};

use thalweg_arena::Arena;
use thalweg_fold::{Accumulator, Replacement, Summary};
use thalweg_layers::floats;
use thalweg_wire::{Layout, Range, Ranges, Spread};

use super::reduce::{NoMean, Writable};
use super::repair::Filler;
use crate::lock;
use crate::mean::{check_means, take_mean};
use crate::options::ServerOptions;

/// Bytes of a float32.
const VALUE: usize = 4;

fn value(word: &[u8]) -> f32 {
    f32::from_le_bytes([word[0], word[1], word[2], word[3]])
}

/// Fills in updates, and writes means into the model.
pub(crate) struct UpdateFiller {
    layout: Arc<Layout>,
    model: Arena,
    filler: Filler,
    /// The order in which updates arrive; `None` if it is the model's order.
    order: Option<Spread>,
    /// Buffer for the model in that order, or for the mean of differences. It is kept because touching fresh
    /// pages costs more time than the copy.
    wire: Mutex<Vec<u8>>,
    /// Whether the float32 values of updates are differences from the model, as compressed updates are.
    differences: bool,
}

impl UpdateFiller {
    /// Fills in updates of this layout, whose mean becomes the next `model`.
    pub fn new(layout: Arc<Layout>, model: Arena, options: &ServerOptions) -> Self {
        let filler = Filler::new(options.repair.stand_in());
        let order = options.repair.order(options.seed);
        let differences = options.layers.compress.is_some_and(|compress| compress.scheme.is_some());
        Self { layout, model, filler, order, wire: Mutex::default(), differences }
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
        if self.differences && self.filler.reads_global() {
            let mut unchanged = global.to_vec();
            floats(&self.layout, unchanged.len()).into_iter().for_each(|range| unchanged[range].fill(0));
            global = unchanged.into();
        }
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
        if self.differences {
            return self.add_mean(sums, &mut model).map_err(NoMean::Sums);
        }
        self.put_mean(sums, &mut model).map_err(NoMean::Sums)
    }

    /// Adds the mean of differences to the model's float32 values. Other values become their mean.
    fn add_mean(&self, sums: &[Accumulator], model: &mut [u8]) -> Result<Summary, String> {
        let start = sums.first().map_or(0, |first| first.part().start);
        let part = Range::new(start, start + model.len() as u64);
        let changed: Vec<_> = floats(&self.layout, self.layout.bytes() as usize)
            .into_iter()
            .map(|range| Range::new(range.start as u64, range.end as u64).intersect(part))
            .filter(|range| !range.is_empty())
            .map(|range| (range.start - start) as usize..(range.end - start) as usize)
            .collect();
        let mut mean = lock(&self.wire);
        mean.clear();
        mean.extend_from_slice(model);
        changed.iter().for_each(|range| mean[range.clone()].fill(0));
        let summary = take_mean(sums, &mut mean, Replacement::KeepLocal)?;
        for range in &changed {
            let values =
                mean[range.clone()].chunks_exact_mut(VALUE).zip(model[range.clone()].chunks_exact(VALUE));
            let mut is_finite = true;
            for (mean, before) in values {
                let value = value(mean) + value(before);
                is_finite &= value.is_finite();
                mean.copy_from_slice(&value.to_le_bytes());
            }
            if !is_finite {
                return Err(
                    "the model and the mean of its changes add up to a value that is not finite".into()
                );
            }
        }
        model.copy_from_slice(&mean);
        Ok(summary)
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
