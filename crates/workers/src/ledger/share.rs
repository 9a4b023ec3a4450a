//! A worker, as the ledger sees it.

use std::collections::BTreeSet;

use super::Base;

#[derive(Debug, Default)]
pub(super) struct Share {
    pub is_alive: bool,
    pub task: u32,
    pub base: Option<Base>,
    /// Updates in its base that are not released yet.
    pub in_base: BTreeSet<u32>,
    /// Updates in its sums since.
    pub folded: BTreeSet<u32>,
    /// Updates that it was given and has not folded yet.
    pub given: BTreeSet<u32>,
    pub is_asked: bool,
    pub has_committed: bool,
    /// Updates in its base, released ones too.
    pub counted: u32,
    pub deaths: u32,
    /// Updates of the round that are its own.
    pub assigned: u32,
}

impl Share {
    pub fn has(&self, sequence: u32) -> bool {
        self.folded.contains(&sequence) || self.in_base.contains(&sequence)
    }

    /// Nothing of the round is its own.
    pub fn is_blank(&self) -> bool {
        self.base.is_none() && self.folded.is_empty() && self.given.is_empty()
    }

    /// Forgets what is not committed.
    pub fn forget(&mut self) {
        self.task += 1;
        self.folded.clear();
        self.given.clear();
        self.is_asked = false;
    }
}
