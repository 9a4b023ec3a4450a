//! A threshold autoscaler like Knative's, for the systems that LIFL is compared with. It sees how many
//! requests are under way, but nothing of the hierarchy.
//!
//! Rules and numbers are those of Knative Serving's default autoscaler (KPA). The stable window is 60 s. The
//! panic window is 6 s; it takes over once it needs twice the ready instances. An instance should have 70 %
//! of the requests that it may have. Decisions are made every 2 s. The last instance ends 30 s after the
//! stable window has no requests any more.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Time;

/// The autoscaler's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    /// Time between decisions.
    #[serde(with = "crate::seconds")]
    pub tick: Duration,
    /// Length of the stable window.
    #[serde(with = "crate::seconds")]
    pub stable: Duration,
    /// Length of the panic window.
    #[serde(with = "crate::seconds")]
    pub panic: Duration,
    /// A panic begins when the panic window needs this percentage of the ready instances.
    pub threshold: u32,
    /// Percentage of `concurrency` that an instance should have under way.
    pub target: u32,
    /// Maximum number of requests that an instance may have under way.
    pub concurrency: u32,
    /// How long the last instance stays once the stable window has no requests.
    #[serde(with = "crate::seconds")]
    pub grace: Duration,
}

impl Default for Knobs {
    fn default() -> Self {
        let at = Duration::from_secs;
        let (tick, stable, panic, grace) = (at(2), at(60), at(6), at(30));
        Self { tick, stable, panic, threshold: 200, target: 70, concurrency: 2, grace }
    }
}

/// Reason for the number of instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Why {
    /// The average over the stable window needs them.
    Stable,
    /// A request arrived while there was no instance.
    FromZero,
    /// The panic window needs so many more that they start at once. No instance ends during a panic.
    Panic,
    /// The stable window had no requests. The last instance stays for the grace period.
    Grace,
    /// The grace period has passed without requests.
    Idle,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stable => "the average over the stable window needs them",
            Self::FromZero => "an update arrived while there was no worker",
            Self::Panic => {
                "a panic: the last seconds need so many more that they start at once, and none ends"
            }
            Self::Grace => "no updates in the stable window, and the last worker stays for its grace",
            Self::Idle => "no updates, and the grace of the last worker is over",
        })
    }
}

/// The autoscaler of one function: it counts the requests under way and decides the number of instances.
#[derive(Debug)]
pub struct Autoscaler {
    knobs: Knobs,
    /// Number of requests under way from each time on.
    steps: VecDeque<(Time, u32)>,
    /// The current panic: when it began or was renewed, and the most instances that it needed.
    panicking: Option<(Time, u32)>,
    idle_since: Option<Time>,
}

impl Autoscaler {
    /// An autoscaler for a function without requests so far.
    pub fn new(knobs: Knobs) -> Self {
        Self { knobs, steps: VecDeque::from([(Time::ZERO, 0)]), panicking: None, idle_since: None }
    }

    /// Records that `under_way` requests are under way from `now` on. `now` must not go back.
    pub fn observe(&mut self, now: Time, under_way: u32) {
        let start = now.saturating_sub(self.knobs.stable);
        // Keep one step before the window: it has the number at the window's start.
        while self.steps.get(1).is_some_and(|&(at, _)| at <= start) {
            self.steps.pop_front();
        }
        self.steps.push_back((now, under_way));
    }

    /// Returns the number of instances that are needed, and the reason. `ready` is the number that exists.
    pub fn decide(&mut self, now: Time, ready: u32) -> (u32, Why) {
        let (stable, short) = (self.wanted(now, self.knobs.stable), self.wanted(now, self.knobs.panic));
        let current = self.instances(u128::from(self.steps.back().map_or(0, |&(_, under_way)| under_way)), 1);
        if ready == 0 && current > 0 {
            self.idle_since = None;
            return (current, Why::FromZero);
        }
        if u64::from(short) * 100 >= u64::from(self.knobs.threshold) * u64::from(ready.max(1)) {
            let most = self.panicking.map_or(0, |(_, most)| most);
            self.panicking = Some((now, most.max(short).max(ready)));
        } else if self.panicking.is_some_and(|(since, _)| now.saturating_sub(since) >= self.knobs.stable) {
            self.panicking = None;
        }
        if let Some((_, most)) = self.panicking {
            return (most, Why::Panic);
        }
        if stable > 0 {
            self.idle_since = None;
            return (stable, Why::Stable);
        }
        let since = *self.idle_since.get_or_insert(now);
        match ready > 0 && now.saturating_sub(since) < self.knobs.grace {
            true => (1, Why::Grace),
            false => (0, Why::Idle),
        }
    }

