//! What a ledger says, and what it is told.

use thalweg_fold::SumsHead;
use thalweg_shm_pool::Name;
use thiserror::Error;

/// How updates are shared out among workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Each worker folds its bytes of all updates.
    Ranges,
    /// Each worker folds some updates as a whole (LIFL's leaves).
    Clients,
}

/// What a worker has committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Base {
    /// In which of its two slots.
    pub slot: u32,
    /// What lies there.
    pub head: SumsHead,
}

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    /// Forget all sums: a round begins.
    Begin,
    /// Forget what is not committed.
    Rollback,
    /// Say what the sums are, and leave them where they are from now on.
    Commit,
    /// Add an object to the sums.
    Fold {
        /// Number of the update in the round.
        sequence: u32,
        /// Where it lies.
        name: Name,
        /// Its weight.
        weight: f64,
    },
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Tell a worker.
    Tell {
        /// Which.
        worker: usize,
        /// The worker's epoch: what it says of an earlier one is out of date.
        task: u32,
        /// What.
        order: Order,
    },
    /// No worker needs the object of this update any more.
    Release {
        /// Which.
        sequence: u32,
    },
    /// The update counts, or `Err` says why not.
    Done {
        /// Which.
        sequence: u32,
        /// Why not.
        outcome: Result<(), String>,
    },
    /// The round is closed: what each worker has committed, if it has part in it, or why there is no mean.
    Closed(Result<Vec<Option<Base>>, String>),
}

/// A worker said what cannot be: it is to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("said {0}")]
pub struct Lie(pub &'static str);
