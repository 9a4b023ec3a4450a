//! How a flow competes with other flows that fill the queue. A flow that keeps the queue short would get next
//! to nothing beside them. So if the queue stays long although this flow reduces its window, the flow
//! competes as they do. Copa has the same two modes (NSDI 2018, section 2.2).
//!
//! In this mode the window grows by Cubic's curve (RFC 9438) from one congestion event to the next. Loss
//! alone is no congestion event, since paths lose packets anyway. It is an event if the queue becomes
//! shorter, since another flow has then reduced its window. It is also an event if more packets are lost than
//! the path usually loses. After each event the flow yields for two round trips: its window is less than the
//! path carries. If the queue then drains, the other flows have ended or were flows like this one. The flow
//! then keeps the queue short again.

use super::Sample;
use crate::Time;

/// A queue that is this many times as long as the target shows another flow, if it stays so for this many
/// round trips.
const CROWDED: f64 = 1.5;
const IN_VAIN: f64 = 6.0;
/// Multiplicative decrease after an event, and growth constant (beta_cubic and C of RFC 9438, section 4.1).
const LEFT: f64 = 0.7;
const GROWTH: f64 = 0.4;
/// Growth per round trip until the first event, as a fraction of the window.
const FIRST: f64 = 1.0 / 16.0;
/// The queue has fallen if it is below this fraction of its maximum.
const FALLEN: f64 = 0.85;
/// A loss rate this far above the path's usual one shows that the queue is full.
const LOST: f64 = 0.01;
/// Smoothing factor of the queue, per decision.
const SMOOTH: f64 = 0.25;
/// A queue shorter than this many times the target counts as drained.
const DRY: f64 = 0.25;
/// Window while yielding, as a fraction of the bytes that a round trip without a queue carries.
const YIELDS: f64 = 0.9;
/// No event counts for this many round trips after the flow has started to compete or has yielded.
const SETTLES: f64 = 2.0;
/// After this many round trips without an event, the flow yields anyway, to see whether other flows are left.
const LONGEST: f64 = 50.0;
/// Least growth in segments per round trip.
const FRIENDLY: f64 = 1.0;

/// Input of a decision, besides the sample. Times are in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    pub queue: f64,
    pub aim: f64,
    /// The longest target in the group.
    pub longest: f64,
    pub rtt: f64,
    /// Current RTT, including queuing delay.
    pub trip: f64,
    /// The window in bytes.
    pub window: f64,
    /// Delivery rate in bytes a second.
    pub rate: f64,
    /// Whether this flow uses its window.
    pub uses: bool,
    /// Bytes delivered and lost in the last round trip.
    pub delivered: f64,
    pub lost: f64,
    /// Usual loss rate of the path.
    pub usual: f64,
}

/// This flow's knowledge about other flows in the queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Rival {
    /// Since when the queue has been long although this flow reduces its window, and the window at that time.
    crowded: Option<(Time, f64)>,
    contest: Option<Contest>,
    /// The window at the last event.
    most: Option<f64>,
}

/// State since the last congestion event.
#[derive(Debug, Clone, Copy)]
struct Contest {
    since: Time,
    from: f64,
    /// The smoothed queue, and its maximum.
    queue: f64,
    longest: f64,
    /// Until when the flow yields, to see whether the queue drains.
    yields: Option<Time>,
}

impl Rival {
    /// Whether other flows fill the queue, so that this flow competes.
    pub fn is_there(&self) -> bool {
        self.contest.is_some()
    }

    /// The window for competing with other flows that fill the queue; `None` while this flow need not
    /// compete.
    pub fn window(&mut self, sample: &Sample, seen: &Observation) -> Option<f64> {
        let now = sample.now;
        let trip = seen.trip;
        let lost = seen.lost / (seen.delivered + seen.lost).max(1.0);
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

    /// Starts to compete if the queue has stayed long although this flow reduced its window.
    fn begins(&mut self, now: Time, trip: f64, seen: &Observation) -> Option<Contest> {
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
