//! How long a node waits for its neighbours, from what it has measured.

use std::collections::BTreeMap;

use thalweg_wire::Range;

use crate::Time;

/// What a limit is at least: timers and schedulers are no finer.
const LEAST: Time = Time::from_millis(10);
/// How many times as long as the part that came the rest of an update is taken to need, at most.
const MOST_AHEAD: f64 = 16.0;
/// Own updates whose times are kept, for neighbours' updates that come late.
const KEPT: usize = 64;

/// How much later than the own update a neighbour's is complete: smoothed, with its mean deviation, as RFC 6298 has it for
/// round trips.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lag {
    smoothed: Option<(Time, Time)>,
    /// The latest iteration that was measured.
    measured: u32,
}

impl Lag {
    /// Notes what was measured of an iteration, once.
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

    /// Whether this iteration was measured, or a later one.
    pub fn knows(&self, round: u32) -> bool {
        round <= self.measured
    }

    /// By when it has come almost always.
    fn bound(&self) -> Option<Time> {
        self.smoothed.map(|(mean, deviation)| mean + deviation * 4)
    }
}

/// How far the latest update of a neighbour has come, whether its chunks are used or late.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Course {
    round: u32,
    first: Time,
    last: Time,
    /// Bytes of the first chunk, and the end of the chunk that lies furthest behind: they come in order, roughly.
    opening: u64,
    reach: u64,
}

impl Course {
    /// A chunk of an iteration has come.
    pub fn note(&mut self, now: Time, round: u32, range: Range) {
        if round > self.round {
            *self = Self { round, first: now, last: now, opening: range.len(), reach: range.end };
        } else if round == self.round {
            (self.last, self.reach) = (now, self.reach.max(range.end));
        }
    }

    /// When an update of `total` bytes would have been complete, if its sender had not stopped in the middle. `None` if too
    /// little came to say.
    pub fn complete_at(&self, round: u32, total: u64) -> Option<Time> {
        if round != self.round {
            return None;
        }
        let left = total.saturating_sub(self.reach);
        if left == 0 {
            return Some(self.last);
        }
        let came = self.reach.saturating_sub(self.opening);
        if came == 0 || self.last == self.first {
            return None;
        }
        let times = (left as f64 / came as f64).min(MOST_AHEAD);
        Some(self.last + (self.last - self.first).mul_f64(times))
    }
}

/// The own updates: when each was ready, and how long an iteration takes without waiting.
#[derive(Debug, Default)]
pub(super) struct Pace {
    ready: BTreeMap<u32, Time>,
    own: Option<Time>,
}

impl Pace {
    /// An own update is ready, which took so long.
    pub fn ready(&mut self, now: Time, round: u32, took: Time) {
        self.own = Some(self.own.map_or(took, |own| (own * 3 + took) / 4));
        self.ready.insert(round, now);
        while self.ready.len() > KEPT {
            self.ready.pop_first();
        }
    }

    /// How much later than the own update something came at `now`.
    pub fn lag(&self, now: Time, round: u32) -> Option<Time> {
        self.ready.get(&round).map(|&ready| now.saturating_sub(ready))
    }

    /// How long to wait after the own update: until all have come almost always, but no longer than twice what half of them
    /// take, and one own iteration. Half of them coming almost always is waited for in any case: where lags vary much and
    /// training takes no time, twice their mean would cut off what is only unlucky. `None` as long as nothing was measured.
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
