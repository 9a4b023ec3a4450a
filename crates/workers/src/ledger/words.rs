//! Inputs and outputs of the ledger: orders to workers, actions of the driver, commits and errors.

use thalweg_fold::SumsHead;
use thalweg_shm_pool::Name;
use thiserror::Error;

/// How updates are divided among workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Each worker folds its own range of bytes of every update.
    Ranges,
    /// Each worker folds whole updates of some clients (LIFL's leaves).
    Clients,
}

/// The sums that a worker has committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Base {
    /// The slot of the sums: 0 or 1.
    pub slot: u32,
    /// The head of the sums.
    pub head: SumsHead,
}

/// An order to a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    /// Reset all sums: a round begins.
    Begin,
    /// Discard the updates folded since the last commit.
    Rollback,
    /// Commit: report the head of the sums, and leave these sums unchanged until the next commit or round.
    /// Later updates go to the worker's other slot of sums.
    Commit,
    /// Add an object to the sums.
    Fold {
        /// Sequence number of the update in the round.
        sequence: u32,
        /// Name of the update's object in the pool.
        name: Name,
        /// Weight of the update.
        weight: f64,
    },
    /// Add the last commit of another worker to the sums; [`Ledger::base`](super::Ledger::base) has it.
    Merge {
        /// Index of the other worker.
        from: usize,
    },
}

/// An action that the driver must take.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send an order to a worker.
    Tell {
        /// Index of the worker.
        worker: usize,
        /// The worker's epoch. Answers to orders of an earlier epoch are ignored.
        task: u32,
        /// The order.
        order: Order,
    },
    /// Release the update's object: no worker needs it any more.
    Release {
        /// Sequence number of the update.
        sequence: u32,
    },
    /// Report whether the update counts in the round's sums.
    Done {
        /// Sequence number of the update.
        sequence: u32,
        /// `Err` has the reason why the update does not count.
        outcome: Result<(), String>,
    },
    /// The round is closed. `Ok` has the commits that together hold all updates, by worker: those of all workers
    /// with updates, or that of the middle alone. `Err` says why there is no mean.
    Closed(Result<Vec<Option<Base>>, String>),
}

/// A worker sent an answer that cannot be true. It must be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("said {0}")]
pub struct Lie(pub &'static str);
