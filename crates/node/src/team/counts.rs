//! What a team has done so far.

use std::collections::VecDeque;

/// Most hand-overs that are kept.
const MOST: usize = 4096;

/// What a team has done so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Processes started.
    pub started: u64,
    /// Processes that ended while they were wanted.
    pub died: u64,
    /// Commits of all workers.
    pub commits: u64,
    /// Workers that began a round with a process that had worked in an earlier one.
    pub reused: u64,
    /// Nanoseconds of CPU time of workers, as they said when they last committed.
    pub cpu: u64,
    /// Nanoseconds from the node's note until the worker held the object, of the last updates that found it without
    /// work.
    pub handovers: Vec<u64>,
}

/// The last hand-overs, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Handovers(VecDeque<u64>);

impl Handovers {
    pub fn add(&mut self, nanoseconds: u64) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(nanoseconds);
    }

    pub fn all(&self) -> Vec<u64> {
        self.0.iter().copied().collect()
    }
}
