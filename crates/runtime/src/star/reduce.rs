//! What becomes of updates: where their chunks go, how they are added up, and what comes out.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use thalweg_arena::{Arena, Claim};
use thalweg_fold::{Accumulator, Repair, Summary};
use thalweg_wire::{Layout, Range, Ranges, Spread};

use super::repair::Mender;
use super::staging::Staging;
use crate::engine::CHUNK_PATIENCE;
use crate::mean::{check_means, nothing, take_mean};
use crate::options::ServerOptions;
use crate::{lock, Error};

/// A staged update that is to be folded.
pub(crate) struct Fold {
    pub sender: u32,
    pub weight: f64,
    /// What did not come of it, for which something is to stand in.
    pub holes: Ranges,
}

/// Hears what came of work that was given away.
pub(crate) type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Gives the model to write to.
pub(crate) type Writable<'a> = &'a mut dyn FnMut() -> Result<Claim, Error>;

/// Why a round has no mean.
pub(crate) enum NoMean {
    /// The sums come to none.
    Sums(String),
    /// The model cannot be written to.
    Model(Error),
}

/// Reduces the updates of a round to the next model. [`Inline`] does so in this process; others may give the work away.
pub(crate) trait Reducer: Send + Sync {
    /// While this is held, nobody takes the mean: no chunk of one round can slip into the next. From marking a chunk as
    /// received until it is used.
    fn receiving(&self) -> RwLockReadGuard<'_, ()>;

