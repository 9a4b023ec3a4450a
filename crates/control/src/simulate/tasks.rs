//! Aggregation tasks: each has inputs to fold, a worker that folds them, and a result for the next level.

use crate::reuse::WorkerRole;
use crate::Timing;

/// The work of one aggregator in a round.
#[derive(Debug, Clone)]
pub struct Task {
    pub node: u32,
    pub role: WorkerRole,
    /// Size of an input in bytes.
    pub bytes: u64,
    /// Number of inputs that it needs.
    pub goal: u32,
    /// Number of inputs that have arrived and are not folded.
    pub waiting: u32,
    /// Number of inputs that are folded.
    pub done: u32,
    /// Whether the worker is folding.
    pub running: bool,
    /// Whether the task has requested a worker.
    pub requested: bool,
    pub worker: Option<usize>,
}

impl Task {
    pub fn new(node: u32, role: WorkerRole, bytes: u64, goal: u32) -> Self {
        Self { node, role, bytes, goal, waiting: 0, done: 0, running: false, requested: false, worker: None }
    }

    /// Whether the worker can fold something now.
    pub fn is_ready(&self, timing: Timing) -> bool {
        !self.running
            && match timing {
                Timing::Eager => self.waiting > 0,
                Timing::Lazy => self.waiting > 0 && self.waiting + self.done == self.goal,
            }
    }

    pub fn is_done(&self) -> bool {
        self.done == self.goal
    }
}

/// How a node's updates are divided among its leaves.
#[derive(Debug, Clone, Default)]
pub struct Leaves {
    /// Index of its first task. Its tasks go from `first` to before `end`.
    pub first: usize,
    pub end: usize,
    /// Whether each task gets a range of every update, instead of some whole updates.
    pub ranges: bool,
    /// Whether leaves get updates in turn, instead of being filled one after the other.
    pub round: bool,
    /// Number of updates that have arrived.
    pub come: usize,
    /// Index of its middle's task, if it has a middle.
    pub middle: Option<usize>,
    /// Number of final tasks that are not done. At zero the node is finished.
    pub left: u32,
}

/// How many inputs each leaf gets: `each`, with the rest for the last one, or equal numbers if `each` is
/// `None`.
pub fn dealt(updates: u32, leaves: u32, each: Option<u32>) -> Vec<u32> {
    match each {
        Some(each) => (0..leaves).map(|leaf| each.min(updates - (leaf * each).min(updates))).collect(),
        None => (0..leaves).map(|leaf| updates / leaves + u32::from(leaf < updates % leaves)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_leaf_gets_what_is_left() {
        assert_eq!(dealt(5, 3, Some(2)), [2, 2, 1]);
        assert_eq!(dealt(5, 2, None), [3, 2]);
        assert_eq!(dealt(1, 1, Some(2)), [1]);
    }

    #[test]
    fn a_lazy_task_waits_for_its_last_input() {
        let mut task = Task::new(0, WorkerRole::Leaf, 1, 2);
        task.waiting = 1;
        assert!(task.is_ready(Timing::Eager) && !task.is_ready(Timing::Lazy));
        task.waiting = 2;
        assert!(task.is_ready(Timing::Lazy));
        task.running = true;
        assert!(!task.is_ready(Timing::Eager));
    }
}
