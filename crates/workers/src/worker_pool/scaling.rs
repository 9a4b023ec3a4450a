//! Decides how many workers of a pool have a process, and when these processes start and end.

use std::time::{Duration, Instant};

use thalweg_control::autoscaler::{Autoscaler, Knobs};
use thalweg_control::Decision;

use super::{Shared, State};

/// When a worker's process starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start {
    /// The process starts together with the worker pool, and stays.
    #[default]
    Always,
    /// The process starts with its first work in a round, or if it is planned with the round's first update. It
    /// ends after the round or, with an autoscaler, when the autoscaler wants fewer workers.
    Cold,
}

/// An autoscaler, and the time at which its clock started.
pub(super) struct Scaler {
    autoscaler: Autoscaler,
    since: Instant,
    /// Number of workers that the autoscaler wants.
    wanted: usize,
}

impl Scaler {
    pub fn new(knobs: Knobs) -> Self {
        Self { autoscaler: Autoscaler::new(knobs), since: Instant::now(), wanted: 0 }
    }
}

impl State {
    /// Reports the number of updates under way to the autoscaler. The first update starts a worker at once.
    pub(super) fn observe(&mut self) {
        let Some(scaler) = &mut self.scaler else { return };
        let under_way = self.ledger.under_way();
        scaler.autoscaler.observe(scaler.since.elapsed(), under_way as u32);
        if scaler.wanted == 0 && under_way > 0 {
            self.scale();
        }
    }

    /// Applies the autoscaler's decision.
    fn scale(&mut self) {
        let Some(scaler) = &mut self.scaler else { return };
        let (now, before) = (scaler.since.elapsed(), scaler.wanted);
        let (wanted, why) = scaler.autoscaler.decide(now, before as u32);
        scaler.wanted = (wanted as usize).min(self.ledger.leaves());
        if scaler.wanted != before {
            self.decided.keep(Decision {
                number: self.decided.count() + 1,
                at: now,
                rate: 0.0,
                seconds: 0.0,
                queue: self.ledger.under_way() as f64,
                estimate: scaler.autoscaler.average(now),
                before: before as u32,
                leaves: scaler.wanted as u32,
                middle: self.ledger.has_middle() && scaler.wanted > 1,
                reasons: vec![why.to_string()],
            });
        }
        self.ledger.set_active(scaler.wanted);
        for worker in scaler.wanted..self.running.len() {
            self.retire(worker);
        }
    }

    /// Ends a worker's process, unless it holds updates of this round.
    pub(super) fn retire(&mut self, worker: usize) {
        if let Some(line) = self.running[worker].as_ref().filter(|_| self.ledger.is_idle(worker)) {
            self.counts.retired += u64::from(!std::mem::replace(&mut self.is_retired[worker], true));
            line.hang_up();
        }
    }

    /// Ends all processes after a round, if the pool starts them cold and has no autoscaler.
    pub(super) fn end_round(&mut self, start: Start) {
        if start == Start::Cold && self.scaler.is_none() {
            (0..self.running.len()).for_each(|worker| self.retire(worker));
        }
    }
}

impl Shared {
    /// Whether a worker's process should run.
    pub(super) fn is_due(&self, state: &State, worker: usize) -> bool {
        let middle = state.own_middle(self.config.middle);
        let plan = state.planning.as_ref();
        let is_planned = plan.is_none_or(|planning| planning.has(worker, middle));
        // A plan has all levels. So no level has to wait for another before it starts.
        let starts = match self.config.start {
            Start::Always => true,
            Start::Cold => plan.is_some() && state.has_begun,
        };
        state.ledger.is_wanted(worker) && (starts && is_planned || state.ledger.has_work(worker))
    }

    /// Lets the autoscaler or the planner decide at each tick until the worker pool ends.
    pub(super) fn tick(&self, tick: Duration) {
        let mut state = self.lock();
        let mut next = Instant::now() + tick;
        while !state.is_stopping {
            let left = next.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                let waited = self.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
                continue;
            }
            state.observe();
            state.scale();
            self.plan(&mut state);
            // After a pause of the machine, decide once, not once for each tick that was missed.
            next = (next + tick).max(Instant::now());
        }
    }
}
