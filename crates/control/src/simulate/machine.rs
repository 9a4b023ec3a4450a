//! A simulated node: cores that work off a queue of jobs, workers, and a link to the other nodes.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::NodeSpec;
use crate::autoscaler::{Autoscaler, Knobs};
use crate::reuse::WorkerRole;
use crate::Time;

/// A job for a core.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Fold inputs of a task.
    Fold { task: usize, inputs: u32 },
    /// Copy an input to each of these tasks.
    Move { to: Range2 },
    /// Copy a node's sums out to its link.
    Out { node: u32 },
    /// Start a worker.
    Start { worker: usize },
}

/// Indices of tasks, from the first to before the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range2(pub usize, pub usize);

impl From<Range2> for Range<usize> {
    fn from(Range2(start, end): Range2) -> Self {
        start..end
    }
}

/// State of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Starting,
    Idle,
    Busy,
    Ended,
}

#[derive(Debug)]
pub struct Worker {
    pub role: WorkerRole,
    pub standing: Standing,
    pub since: Time,
}

#[derive(Debug)]
pub struct Machine {
    /// Number of idle cores.
    cores: u32,
    /// Jobs that wait for a core, each with its duration.
    jobs: VecDeque<(Work, Duration)>,
    pub workers: Vec<Worker>,
    /// Idle workers, in the order in which they became idle.
    pub idle: Vec<usize>,
    /// Tasks that wait for a worker, by role.
    pub waiting: [VecDeque<usize>; 3],
    pub scalers: [Autoscaler; 3],
    /// Maximum number of leaves that the plan allows.
    pub leaves: u32,
    /// Rate of the link to and from other nodes, in bits a second; 0 for no limit.
    pub rate: u64,
    /// Transfers that wait for the link, in order.
    pub outbox: VecDeque<Transfer>,
    pub is_sending: bool,
    pub is_receiving: bool,
}

/// Sums, or a share of them, that one node sends to the top's tasks at another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    pub from: u32,
    pub node: u32,
    pub to: Range2,
    pub bytes: u64,
}

impl Machine {
    pub fn new(spec: &NodeSpec, knobs: Knobs) -> Self {
        Self {
            cores: spec.cores.max(1),
            jobs: VecDeque::new(),
            workers: Vec::new(),
            idle: Vec::new(),
            waiting: Default::default(),
            scalers: [Autoscaler::new(knobs), Autoscaler::new(knobs), Autoscaler::new(knobs)],
            leaves: 0,
            rate: spec.rate,
            outbox: VecDeque::new(),
            is_sending: false,
            is_receiving: false,
        }
    }

    /// Adds a job. Returns it if an idle core can begin it now.
    pub fn submit(&mut self, work: Work, lasting: Duration) -> Option<(Work, Duration)> {
        if self.cores == 0 {
            self.jobs.push_back((work, lasting));
            return None;
        }
        self.cores -= 1;
        Some((work, lasting))
    }

    /// Notes that a core has finished. Returns the job that it begins next.
    pub fn next(&mut self) -> Option<(Work, Duration)> {
        let next = self.jobs.pop_front();
        self.cores += u32::from(next.is_none());
        next
    }

    /// Number of workers of a role that have not ended.
    pub fn count(&self, role: WorkerRole) -> u32 {
        self.workers.iter().filter(|worker| worker.role == role && worker.standing != Standing::Ended).count()
            as u32
    }

    /// Ends all workers.
    pub fn end_all(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.standing = Standing::Ended);
        self.idle.clear();
    }

    /// Roles of the idle workers.
    pub fn idle_roles(&self) -> Vec<WorkerRole> {
        self.idle.iter().map(|&worker| self.workers[worker].role).collect()
    }
}
