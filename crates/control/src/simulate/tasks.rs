//! Aggregation tasks: inputs that come, a worker that folds them, a result that goes up.

use crate::reuse::WorkerRole;
use crate::Timing;

/// One aggregator's work in a round.
#[derive(Debug, Clone)]
pub struct Task {
    pub node: u32,
    pub role: WorkerRole,
    /// Size of an input.
    pub bytes: u64,
    /// Inputs that it needs.
    pub goal: u32,
    /// Inputs that are there and not folded.
    pub waiting: u32,
    /// Inputs that are folded.
    pub done: u32,
    /// Whether a pass is under way.
    pub running: bool,
    /// Whether it has asked for a worker.
    pub asked: bool,
    pub worker: Option<usize>,
}

impl Task {
    pub fn new(node: u32, role: WorkerRole, bytes: u64, goal: u32) -> Self {
        Self { node, role, bytes, goal, waiting: 0, done: 0, running: false, asked: false, worker: None }
    }

    /// Whether there is something to fold now.
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

/// How a node's updates are dealt to its leaves.
#[derive(Debug, Clone, Default)]
pub struct Leaves {
    /// Its tasks are these, from the first to before the second.
    pub first: usize,
    pub end: usize,
    /// Whether each task gets a range of all updates, instead of some updates.
    pub ranges: bool,
    /// Whether updates go round the leaves, instead of filling one after the other.
    pub round: bool,
    /// Updates that have come.
    pub come: usize,
    /// The task of its middle.
    pub middle: Option<usize>,
    /// Last tasks that are not done; at zero the node is finished.
    pub left: u32,
}

/// How many inputs each of so many leaves gets: `each`, and the last one what is left.
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
