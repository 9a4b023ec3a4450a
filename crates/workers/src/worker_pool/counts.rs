//! Statistics of a worker pool.

use std::collections::VecDeque;

use crate::routes::Count;

/// Maximum number of recent times that are kept.
const MOST: usize = 4096;
/// Upper bounds of the histogram's classes, in nanoseconds. One more class holds all longer times.
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

/// Statistics of a worker pool since it began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Number of processes started.
    pub started: u64,
    /// Number of those processes that only add up leaves' sums.
    pub middles: u64,
    /// Number of rounds in which a leaf took over the work of the middle (LIFL, section 5.3).
    pub reused: u64,
    /// Number of processes that were asked to end because no plan needed them, no autoscaler wanted them, or the
    /// round was over.
    pub retired: u64,
    /// Number of processes that a template forked.
    pub forked: u64,
    /// Start times in nanoseconds: from the node's launch of a process until the process reports ready.
    pub starts: Handovers,
    /// Recovery times in nanoseconds: from the moment at which the node found a worker dead until its
    /// successor reports ready. The successor then folds the uncommitted updates again.
    pub resumes: Handovers,
    /// Number of processes that ended without a request.
    pub died: u64,
    /// Number of updates that workers have folded. An update that several workers share counts once for each.
    pub folded: u64,
    /// Number of commits by all workers together.
    pub commits: u64,
    /// Number of workers that began a round with the process of an earlier round. This is not LIFL's reuse
    /// (section 5.3), in which an aggregator takes over the work of another level.
    pub warm: u64,
    /// CPU time of the workers in nanoseconds, as each worker reported it at its last commit.
    pub cpu: u64,
    /// CPU time in nanoseconds of the processes between the node and its workers (brokers and side
    /// processes).
    pub carrying: u64,
    /// Notes that the kernel program has handled, if notes go inside the kernel.
    pub kernel: Option<Count>,
    /// Fold times in nanoseconds, of the updates in `handovers`: from the node's note until the worker's
    /// answer.
    pub folds: Handovers,
    /// Hand-over times in nanoseconds: from the node's note until the worker opened the object. Only updates
    /// that found the worker idle are counted.
    pub handovers: Handovers,
}

/// A set of times: the most recent ones, a histogram, and the sum.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Handovers {
    last: VecDeque<u64>,
    /// Number of times in each class of [`HANDOVER_BOUNDS`]; the last class has the times above all bounds.
    pub classes: [u64; HANDOVER_BOUNDS.len() + 1],
    /// Sum of all times, in nanoseconds.
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

    /// The most recent times, in nanoseconds, oldest first.
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
