//! Beside senders that fill a queue, who keeps it short gets next to nothing. So where the queue stays although this flow
//! gives way, it takes its part as they do (Copa, NSDI 2018, section 2.2, has the same two modes).
//!
//! Then the window grows by Cubic's curve (RFC 9438) from one time to the next that the queue has been too full. A loss does
//! not tell when that is, since paths lose packets anyway: it is when the queue falls, because somebody else has given way, or
//! when more is lost than the path loses. Each such time the flow gives way for two round trips to less than the path
//! carries: if the queue runs dry, the others are gone, or were flows like this one, and the queue is kept short again.

use super::Sample;
use crate::Time;

/// The queue, in aims, that shows that somebody else fills it, once it has been there for so many round trips.
const CROWDED: f64 = 1.5;
const IN_VAIN: f64 = 6.0;
/// What is left of a window after the queue was too full, and how fast it grows anew (RFC 9438: beta and C).
const LEFT: f64 = 0.7;
const GROWTH: f64 = 0.4;
/// Share of the window that it grows by in a round trip until the queue has been too full for the first time.
const FIRST: f64 = 1.0 / 16.0;
/// Share of the longest queue that is left when somebody else has given way.
const FALLEN: f64 = 0.85;
/// Share of the bytes of a round trip, above what is usual, that is lost where the queue is full.
const LOST: f64 = 0.01;
/// How fast the queue is followed, for each decision.
const SMOOTH: f64 = 0.25;
/// The queue, in aims, that is none.
const DRY: f64 = 0.25;
/// Share of what a round trip carries, without its queue, that the window is while it yields.
const YIELDS: f64 = 0.9;
/// Round trips until a contest shows in the queue.
const SETTLES: f64 = 2.0;
/// Round trips after which it is seen anew whether there is anybody.
const LONGEST: f64 = 50.0;
/// Segments that the window grows by in a round trip at least.
const FRIENDLY: f64 = 1.0;

/// What a decision is made of, beside the sample: times in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub queue: f64,
    pub aim: f64,
    /// The longest queue that one of its group aims at.
    pub longest: f64,
    pub rtt: f64,
    /// A round trip with its queues, as it is.
    pub trip: f64,
    /// The window in bytes.
    pub window: f64,
    /// Bytes a second that come.
    pub rate: f64,
    /// Whether this flow uses the window.
    pub uses: bool,
    /// Bytes that came, and were lost, in the last round trip.
    pub came: f64,
    pub gone: f64,
    /// Share of the bytes that the path loses.
    pub usual: f64,
}

/// What is known of those who fill the queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Rival {
    /// Since when this flow gives way in vain, and its window then.
    crowded: Option<(Time, f64)>,
    contest: Option<Contest>,
    /// The window when the queue was last too full.
    most: Option<f64>,
}

/// Since the last time that the queue was too full.
#[derive(Debug, Clone, Copy)]
struct Contest {
    since: Time,
    from: f64,
    /// The queue, without the noise of bursts, and the longest that it has been.
    queue: f64,
    longest: f64,
    /// It gives way until then, to see whether the queue runs dry.
    yields: Option<Time>,
}

impl Rival {
    /// Whether somebody else fills the queue.
    pub fn is_there(&self) -> bool {
        self.contest.is_some()
    }

    /// The window by this rule; `None` while the queue can be kept short.
    pub fn window(&mut self, sample: &Sample, seen: &Seen) -> Option<f64> {
        let now = sample.now;
        let trip = seen.trip;
        let lost = seen.gone / (seen.came + seen.gone).max(1.0);
        let Some(mut contest) = self.contest else {
            self.contest = self.begins(now, trip, seen);
            return self.contest.map(|contest| contest.from);
        };
        contest.queue += SMOOTH * (seen.queue - contest.queue);
        let dry = seen.queue < DRY * seen.aim;
        if let Some(until) = contest.yields {
            if dry {
                self.contest = None;
                return None;
            }
            if now < until {
                self.contest = Some(contest);
                return Some(YIELDS * seen.rate * seen.rtt);
            }
            contest = Contest { since: now, yields: None, longest: contest.queue, ..contest };
        }
        contest.longest = contest.longest.max(contest.queue);
        let took = now.saturating_sub(contest.since).as_secs_f64();
        let fallen = contest.queue < FALLEN * contest.longest;
        let full = lost > seen.usual + LOST && !fallen;
        let long = took > LONGEST * trip;
        if (fallen || full || long) && took > SETTLES * trip {
            self.most = Some(seen.window);
            contest.from = LEFT * seen.window;
            contest.yields = Some(now + Time::from_secs_f64(2.0 * trip));
        }
        self.contest = Some(contest);
        Some(self.grown(&contest, took, trip, f64::from(sample.segment.max(1))))
    }

    /// Whether the queue has stayed for long although this flow gave way.
    fn begins(&mut self, now: Time, trip: f64, seen: &Seen) -> Option<Contest> {
        if !seen.uses || seen.queue < CROWDED * seen.longest {
            self.crowded = None;
            return None;
        }
        let (since, from) = *self.crowded.get_or_insert((now, seen.window));
        if now.saturating_sub(since).as_secs_f64() < IN_VAIN * trip {
            return None;
        }
        self.crowded = None;
        Some(Contest {
            since: now,
            from: seen.window.max(LEFT * from),
            queue: seen.queue,
            longest: seen.queue,
            yields: None,
        })
    }

    fn grown(&self, contest: &Contest, took: f64, trip: f64, segment: f64) -> f64 {
        let Some(most) = self.most else { return contest.from * (1.0 + FIRST).powf(took / trip) };
        let origin = ((most - contest.from).max(0.0) / (GROWTH * segment)).cbrt();
        let curve = most + GROWTH * segment * (took - origin).powi(3);
        curve.max(contest.from + FRIENDLY * segment * took / trip)
    }
}
