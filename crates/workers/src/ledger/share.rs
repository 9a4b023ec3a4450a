//! The state of one worker in the ledger.

use std::collections::BTreeSet;

use super::Base;

#[derive(Debug, Default)]
pub(super) struct Share {
    pub is_alive: bool,
    pub task: u32,
    pub base: Option<Base>,
    /// Sequence numbers of updates that the worker's last commit contains and that are not released yet.
    pub in_base: BTreeSet<u32>,
    /// Sequence numbers of updates that the worker has folded since its last commit.
    pub folded: BTreeSet<u32>,
    /// Sequence numbers of updates that the worker was given and has not folded yet.
    pub given: BTreeSet<u32>,
    pub commit_requested: bool,
    pub has_committed: bool,
    /// Number of updates in the worker's last commit, including those that are released.
    pub counted: u32,
    pub deaths: u32,
    /// Number of this round's updates that were assigned to the worker.
    pub assigned: u32,
}

impl Share {
    pub fn has(&self, sequence: u32) -> bool {
        self.folded.contains(&sequence) || self.in_base.contains(&sequence)
    }

    /// Whether the worker holds no update of this round.
    pub fn is_blank(&self) -> bool {
        self.base.is_none() && self.folded.is_empty() && self.given.is_empty()
    }

    /// Discards the updates that are not committed. Answers to earlier orders become out of date.
    pub fn forget(&mut self) {
        self.task += 1;
        self.folded.clear();
        self.given.clear();
        self.commit_requested = false;
    }
}
