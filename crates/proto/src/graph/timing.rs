//! How long a node waits for its neighbours, computed from measured lags.

use std::collections::BTreeMap;

use thalweg_wire::Range;

use crate::Time;

/// Shortest limit: timers and schedulers are no finer.
const LEAST: Time = Time::from_millis(10);
/// Limit of the extrapolation: the rest of an update takes at most this many times as long as the part that
/// arrived.
const MOST_AHEAD: f64 = 16.0;
/// The times of this many own updates are kept, to measure neighbours' updates that arrive late.
const KEPT: usize = 64;

/// How much later than the node's own update a neighbour's update is complete. Holds a smoothed mean and mean
/// deviation, as RFC 6298 (section 2) computes them for RTTs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lag {
    /// The smoothed mean and the mean deviation.
    smoothed: Option<(Time, Time)>,
    /// The latest iteration that was measured.
    measured: u32,
}

impl Lag {
    /// Adds the lag of an iteration. Only the first call for an iteration counts.
    pub fn note(&mut self, round: u32, lag: Time) {
        if round <= self.measured {
            return;
        }
        self.measured = round;
        self.smoothed = Some(match self.smoothed {
            None => (lag, lag / 2),
            Some((mean, deviation)) => {
                let off = mean.abs_diff(lag);
                ((mean * 7 + lag) / 8, (deviation * 3 + off) / 4)
            }
        });
    }

    pub fn mean(&self) -> Option<Time> {
        self.smoothed.map(|(mean, _)| mean)
    }

    /// Whether this iteration, or a later one, was measured.
    pub fn knows(&self, round: u32) -> bool {
        round <= self.measured
    }

    /// The lag that is almost never exceeded: mean plus four deviations, as for the RTO of RFC 6298.
    fn bound(&self) -> Option<Time> {
        self.smoothed.map(|(mean, deviation)| mean + deviation * 4)
    }
}

/// How much of a neighbour's latest update has arrived, whether its chunks are used or late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Course {
    round: u32,
    /// When the first chunk arrived.
    first: Time,
    /// When the latest chunk arrived.
    last: Time,
    /// Bytes of the first chunk.
    opening: u64,
    /// The highest end of a chunk. Chunks arrive roughly in order.
    reach: u64,
}

impl Course {
    /// Notes that a chunk of an iteration has arrived. `range` is its position among the bytes that are sent.
    pub fn note(&mut self, now: Time, round: u32, range: Range) {
        if round > self.round {
            *self = Self { round, first: now, last: now, opening: range.len(), reach: range.end };
        } else if round == self.round {
            (self.last, self.reach) = (now, self.reach.max(range.end));
        }
    }

    /// When an update of `total` bytes would have been complete, if its sender had not stopped in the middle.
    /// `None` if too few chunks arrived to tell.
    pub fn complete_at(&self, round: u32, total: u64) -> Option<Time> {
        if round != self.round {
            return None;
        }
        let left = total.saturating_sub(self.reach);
        if left == 0 {
            return Some(self.last);
        }
        let received = self.reach.saturating_sub(self.opening);
        if received == 0 || self.last == self.first {
            return None;
        }
        let times = (left as f64 / received as f64).min(MOST_AHEAD);
        Some(self.last + (self.last - self.first).mul_f64(times))
    }
}

/// When each own update was ready, and how long an iteration takes without waiting.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the node's own update of an iteration was ready.
    ready: BTreeMap<u32, Time>,
    /// Smoothed time from the start of an iteration until the node's own update is ready.
    own: Option<Time>,
}

impl Pace {
    /// Notes that the node's own update of `round` is ready. It took `took` from the iteration's start.
    pub fn ready(&mut self, now: Time, round: u32, took: Time) {
        self.own = Some(self.own.map_or(took, |own| (own * 3 + took) / 4));
        self.ready.insert(round, now);
        while self.ready.len() > KEPT {
            self.ready.pop_first();
        }
    }

