//! What a worker pool has done so far.

use std::collections::VecDeque;

use crate::routes::Count;

/// Most times that are kept.
const MOST: usize = 4096;
/// Upper bounds of the classes that hand-overs are counted in, in nanoseconds; one more class has the rest.
pub const HANDOVER_BOUNDS: [u64; 11] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    100_000_000,
];

/// What a worker pool has done so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Processes started.
    pub started: u64,
    /// Those of them that a template forked.
    pub forked: u64,
    /// Nanoseconds from the moment at which the node began to start a process until that had said that it is ready.
    pub starts: Handovers,
    /// Nanoseconds from the moment at which the node found a worker dead until the next one had said that it is ready, and so
    /// folds again what is not committed.
    pub resumes: Handovers,
    /// Processes that ended while they were wanted.
    pub died: u64,
    /// Updates that workers have added; one counts for each worker that adds its part.
    pub folded: u64,
    /// Commits of all workers.
    pub commits: u64,
    /// Workers that began a round with a process that had worked in an earlier one. This is not LIFL's reuse
    /// (section 5.3), where an aggregator takes over the work of another level: no process of a run does.
    pub warm: u64,
    /// Nanoseconds of CPU time of workers, as they said when they last committed.
    pub cpu: u64,
    /// Nanoseconds of CPU time of the processes on the way of bytes.
    pub carrying: u64,
    /// Notes that the kernel's program has seen, if notes go inside the kernel.
    pub kernel: Option<Count>,
    /// Of the same updates as `handovers` the nanoseconds until the worker had said that it has folded them.
    pub folds: Handovers,
    /// Nanoseconds from the node's note until the worker held the object, of updates that found it without work.
    pub handovers: Handovers,
}

/// Hand-overs, or other times: the last ones, and how long all of them took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Handovers {
    last: VecDeque<u64>,
    /// How many are in each class of [`HANDOVER_BOUNDS`], and in the last one above all.
    pub classes: [u64; HANDOVER_BOUNDS.len() + 1],
    /// Nanoseconds of all.
    pub sum: u64,
}

impl Handovers {
    pub(super) fn add(&mut self, nanoseconds: u64) {
        if self.last.len() == MOST {
            self.last.pop_front();
        }
        self.last.push_back(nanoseconds);
        self.classes[HANDOVER_BOUNDS.partition_point(|&bound| bound < nanoseconds)] += 1;
        self.sum = self.sum.saturating_add(nanoseconds);
    }

    /// The last of them, in nanoseconds.
    pub fn last(&self) -> Vec<u64> {
        self.last.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_overs_are_counted_by_class() {
        let mut all = Handovers::default();
        [1, 10_000, 10_001, 100_000_000, u64::MAX].into_iter().for_each(|one| all.add(one));
        assert_eq!(all.classes, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((all.sum, all.last().len()), (u64::MAX, 5));
    }
}
