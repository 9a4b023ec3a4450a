//! Plans the leaves and the middle while the pool works: measures arrivals and times, plans when a plan is due,
//! and starts and retires workers (LIFL, section 5.2).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use thalweg_control::{Config, Decision, Planner, Sample};

use super::{Shared, State};
use crate::ledger::Middle;

/// Maximum number of decisions that are kept. Earlier ones are only counted.
const MOST: usize = 64;

/// How the leaves of a pool are planned.
#[derive(Debug, Clone)]
pub struct Plans {
    /// The planner's policies and numbers.
    pub config: Config,
    /// Number of updates that the first plan is for.
    pub updates: u32,
}

/// A planner, and what was measured since its last plan.
pub(super) struct Planning {
    planner: Planner,
    /// When the planner's clock began.
    since: Instant,
    sample: Sample,
    /// When the first update of this round arrived, or when the last plan was made if that is later.
    busy_since: Option<Instant>,
    /// Number of leaves that the last plan has.
    leaves: usize,
    has_middle: bool,
}

/// The decisions about the number of leaves, by a planner or an autoscaler.
#[derive(Default)]
pub(super) struct Decided {
    latest: VecDeque<Decision>,
    count: u64,
}

impl Decided {
    pub fn keep(&mut self, decision: Decision) {
        if self.latest.len() == MOST {
            self.latest.pop_front();
        }
        self.latest.push_back(decision);
        self.count += 1;
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn latest(&self) -> Vec<Decision> {
        self.latest.iter().cloned().collect()
    }
}

impl Planning {
    /// Makes the first plan. `has_middle`: whether a worker may add up the leaves' sums.
    pub fn new(plans: &Plans, has_middle: bool) -> (Self, Decision) {
        let mut planner = Planner::new(plans.config.clone()).with_middle(has_middle);
        let first = planner.first(Duration::ZERO, plans.updates);
        let mut planning = Self {
            planner,
            since: Instant::now(),
            sample: Sample::default(),
            busy_since: None,
            leaves: 0,
            has_middle: false,
        };
        planning.follow(&first);
        (planning, first)
    }

    fn follow(&mut self, decision: &Decision) {
        (self.leaves, self.has_middle) = (decision.leaves as usize, decision.middle);
    }

    pub fn every(&self) -> Duration {
        self.planner.every()
    }

    /// Whether the plan has this worker. `middle` is the worker that is the middle and no leaf.
    pub fn has(&self, worker: usize, middle: Option<usize>) -> bool {
        match middle {
            Some(middle) if middle == worker => self.has_middle,
            _ => worker < self.leaves,
        }
    }

    pub fn leaves(&self) -> usize {
        self.leaves
    }

    pub fn arrived(&mut self) {
        self.busy_since.get_or_insert_with(Instant::now);
        self.sample.arrivals += 1;
    }

    pub fn folded(&mut self, arrived: Instant) {
        self.sample.folded += 1;
        self.sample.taken += arrived.elapsed();
    }

    /// Ends a round.
    pub fn ended(&mut self) {
        self.sample.busy += self.busy_since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }

    /// Makes the next plan, for `waiting` updates that are not folded yet. `None`: nothing was measured since the
    /// last, as between two rounds, so the plan stays.
    fn plan(&mut self, waiting: usize) -> Option<Decision> {
        if let Some(since) = self.busy_since {
            self.sample.busy += since.elapsed();
            self.busy_since = Some(Instant::now());
        }
        self.sample.waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        if self.sample.is_empty() {
            return None;
        }
        let sample = std::mem::take(&mut self.sample);
        let decision = self.planner.next(self.since.elapsed(), &sample);
        self.follow(&decision);
        Some(decision)
    }
}

impl State {
    /// The worker that is the middle and folds no updates, if there is one.
    pub(super) fn own_middle(&self, middle: Middle) -> Option<usize> {
        (middle == Middle::Own).then(|| self.running.len() - 1)
    }

    /// Ends the processes that the plan does not have, and that hold nothing of this round. The others end with
    /// the round.
    pub(super) fn retire_unplanned(&mut self, middle: Middle) {
        let Some(planning) = &self.planning else { return };
        let middle = self.own_middle(middle);
        let unplanned: Vec<usize> =
            (0..self.running.len()).filter(|&worker| !planning.has(worker, middle)).collect();
        unplanned.into_iter().for_each(|worker| self.retire(worker));
    }
}

impl Shared {
    /// Makes a plan and carries it out: further updates go to the planned leaves alone.
    pub(super) fn plan(&self, state: &mut State) {
        let Some(planning) = &mut state.planning else { return };
        let waiting = state.jobs.values().filter(|job| job.arrived.is_some()).count();
        let Some(decision) = planning.plan(waiting) else { return };
        state.ledger.set_active(planning.leaves());
        state.decided.keep(decision);
        state.retire_unplanned(self.config.middle);
        self.changed.notify_all(); // the threads start the processes
    }
}