    /// How much later than the node's own update of `round` the time `now` is. `None` if that update is not
    /// ready, or is forgotten.
    pub fn lag(&self, now: Time, round: u32) -> Option<Time> {
        self.ready.get(&round).map(|&ready| now.saturating_sub(ready))
    }

    /// How long to wait after the node's own update. The wait covers all neighbours almost always (the
    /// largest bound), up to a cap. The cap is twice the median lag plus one iteration of the node itself, so
    /// that one slow neighbour cannot hold up the node. The cap is at least the median bound plus one
    /// iteration of the node itself. Otherwise, where lags vary much and training is short, it would cut off
    /// ordinary outliers. `None` if nothing was measured.
    pub fn limit<'a>(&self, lags: impl Iterator<Item = &'a Lag>) -> Option<Time> {
        let known: Vec<(Time, Time)> = lags.filter_map(|lag| Some((lag.mean()?, lag.bound()?))).collect();
        let most = known.iter().map(|(_, bound)| *bound).max()?;
        let half = |mut times: Vec<Time>| {
            times.sort_unstable();
            times[(times.len() - 1) / 2]
        };
        let mean = half(known.iter().map(|(mean, _)| *mean).collect());
        let bound = half(known.iter().map(|(_, bound)| *bound).collect());
        let cap = bound.max(mean * 2) + self.own.unwrap_or_default();
        Some(most.min(cap).max(LEAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = Time::from_millis(1);

    fn lag(of: Time) -> Lag {
        let mut lag = Lag::default();
        (1..=40).for_each(|round| lag.note(round, of));
        lag
    }

    #[test]
    fn a_slow_neighbour_costs_at_most_one_more_iteration() {
        let mut pace = Pace::default();
        pace.ready(100 * MS, 1, 100 * MS);
        let (fast, slow) = (lag(20 * MS), lag(2000 * MS));
        let limit = pace.limit([&fast, &fast, &slow].into_iter()).unwrap();
        assert_eq!(limit, 140 * MS, "twice the median, and an own iteration");
        let limit = pace.limit([&fast, &fast].into_iter()).unwrap();
        assert!(limit >= 20 * MS && limit < 25 * MS, "{limit:?}");
    }

    #[test]
    fn nothing_measured_is_no_limit() {
        assert_eq!(Pace::default().limit([&Lag::default()].into_iter()), None);
    }

    #[test]
    fn an_iteration_is_measured_once() {
        let mut lag = Lag::default();
        lag.note(3, 10 * MS);
        lag.note(3, 900 * MS);
        lag.note(2, 900 * MS);
        assert_eq!(lag.mean(), Some(10 * MS));
    }

    #[test]
    fn an_update_that_was_cut_short_is_measured_as_if_whole() {
        let mut course = Course::default();
        for n in 0..5 {
            course.note((10 + n) * MS, 1, Range::new(u64::from(n) * 10, u64::from(n) * 10 + 10));
        }
        assert_eq!(course.complete_at(1, 50), Some(14 * MS));
        assert_eq!(course.complete_at(1, 100), Some(19 * MS), "a millisecond for ten bytes");
        assert_eq!(course.complete_at(2, 100), None);
        course.note(20 * MS, 2, Range::new(0, 10));
        assert_eq!(course.complete_at(2, 100), None, "one chunk does not say how fast they come");
        course.note(30 * MS, 1, Range::new(90, 100));
        assert_eq!(course.complete_at(1, 100), None, "only the latest is followed");
    }

    #[test]
    fn few_own_updates_are_remembered() {
        let mut pace = Pace::default();
        (1..1000).for_each(|round| pace.ready(round * MS, round, MS));
        assert_eq!(pace.ready.len(), KEPT);
        assert_eq!(pace.lag(1000 * MS, 998), Some(2 * MS));
        assert_eq!(pace.lag(1000 * MS, 1), None);
    }
}
