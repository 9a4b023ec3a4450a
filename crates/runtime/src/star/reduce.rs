//! What becomes of updates: where their chunks go, how they are added up, and what comes out.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use serde_json::Value;
use thalweg_arena::{Arena, Claim};
use thalweg_fold::{Accumulator, FoldError, Summary, SumsHead};
use thalweg_wire::{Layout, Range, Ranges};

use super::mending::Mending;
use super::staging::Staging;
use crate::engine::CHUNK_PATIENCE;
use crate::mean::nothing;
use crate::options::ServerOptions;
use crate::Error;

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

/// What a worker did; times are seconds before now.
pub(crate) struct Did {
    /// From 1.
    pub worker: usize,
    pub what: &'static str,
    pub start: f64,
    pub end: f64,
    pub updates: u64,
}

/// What workers did in a round, and how much of it is left out.
pub(crate) struct Worked {
    pub did: Vec<Did>,
    pub left_out: u64,
}

/// Why a round has no mean.
pub(crate) enum NoMean {
    /// The sums come to none.
    Sums(String),
    /// The model cannot be written to.
    Model(Error),
}

/// Reduces the updates of a round to the next model. [`Inline`] does so in this process, `Workers`
/// in others.
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

    /// The round is over: the sums are exported to `cells`, and forgotten here; returns their head. Waits as
    /// [`Reducer::close`] does.
    ///
    /// # Errors
    /// Why there are no sums, or not as many bytes of them as `cells`.
    fn export(&self, cells: &mut [u8]) -> Result<SumsHead, String>;

    /// What its worker processes have done so far, if it has any.
    fn tree(&self) -> Option<Value> {
        None
    }

    /// What its worker processes did since this was asked last, if it has any.
    fn timeline(&self) -> Option<Worked> {
        None
    }
}

/// Staging and sums in this process.
pub(crate) struct Inline {
    accumulator: Accumulator,
    folding: RwLock<()>,
    staging: Staging,
    mending: Mending,
}

impl Inline {
    /// For updates of this layout, whose mean becomes the next `model`.
    pub fn new(layout: Arc<Layout>, model: Arena, options: &ServerOptions) -> Self {
        Self {
            accumulator: Accumulator::new(layout.clone(), options.precision.into()),
            folding: RwLock::default(),
            staging: Staging::new(layout.bytes()),
            mending: Mending::new(layout, model, options),
        }
    }

    fn fold_staged(&self, sender: u32, weight: f64, holes: &Ranges) -> Result<(), String> {
        let _folding = self.folding.read().unwrap_or_else(PoisonError::into_inner);
        let arena = self.staging.place(sender).ok_or("there is no memory")?;
        // Who received the last of it may still hold its place, and what trails behind its end may come.
        let mut update = arena.claim_within(arena.range(), CHUNK_PATIENCE).map_err(|e| e.to_string())?;
        if self.mending.is_due(holes) {
            return self.fold_mended(sender, weight, &mut update, holes);
        }
        self.accumulator.fold(0, &update, weight).map(drop).map_err(|e| e.to_string())
    }

    fn fold_mended(&self, sender: u32, weight: f64, update: &mut [u8], holes: &Ranges) -> Result<(), String> {
        let came = self.mending.mend(sender, update, holes)?;
        // What stands in was not judged when it came.
        let folded = judge_ranges(&self.accumulator, update, &came, weight);
        let folded = folded.and_then(|()| self.accumulator.fold_ranges(update, &came, weight));
        folded.map_err(|error| {
            self.mending.forget(sender);
            error.to_string()
        })
    }
}

/// Whether these ranges of an update may be added with this weight.
///
/// # Errors
/// What no update may hold.
pub(crate) fn judge_ranges(
    sums: &Accumulator,
    update: &[u8],
    ranges: &Ranges,
    weight: f64,
) -> Result<(), FoldError> {
    let judge = |range: Range| {
        let bytes = &update[range.start as usize..range.end as usize];
        sums.check(range.start, bytes, weight)
    };
    ranges.iter().try_for_each(judge)
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
        let end = |into| self.mending.end(std::slice::from_ref(&self.accumulator), into);
        let summary = into.map_or_else(|| Ok(nothing()), end);
        // Whatever came of them, they are not for the next round.
        self.accumulator.reset();
        summary
    }

    fn export(&self, cells: &mut [u8]) -> Result<SumsHead, String> {
        let _folding = self.folding.write().unwrap_or_else(PoisonError::into_inner);
        let head = self.accumulator.export_into(cells).map_err(|e| e.to_string());
        self.accumulator.reset();
        head
    }
}
