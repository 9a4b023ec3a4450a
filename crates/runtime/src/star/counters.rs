//! Counters of the work of a node's workers, as the JSON that Python gets.
//!
//! `python/thalweg/trees/counters.py` has a class of the same name and fields for each struct.
//! `tests/border/workers.json` is an example that both languages check.

use serde::Serialize;
use thalweg_control::Decision;

/// What the workers of a node have done, and what they are doing now.
#[derive(Serialize)]
pub(crate) struct Workers<'a> {
    pub workers: usize,
    pub leaves: usize,
    pub aggregators_created: u64,
    pub created: Created,
    pub reused: Reused,
    pub retired: u64,
    pub decisions: Option<Decisions>,
    pub died: u64,
    pub warm: u64,
    pub commits: u64,
    pub started: Started,
    pub start_us: Percentiles,
    pub resume_us: Percentiles,
    pub handover_us: Percentiles,
    pub fold_us: Percentiles,
    pub cpu_seconds: f64,
    pub hops_cpu_seconds: f64,
    pub pool_bytes: u64,
    pub sums_bytes: u64,
    pub routes: &'static str,
    pub routes_reason: &'a str,
    pub notes: Option<Routed>,
    pub now: Now,
}

/// How many workers were started from the template process, and how many as new programs.
#[derive(Serialize)]
pub(crate) struct Started {
    pub template: u64,
    pub program: u64,
}

/// How many processes were started as leaves, and how many only to add up the leaves' sums.
#[derive(Serialize)]
pub(crate) struct Created {
    pub leaf: u64,
    pub middle: u64,
}

/// How often a leaf took over the work of another role.
#[derive(Serialize)]
pub(crate) struct Reused {
    pub middle: u64,
}

/// How many plans were made while the job ran, and the latest of them, oldest first.
#[derive(Serialize)]
pub(crate) struct Decisions {
    pub count: u64,
    pub latest: Vec<Decision>,
}

/// Percentiles of a time of workers, in microseconds. `None` if nothing was measured.
#[derive(Serialize)]
pub(crate) struct Percentiles {
    pub p50: Option<f64>,
    pub p99: Option<f64>,
}

/// The kernel's counts of the workers' notes that it routed, and that it passed to the node.
#[derive(Serialize)]
pub(crate) struct Routed {
    pub routed: u64,
    pub passed: u64,
    pub bytes: u64,
}

/// What workers are doing at this moment. The histogram's bounds and sum are in microseconds.
#[derive(Serialize)]
pub(crate) struct Now {
    pub folds: u64,
    pub ready: u64,
    pub places: u64,
    pub free: usize,
    pub handover_bounds_us: Vec<f64>,
    pub handover_counts: Vec<u64>,
    pub handover_sum_us: f64,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::border;

    fn decision() -> Decision {
        Decision {
            number: 2,
            at: Duration::from_millis(2500),
            rate: 10.5,
            seconds: 0.25,
            queue: 2.625,
            estimate: 3.5,
            before: 3,
            leaves: 2,
            middle: true,
            reasons: vec!["2 leaves and a middle".into()],
        }
    }

    fn workers(time: Option<f64>, notes: Option<Routed>, decisions: Option<Decisions>) -> Workers<'static> {
        let times = || Percentiles { p50: time, p99: time };
        Workers {
            workers: 2,
            leaves: 2,
            aggregators_created: 3,
            created: Created { leaf: 2, middle: 1 },
            reused: Reused { middle: 4 },
            retired: 1,
            decisions,
            died: 1,
            warm: 4,
            commits: 5,
            started: Started { template: 2, program: 1 },
            start_us: times(),
            resume_us: times(),
            handover_us: times(),
            fold_us: times(),
            cpu_seconds: 1.5,
            hops_cpu_seconds: 0.5,
            pool_bytes: 64,
            sums_bytes: 128,
            routes: "kernel",
            routes_reason: "the kernel can",
            notes,
            now: Now {
                folds: 6,
                ready: 2,
                places: 8,
                free: 7,
                handover_bounds_us: vec![10.0, 25.5],
                handover_counts: vec![1, 0, 2],
                handover_sum_us: 90.5,
            },
        }
    }

    #[test]
    fn the_example_has_each_field() {
        let decisions = Decisions { count: 2, latest: vec![decision()] };
        let filled = workers(Some(12.5), Some(Routed { routed: 9, passed: 1, bytes: 640 }), Some(decisions));
        let unknown = workers(None, None, None);
        border::check("workers", &json!({ "filled": filled, "unknown": unknown }));
    }
}
