//! The middle: the worker that adds up the leaves' sums when a round closes (LIFL, sections 5.2 and 5.3).
//!
//! All leaves have committed by then, and their commits stay as they are until the next round begins. So the
//! middle's work can be done again at any time: if it dies, its successor takes over the commit that it had as a
//! leaf, and adds the others' commits again.

use thalweg_control::reuse::{source, Source, WorkerRole};

use super::{Action, Ledger, Order};

/// Who adds up the leaves' sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Middle {
    /// The node itself.
    #[default]
    Node,
    /// A leaf that has finished takes over the work: the first to finish.
    Reused,
    /// A worker of its own, the last one, that folds no updates.
    Own,
}

/// The work of the middle in a round.
#[derive(Debug)]
pub(super) struct Merging {
    pub middle: usize,
    /// The leaves whose sums it adds to its own.
    others: Vec<usize>,
}

impl Ledger {
    /// Sets who adds up the leaves' sums. With [`Middle::Own`] the last worker is the middle, and gets no updates.
    #[must_use]
    pub fn with_middle(mut self, middle: Middle) -> Self {
        self.middle = middle;
        self.active = self.leaves();
        self
    }

    /// Number of workers that fold updates.
    pub fn leaves(&self) -> usize {
        let middles = usize::from(self.middle == Middle::Own);
        self.workers.len().saturating_sub(middles).max(1)
    }

    /// Whether a worker adds up the leaves' sums.
    pub fn has_middle(&self) -> bool {
        self.middle != Middle::Node
    }

    /// Number of rounds in which a leaf took over the work of the middle.
    pub fn reused(&self) -> u64 {
        self.reused
    }

    /// Orders the middle to add up the sums of all leaves that have committed. A single leaf's sums need no
    /// middle.
    pub(super) fn gather(&mut self) {
        let leaves: Vec<usize> =
            (0..self.leaves()).filter(|&leaf| self.workers[leaf].base.is_some()).collect();
        if self.middle == Middle::Node || leaves.len() < 2 {
            let bases = self.workers.iter().map(|worker| worker.base.clone()).collect();
            return self.actions.push_back(Action::Closed(Ok(bases)));
        }
        let middle = self.chosen(&leaves);
        let all = leaves.iter().map(|&leaf| self.workers[leaf].counted).fold(0, u32::saturating_add);
        self.workers[middle].counted = all;
        let others = leaves.into_iter().filter(|&leaf| leaf != middle).collect();
        self.merging = Some(Merging { middle, others });
        if self.workers[middle].is_alive {
            self.merge_at(middle);
        }
    }

    /// The worker that takes the middle's work. Leaves are offered in the order in which they finished.
    fn chosen(&mut self, leaves: &[usize]) -> usize {
        let own = self.workers.len() - 1;
        let running = self.finished.iter().copied().filter(|&leaf| self.workers[leaf].is_alive);
        let idle: Vec<usize> = running.collect();
        let roles = vec![WorkerRole::Leaf; idle.len()];
        match source(WorkerRole::Middle, &roles, self.middle == Middle::Reused) {
            Source::Idle { place } | Source::Reused { place } => {
                self.reused += 1;
                idle[place]
            }
            // Every leaf has died since it committed; the successor of the first will do.
            Source::Start if self.middle == Middle::Reused => {
                self.reused += 1;
                leaves[0]
            }
            Source::Start => own,
        }
    }

    /// Gives a worker all of the middle's work, if it is the middle.
    pub(super) fn merge_at(&mut self, worker: usize) {
        let Some(merging) = self.merging.as_ref().filter(|merging| merging.middle == worker) else { return };
        for from in merging.others.clone() {
            self.tell(worker, Order::Merge { from });
        }
        self.workers[worker].commit_requested = true;
        self.tell(worker, Order::Commit);
    }

    /// Ends the round: the middle has committed the sums of all leaves.
    pub(super) fn merged(&mut self) {
        let Some(Merging { middle, .. }) = self.merging.take() else { return };
        let of = &mut self.workers[middle];
        of.has_committed = false;
        let mut bases = vec![None; self.workers.len()];
        bases[middle].clone_from(&self.workers[middle].base);
        self.actions.push_back(Action::Closed(Ok(bases)));
    }
}
