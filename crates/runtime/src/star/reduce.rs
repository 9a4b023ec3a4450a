//! [`Reducer`], the interface between a round and the code that folds its updates, and [`Inline`], which
//! folds in this process.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use thalweg_arena::{Arena, Claim};
use thalweg_fold::{Accumulator, FoldError, Summary, SumsHead};
use thalweg_wire::{Layout, Range, Ranges};

use super::staging::Staging;
use super::update_filler::UpdateFiller;
use crate::engine::CHUNK_TIMEOUT;
use crate::mean::nothing;
use crate::options::ServerOptions;
use crate::Error;

/// A staged update that is to be folded.
pub(crate) struct Fold {
    pub sender: u32,
    pub weight: f64,
    /// Ranges that did not arrive, and that need stand-in values.
    pub holes: Ranges,
}

/// A callback that gets the outcome of work on another thread or process.
pub(crate) type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// A function that claims the model for writing.
pub(crate) type Writable<'a> = &'a mut dyn FnMut() -> Result<Claim, Error>;

/// A piece of work of a worker process, for the timeline. Times are in seconds before now.
pub(crate) struct Did {
    /// Number of the worker, from 1.
    pub worker: usize,
    pub what: &'static str,
    pub start: f64,
    pub end: f64,
    pub updates: u64,
}

/// The workers' part of a timeline, and the number of entries that were left out.
pub(crate) struct Worked {
    pub did: Vec<Did>,
    pub left_out: u64,
}

/// Why a round has no mean.
pub(crate) enum NoMean {
    /// The sums give no mean.
    Sums(String),
    /// The model cannot be written.
    Model(Error),
}

/// Reduces the updates of a round to the next model. [`Inline`] does so in this process, `Workers` in other
/// processes.
pub(crate) trait Reducer: Send + Sync {
    /// Holds off [`Reducer::close`] and [`Reducer::export`] while it is held. A sink holds it from recording
    /// a chunk until it has used the chunk. So no chunk of one round can slip into the next.
    fn receiving(&self) -> RwLockReadGuard<'_, ()>;

    /// Checks that these bytes of an update may be added with this weight.
    ///
    /// # Errors
    /// An error that names the value that no update may contain.
    fn judge(&self, offset: u64, bytes: &[u8], weight: f64) -> Result<(), String>;

    /// A range of the sender's staged update, for writing. `None` if it is being written, or no memory is
    /// left; the chunk is then requested again.
    fn place(&self, sender: u32, range: Range) -> Option<Claim>;

    /// Adds a range of an update on arrival: all of it or nothing.
    ///
    /// # Errors
    /// The reason why the range cannot be added.
    fn keep(&self, range: Range, bytes: &[u8], weight: f64) -> Result<(), String>;

    /// Adds a staged update, completely or not at all, frees its staging memory, and calls `done` in every
    /// case. Returns at once.
    fn fold(self: Arc<Self>, update: Fold, done: Done);

    /// Frees the sender's staged update.
    fn unstage(&self, sender: u32);

    /// Frees staged updates that no `Unstage` names. Only workers have these.
    fn unstage_all(&self) {}

    /// Ends the round: writes the mean into the model that `into` gives, and drops the sums. Without `into`
    /// it only drops them. Waits for chunks that are being received and for running work. Staged updates that are
    /// not folded stay.
    ///
    /// # Errors
    /// The reason why there is no mean. The model then stays as it was.
    fn close(&self, into: Option<Writable<'_>>) -> Result<Summary, NoMean>;

    /// Ends the round: exports the sums to `cells` and drops them. Returns their head. Waits in the same way
    /// as [`Reducer::close`].
    ///
    /// # Errors
    /// The reason why there are no sums, or that `cells` has the wrong length.
    fn export(&self, cells: &mut [u8]) -> Result<SumsHead, String>;

    /// Statistics of the worker processes so far, as JSON; `None` if there are none.
    fn tree(&self) -> Option<String> {
        None
    }

    /// Memory in bytes of this process and of each worker process that runs, each with its share of what they
    /// share (PSS); 0 where the system does not say. `None` if there are no workers.
    fn memory(&self) -> Option<(u64, Vec<u64>)> {
        None
    }

    /// The worker processes' part of the timeline since the last call; `None` if there are no workers.
    fn timeline(&self) -> Option<Worked> {
        None
    }
}

/// A reducer that stages and folds updates in this process, without worker processes.
pub(crate) struct Inline {
    accumulator: Accumulator,
    folding: RwLock<()>,
    staging: Staging,
    update_filler: UpdateFiller,
}

impl Inline {
    /// Makes a reducer for updates of this layout. Their mean becomes the next `model`.
    pub fn new(layout: Arc<Layout>, model: Arena, options: &ServerOptions) -> Self {
        Self {
            accumulator: Accumulator::new(layout.clone(), options.precision.into()),
            folding: RwLock::default(),
            staging: Staging::new(layout.bytes()),
            update_filler: UpdateFiller::new(layout, model, options),
        }
    }

    fn fold_staged(&self, sender: u32, weight: f64, holes: &Ranges) -> Result<(), String> {
        let _folding = self.folding.read().unwrap_or_else(PoisonError::into_inner);
        let arena = self.staging.place(sender).ok_or("there is no memory")?;
        // Wait for the claim: the last chunk's sink may not have released its range yet, and late chunks may
        // still be being written.
        let mut update = arena.claim_within(arena.range(), CHUNK_TIMEOUT).map_err(|e| e.to_string())?;
        if self.update_filler.is_due(holes) {
            return self.fold_mended(sender, weight, &mut update, holes);
        }
        self.accumulator.fold(0, &update, weight).map(drop).map_err(|e| e.to_string())
    }

    fn fold_mended(&self, sender: u32, weight: f64, update: &mut [u8], holes: &Ranges) -> Result<(), String> {
        let present = self.update_filler.fill(sender, update, holes)?;
        // The stand-in values were not checked on arrival, unlike the rest.
        let folded = judge_ranges(&self.accumulator, update, &present, weight);
        let folded = folded.and_then(|()| self.accumulator.fold_ranges(update, &present, weight));
        folded.map_err(|error| {
            self.update_filler.forget(sender);
            error.to_string()
        })
    }
}

/// Checks that these ranges of an update may be added with this weight.
///
/// # Errors
/// The value that no update may contain.
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
            // Call `done` even if folding panics.
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
        let end = |into| self.update_filler.end(std::slice::from_ref(&self.accumulator), into);
        let summary = into.map_or_else(|| Ok(nothing()), end);
        // Drop the sums in any case: they must not count in the next round.
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