    /// Whether these bytes of an update may be added with this weight.
    ///
    /// # Errors
    /// What no update may hold.
    fn judge(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<(), String>;

    /// A range of the sender's staged update to write to; `None` while it is being written, or without memory: the chunk
    /// is then asked for again.
    fn place(&self, sender: u32, range: Range) -> Option<Claim>;

    /// Adds a range of an update on arrival, all of it or none.
    ///
    /// # Errors
    /// Why it cannot be added.
    fn keep(&self, range: Range, bytes: &[u8], weight: f64) -> Result<(), String>;

    /// Adds a staged update, all that came of it or none, frees its staging, and tells `done` whatever happens. Returns at
    /// once.
    fn fold(self: Arc<Self>, update: Fold, done: Done);

    /// The sender's staged update is needed no longer.
    fn unstage(&self, sender: u32);

    /// The round is over: the mean goes into the model that `into` gives, and the sums are forgotten; without it they are
    /// forgotten alone. Waits for what is being received, and for the work.
    ///
    /// # Errors
    /// Why there is no mean; the model then stays as it was.
    fn close(&self, into: Option<Writable<'_>>) -> Result<Summary, NoMean>;
}

/// Staging, mending and sums in this process.
pub(crate) struct Inline {
    layout: Arc<Layout>,
    accumulator: Accumulator,
    folding: RwLock<()>,
    staging: Staging,
    mender: Mender,
    /// In which order updates come, if it is not the model's.
    order: Option<Spread>,
    /// The model in that order, for a moment: kept since fresh pages cost more than the copy.
    wire: Mutex<Vec<u8>>,
    model: Arena,
}

impl Inline {
    /// For updates of this layout, whose mean becomes the next `model`.
    pub fn new(layout: Arc<Layout>, model: Arena, options: &ServerOptions) -> Self {
        Self {
            accumulator: Accumulator::new(layout.clone(), options.precision.into()),
            folding: RwLock::default(),
            staging: Staging::new(layout.bytes()),
            mender: Mender::new(options.repair.stand_in()),
            order: options.repair.order(options.seed),
            wire: Mutex::default(),
            layout,
            model,
        }
    }

    fn fold_staged(&self, sender: u32, weight: f64, holes: &Ranges) -> Result<(), String> {
        let _folding = self.folding.read().unwrap_or_else(PoisonError::into_inner);
        let arena = self.staging.place(sender).ok_or("there is no memory")?;
        // Who received the last of it may still hold its place, and what trails behind its end may come.
        let mut update = arena.claim_within(arena.range(), CHUNK_PATIENCE).map_err(|e| e.to_string())?;
        if !holes.is_empty() || self.mender.keeps_updates() {
            return self.fold_mended(sender, weight, &mut update, holes);
        }
        self.accumulator.fold(0, &update, weight).map(drop).map_err(|e| e.to_string())
    }

    fn fold_mended(&self, sender: u32, weight: f64, update: &mut [u8], holes: &Ranges) -> Result<(), String> {
        let mut global = self.model.lend(self.model.range()).map_err(|e| e.to_string())?;
        if let Some(order) = self.order.filter(|_| self.mender.reads_global()) {
            let mut wire = vec![0; global.len()];
            order.to_wire(&self.layout, &global, &mut wire);
            global = wire.into();
        }
        let came = self.mender.mend(&self.layout, sender, update, holes, &global)?;
        // What stands in was not judged when it came.
        let judge = |range: Range| {
            let bytes = &update[range.start as usize..range.end as usize];
            self.accumulator.check(range.start, bytes, weight)
        };
        let folded = came.iter().try_for_each(judge);
        let folded = folded.and_then(|()| self.accumulator.fold_ranges(update, &came, weight));
        folded.map_err(|error| {
            self.mender.forget(sender);
            error.to_string()
        })
    }

    /// The mean of what was folded, into the model; in order, if updates came in another.
    fn put_mean(&self, model: &mut [u8]) -> Result<Summary, String> {
        let Some(order) = self.order else { return take_mean(&self.accumulator, model, Repair::KeepLocal) };
        let mut wire = lock(&self.wire);
        wire.resize(model.len(), 0);
        order.to_wire(&self.layout, model, &mut wire);
        let summary = take_mean(&self.accumulator, &mut wire, Repair::KeepLocal)?;
        order.to_order(&self.layout, &wire, model);
        Ok(summary)
    }

    fn end_sums(&self, into: Writable<'_>) -> Result<Summary, NoMean> {
        check_means(&self.accumulator).map_err(NoMean::Sums)?;
        let mut model = into().map_err(NoMean::Model)?;
        self.put_mean(&mut model).map_err(NoMean::Sums)
    }
}

impl Reducer for Inline {
    fn receiving(&self) -> RwLockReadGuard<'_, ()> {
        self.folding.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<(), String> {
        self.accumulator.check(offset, bytes, weight).map_err(|error| error.to_string())
    }

    fn place(&self, sender: u32, range: Range) -> Option<Claim> {
        self.staging.claim(sender, range)
    }

    fn keep(&self, range: Range, bytes: &[u8], weight: f64) -> Result<(), String> {
        let folded = self.accumulator.fold(range.start, bytes, weight).map_err(|error| error.to_string())?;
        (folded == range).then_some(()).ok_or_else(|| format!("{folded:?} of {range:?} are elements"))
    }

    fn fold(self: Arc<Self>, update: Fold, done: Done) {
        tokio::task::spawn_blocking(move || {
            let Fold { sender, weight, holes } = update;
            // Whatever happens, somebody hears what came of it.
            let fold = AssertUnwindSafe(|| self.fold_staged(sender, weight, &holes));
            let outcome =
                catch_unwind(fold).unwrap_or_else(|_| Err("the thread that folded panicked".into()));
            self.staging.free(sender);
            done(outcome);
        });
    }

    fn unstage(&self, sender: u32) {
        self.staging.free(sender);
    }

    fn close(&self, into: Option<Writable<'_>>) -> Result<Summary, NoMean> {
        let _folding = self.folding.write().unwrap_or_else(PoisonError::into_inner);
        let summary = into.map_or_else(|| Ok(nothing()), |into| self.end_sums(into));
        // Whatever came of them, they are not for the next round.
        self.accumulator.reset();
        summary
    }
}
