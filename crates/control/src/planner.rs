//! Plans the workers of one node while a job runs, from what the node measures (LIFL, sections 5.1 and 5.2).

use std::time::Duration;

use serde::Serialize;

use crate::{decide, Because, Client, Config, Load, Node, State, Time, UPDATE};

/// Shortest time between two plans of a node.
const SHORTEST: Duration = Duration::from_millis(1);

/// What a node measured since its last plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Updates that arrived at the workers.
    pub arrivals: u32,
    /// Time within which they arrived and were folded: in each round from the first arrival to the end.
    pub busy: Duration,
    /// Updates that workers have folded.
    pub folded: u32,
    /// Sum of the times of these updates, each from its arrival until it was folded.
    pub taken: Duration,
    /// Updates that wait or are being folded now, those that arrived before the last plan included.
    pub waiting: u32,
}

impl Sample {
    /// Arrival rate in updates a second; the paper's k.
    pub fn rate(&self) -> f64 {
        if self.busy.is_zero() {
            return 0.0;
        }
        f64::from(self.arrivals) / self.busy.as_secs_f64()
    }

    /// Average time of an update in seconds, waiting included; the paper's E.
    pub fn seconds(&self) -> f64 {
        self.taken.as_secs_f64() / f64::from(self.folded.max(1))
    }

    /// Whether nothing was there to measure: no update arrived, was folded or waits, and no round ran.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The queue, k * E: by Little's law the average number of updates that wait or are folded, while there are
    /// any. It is at least the number that waits now: k is 0 if all of them arrived before the last plan. If none
    /// has been folded, all that arrived are waiting.
    pub fn queue(&self) -> Load {
        let waiting = u64::from(self.waiting) * UPDATE;
        if self.folded == 0 || self.busy.is_zero() {
            return waiting.max(u64::from(self.arrivals) * UPDATE);
        }
        let updates = u128::from(UPDATE) * u128::from(self.arrivals);
        let times = updates.saturating_mul(self.taken.as_nanos());
        // Each divisor is at least 1.
        let queue = times / self.busy.as_nanos() / u128::from(self.folded);
        Load::try_from(queue).unwrap_or(Load::MAX).max(waiting)
    }
}

/// A plan of a node's workers, or a change by an autoscaler, with what it follows from.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Number of the decision, from 1.
    pub number: u64,
    /// When it was made, in seconds since the node's workers began.
    #[serde(with = "crate::seconds")]
    pub at: Time,
    /// Updates a second, and seconds of an update; both are 0 in the first plan, which follows from the number of
    /// clients, and of an autoscaler, which does not look at them.
    pub rate: f64,
    /// See `rate`.
    pub seconds: f64,
    /// Measured queue in updates; of an autoscaler, the updates under way now.
    pub queue: f64,
    /// Smoothed queue in updates; of an autoscaler, the average over its stable window.
    pub estimate: f64,
    /// Number of leaves before.
    pub before: u32,
    /// Number of leaves from now on.
    pub leaves: u32,
    /// Whether a middle adds up the leaves' sums.
    pub middle: bool,
    /// The reasons, in words.
    pub reasons: Vec<String>,
}

/// Plans the leaves and the middle of one node again and again.
#[derive(Debug)]
pub struct Planner {
    config: Config,
    estimate: Option<Load>,
    needs: Vec<u32>,
    leaves: u32,
    number: u64,
    has_middle: bool,
}

impl Planner {
    /// A planner that has made no plan.
    pub fn new(config: Config) -> Self {
        Self { config, estimate: None, needs: Vec::new(), leaves: 0, number: 0, has_middle: true }
    }

    /// From now on plans have a middle only if `has_middle`: without one the node adds up the leaves' sums.
    #[must_use]
    pub fn with_middle(self, has_middle: bool) -> Self {
        Self { has_middle, ..self }
    }

    /// Time between two plans: a node must not plan without pause.
    pub fn every(&self) -> Duration {
        self.config.every.max(SHORTEST)
    }

    /// The first plan, for this many updates at once.
    pub fn first(&mut self, now: Time, updates: u32) -> Decision {
        self.decide(now, u64::from(updates) * UPDATE, (0.0, 0.0))
    }

    /// The next plan, from what the node has measured since the last.
    pub fn next(&mut self, now: Time, sample: &Sample) -> Decision {
        self.decide(now, sample.queue(), (sample.rate(), sample.seconds()))
    }

    fn decide(&mut self, now: Time, queue: Load, (rate, seconds): (f64, f64)) -> Decision {
        let node = Node {
            capacity: Load::MAX,
            busy: 0,
            estimate: self.estimate,
            needs: std::mem::take(&mut self.needs),
            workers: self.leaves,
            last_message: now,
            group: None,
        };
        // The clients of this node are placed already; together they are its queue.
        let clients = vec![Client { home: Some(0), load: queue, group: None }];
        let (plan, reason) = decide(now, &State { nodes: vec![node], clients, planned: None }, &self.config);
        let (before, mut middle, mut estimate) = (self.leaves, false, queue);
        for tree in plan.trees {
            (self.needs, middle, estimate) = (tree.needs, tree.middle && self.has_middle, tree.estimate);
            self.leaves = tree.leaves.max(1); // the next update needs one
        }
        self.estimate = Some(estimate);
        self.number += 1;
        Decision {
            number: self.number,
            at: now,
            rate,
            seconds,
            queue: in_updates(queue),
            estimate: in_updates(estimate),
            before,
            leaves: self.leaves,
            middle,
            reasons: reason.0.iter().filter_map(|because| about_workers(because, middle)).collect(),
        }
    }
}