    /// Average number of requests under way in the stable window.
    pub fn average(&self, now: Time) -> f64 {
        let (area, time) = self.under_way(now, self.knobs.stable);
        area as f64 / time as f64
    }

    /// Instances that a window's average needs.
    fn wanted(&self, now: Time, window: Duration) -> u32 {
        let (area, time) = self.under_way(now, window);
        self.instances(area, time)
    }

    /// The integral of the requests in flight over a window, in requests times nanoseconds, and the window's
    /// length. Their quotient is the average.
    fn under_way(&self, now: Time, window: Duration) -> (u128, u128) {
        let start = now.saturating_sub(window);
        let ends = self.steps.iter().skip(1).map(|&(at, _)| at).chain([now]);
        let area = self.steps.iter().zip(ends).map(|(&(at, under_way), end)| {
            u128::from(under_way) * end.min(now).saturating_sub(at.max(start)).as_nanos()
        });
        // Like Knative, average only over the time since the autoscaler's start, if the window is longer.
        (area.sum(), window.min(now).as_nanos().max(1))
    }

    /// ceil(area / time / (target * concurrency)).
    fn instances(&self, area: u128, time: u128) -> u32 {
        let each = u128::from(self.knobs.target.max(1)) * u128::from(self.knobs.concurrency.max(1));
        u32::try_from((area * 100).div_ceil(each * time)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_request_starts_instances_at_once() {
        let mut scaler = Autoscaler::new(Knobs::default());
        assert_eq!(scaler.decide(at(10), 0), (0, Why::Idle));
        scaler.observe(at(10), 4);
        assert_eq!(scaler.decide(at(10), 0), (3, Why::FromZero), "ceil(4 / (0.7 * 2))");
    }

    #[test]
    fn a_burst_is_a_panic_in_which_nothing_ends() {
        let mut scaler = Autoscaler::new(Knobs::default());
        scaler.observe(at(100), 2);
        assert_eq!(scaler.decide(at(160), 2), (2, Why::Stable), "2 / 1.4, rounded up");
        scaler.observe(at(160), 14);
        assert_eq!(scaler.decide(at(166), 2), (10, Why::Panic), "14 for 6 s");
        scaler.observe(at(166), 0);
        assert_eq!(scaler.decide(at(200), 10), (10, Why::Panic));
        assert_eq!(
            scaler.decide(at(226), 10).1,
            Why::Grace,
            "60 s after the burst, with nothing left in the window"
        );
    }

    #[test]
    fn a_rise_shows_in_the_stable_window_only_bit_by_bit() {
        let mut scaler = Autoscaler::new(Knobs::default());
        scaler.observe(at(0), 14);
        scaler.observe(at(600), 21);
        assert_eq!(scaler.decide(at(602), 10).0, 11, "(58 * 14 + 2 * 21) / 60 / 1.4");
        assert_eq!(scaler.average(at(660)), 21.0);
        assert_eq!(scaler.decide(at(660), 11).0, 15);
    }

    #[test]
    fn the_last_instance_ends_after_its_grace() {
        let mut scaler = Autoscaler::new(Knobs::default());
        scaler.observe(at(0), 1);
        scaler.observe(at(10), 0);
        assert_eq!(scaler.decide(at(60), 1), (1, Why::Stable));
        assert_eq!(scaler.decide(at(70), 1), (1, Why::Grace));
        assert_eq!(scaler.decide(at(99), 1), (1, Why::Grace));
        assert_eq!(scaler.decide(at(100), 1), (0, Why::Idle));
    }

    #[test]
    fn what_is_older_than_the_window_is_forgotten() {
        let mut scaler = Autoscaler::new(Knobs::default());
        (0..10_000).for_each(|second| scaler.observe(at(second), 1));
        assert!(scaler.steps.len() <= 62);
    }
}