fn in_updates(load: Load) -> f64 {
    load as f64 / UPDATE as f64
}

/// The words of a reason that is about a node's workers, without the node's number, which is always 0 here, and
/// without the middle if there is none.
fn about_workers(because: &Because, has_middle: bool) -> Option<String> {
    match because {
        Because::Single { .. }
        | Because::Leaves { .. }
        | Because::Capped { .. }
        | Because::Held { .. }
        | Because::Ranges { .. }
        | Because::Fixed { .. } => {}
        _ => return None,
    }
    let mut text = because.to_string();
    if !has_middle {
        text = text.replacen(" and a middle", "", 1);
    }
    Some(text.strip_prefix("node 0: ").unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Split;

    fn planner() -> Planner {
        Planner::new(Config { split: Split::Clients, workers: 16, ..Config::default() })
    }

    /// Updates that take so long each that this many are there on average.
    fn load(updates: u32) -> Sample {
        let busy = Duration::from_secs(10);
        Sample { arrivals: 100, busy, folded: 100, taken: busy * updates, waiting: 0 }
    }

    fn leaves(planner: &mut Planner, loads: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let plan =
            |(at, updates): (u64, u32)| planner.next(Duration::from_secs(120 * at), &load(updates)).leaves;
        (1..).zip(loads).map(plan).collect()
    }

    #[test]
    fn the_queue_is_rate_times_time() {
        let sample = load(6);
        assert_eq!((sample.rate(), sample.seconds(), sample.queue()), (10.0, 0.6, 6 * UPDATE));
        assert_eq!(Sample::default().queue(), 0);
        assert_eq!(Sample { arrivals: 3, ..Sample::default() }.queue(), 3 * UPDATE, "none is folded yet");
        let busy = Duration::from_nanos(1);
        let most = Sample { arrivals: u32::MAX, busy, folded: 1, taken: Duration::MAX, waiting: 0 };
        assert_eq!(most.queue(), Load::MAX);
    }

    #[test]
    fn updates_that_still_wait_are_in_the_queue() {
        let late = Sample { arrivals: 0, waiting: 7, ..load(2) };
        assert_eq!((late.rate(), late.queue()), (0.0, 7 * UPDATE), "they arrived before the last plan");
        assert_eq!(Sample { folded: 0, ..late }.queue(), 7 * UPDATE);
        assert_eq!(Sample { waiting: 1, ..load(2) }.queue(), 2 * UPDATE, "the average is more");
        assert!(Sample::default().is_empty() && !late.is_empty());
    }

    #[test]
    fn without_a_middle_no_plan_names_one() {
        let first = planner().with_middle(false).first(Duration::ZERO, 6);
        assert_eq!((first.leaves, first.middle), (3, false));
        assert_eq!(first.reasons, ["3 leaves, for a smoothed queue of 6 (now 6) at 2 a leaf"]);
    }

    #[test]
    fn the_first_plan_is_for_all_clients_and_the_next_for_what_is_measured() {
        let mut planner = planner();
        let first = planner.first(Duration::ZERO, 20);
        assert_eq!((first.before, first.leaves, first.middle, first.queue), (0, 10, true, 20.0));
        let next = planner.next(Duration::from_secs(120), &load(2));
        assert_eq!((next.queue, next.estimate), (2.0, 14.6), "0.7 * 20 + 0.3 * 2");
        assert_eq!((next.before, next.leaves), (10, 10));
        assert_eq!(
            next.reasons,
            [
                "10 leaves stay, though 8 would do now: one of the last 3 plans needed them",
                "10 leaves and a middle, for a smoothed queue of 14.6 (now 2) at 2 a leaf"
            ]
        );
    }

    #[test]
    fn leaves_start_at_once_and_end_when_the_load_stays_low() {
        let mut planner = planner();
        planner.first(Duration::ZERO, 2);
        assert_eq!(leaves(&mut planner, [20, 20, 20]), [4, 6, 7], "as the estimate rises");
        let falling = leaves(&mut planner, [0; 12]);
        assert_eq!(falling[..2], [7, 7], "the last of three plans needed them");
        assert!(falling.windows(2).all(|pair| pair[1] <= pair[0]));
        assert_eq!(falling[11], 1, "one stays");
    }

    #[test]
    fn load_that_goes_up_and_down_changes_no_plan() {
        for (low, high, period) in [(0, 40, 2), (3, 5, 2), (0, 30, 3), (1, 20, 3)] {
            let mut planner = planner();
            planner.first(Duration::ZERO, high);
            let swinging = (0..200).map(|plan| if plan % period == 0 { high } else { low });
            let planned = leaves(&mut planner, swinging);
            let settled = &planned[100..];
            assert!(settled.windows(2).all(|pair| pair[0] == pair[1]), "{low} to {high}: {settled:?}");
            assert!(settled[0] >= 1);
        }
    }

    #[test]
    fn there_is_a_pause_between_plans() {
        let every = |every| Planner::new(Config { every, ..Config::default() }).every();
        assert_eq!(every(Duration::ZERO), SHORTEST);
        assert_eq!(every(Duration::from_secs(120)), Duration::from_secs(120));
    }

    #[test]
    fn a_plan_that_cannot_be_met_says_so() {
        let config = Config { split: Split::Clients, workers: 4, ..Config::default() };
        let first = Planner::new(config).first(Duration::ZERO, 20);
        assert_eq!(first.leaves, 4);
        assert_eq!(first.reasons, ["4 leaves and no more, though the queue asks for 10"]);
    }
}
