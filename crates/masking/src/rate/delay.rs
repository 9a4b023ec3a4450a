//! The default rate controller. It keeps enough bytes in flight to fill the path, and the queue short.
//!
//! Every quarter of a round trip (a tick) the controller takes three values. The delivery rate is the maximum
//! of the last two round trips, as in BBR's bandwidth filter. The second is the minimum RTT. The queuing
//! delay is the least one-way delay in the tick, less the base delay.
//!
//! The window starts at 64 segments. Until a queue shows, it is twice the bytes that arrived in the last
//! round trip. After that the controller steers the queuing delay towards a target of about 8 ms. It steers
//! by the predicted delay, since a change takes effect one round trip later. The base delay and the minimum
//! RTT expire after 30 to 60 s, since clocks and routes drift. Every ten seconds the controller drains the
//! queue to measure both again, as in BBR's ProbeRTT. If the delay shows nothing, heavy loss or ECN marks
//! (RFC 3168) limit the window.
//!
//! A sender in slow start sends bursts with pauses between them. Many bursts are shorter than a tick. So the
//! controller updates the bytes of the last round trip at each arrival, and does not add up ticks. Behind a
//! queue, the window is less than twice those bytes. Otherwise the last burst would fill a queue as long as
//! the path.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::buffer::BufferDepth;
use super::rival::{Observation, Rival};
use super::{Control, GroupRate, Least, Sample};
use crate::Time;

/// Ticks for which delivery rates are remembered: two round trips.
const TICKS: usize = 8;
/// Ticks in a round trip.
const QUARTERS: usize = 4;
/// Minimum number of segments in a round trip for which a loss rate is computed.
const ENOUGH: f64 = 64.0;
/// The controller remembers arrivals at this many points of a round trip.
const MARKS: f64 = 32.0;
/// After a silence of this many seconds plus a round trip, a sender is in slow start again. The value is
/// Linux's minimum RTO.
const SILENCE: f64 = 0.2;
/// A queue below this fraction of the target counts as empty.
const SHORT: f64 = 0.25;
/// Proportional gain per tick, and the largest change of the window in a tick.
const GAIN: f64 = 0.4;
const STEP: f64 = 0.08;
/// Fraction by which an ECN mark reduces the window.
const MARKED: f64 = 0.05;
/// How strongly the target rises if the flow is slower than its group's mean, or falls if it is faster; and
/// the bounds of that factor.
const LEAN: f64 = 2.0;
const LEANS: RangeInclusive<f64> = 0.5..=2.0;
/// At this rate (bytes a second) and above, the target is as configured. For slower flows it rises by this
/// power, to at most twice the configured value. So of two flows that are in no common group, the slower one
/// gets more (as in Swift, SIGCOMM 2020, section 3.1).
const FAIR: f64 = 12.5e6;
const FAIRNESS: f64 = 0.25;
/// While no queue shows, the window may grow by this fraction of a round trip.
const ROOM: f64 = 0.25;
/// How often the controller drains the queue, for how many ticks, and with which window (as a fraction of the
/// bytes that a round trip carries).
const DRY: Time = Time::from_secs(10);
const DRY_TICKS: u32 = 3;
const DRIED: f64 = 0.75;
/// A flow uses its window if at least this fraction of it is in flight.
const IN_USE: f64 = 0.5;

/// Settings of the delay controller.
#[derive(Debug, Clone)]
pub struct DelaySettings {
    /// Target queuing delay.
    pub queue: Time,
    /// Initial window in segments.
    pub initial: u32,
    /// Smallest window in segments.
    pub least: u32,
    /// Window during the start, as a multiple of the bytes that the last round trip delivered.
    pub gain: f64,
    /// Window during the start while a queue shows, as a multiple of the same bytes. It is less than `gain`,
    /// since bursts build short queues before the path is full.
    pub crowded: f64,
    /// Shortest time between two decisions.
    pub tick: Time,
    /// The base delay and the minimum RTT expire after one to two times this period.
    pub base: Time,
    /// Above this loss rate in a round trip, the window shrinks to three quarters of the bytes that the path
    /// carries.
    pub loss: f64,
}

impl Default for DelaySettings {
    fn default() -> Self {
        Self {
            queue: Time::from_millis(8),
            initial: 64,
            least: 16,
            gain: 2.0,
            crowded: 1.6,
            tick: Time::from_millis(5),
            base: Time::from_secs(30),
            loss: 0.2,
        }
    }
}

/// The delay controller.
#[derive(Debug, Clone)]
pub struct Delay {
    settings: DelaySettings,
    window: f64,
    least: f64,
    most: f64,
    starting: bool,
    /// Whether the sender is in slow start: it is new, or sends again after a silence.
    ramping: bool,
    rtt: Least,
    base: Least,
    /// The least one-way delay and the least RTT, in seconds: since the last tick, and in the previous tick.
    way: f64,
    trip: f64,
    before: (f64, f64),
    marked: bool,
    last: Option<Time>,
    last_arrival: Option<Time>,
    /// Time, bytes delivered and bytes lost at past arrivals; newest last. The first entry is at least one
    /// round trip old, once there is one.
    past: VecDeque<(Time, u64, u64)>,
    rates: [f64; TICKS],
    turn: usize,
    /// Target queuing delay in seconds.
    aimed: f64,
    /// Number of successive ticks with a delay above the target.
    over: u32,
    /// Advertised windows, newest last. The sender sent the data that arrives now when the first of them was
    /// in effect.
    windows: VecDeque<(Time, u64)>,
    /// Draining: index of the current ten-second period, the number of ticks left to drain, and the window
    /// while draining.
    dried: Option<u128>,
    dry: u32,
    low: f64,
    rival: Rival,
    buffer: BufferDepth,
    burst: Burst,
}

/// With at least this many segments in a round trip, a burst can be distinguished from pacing. It is a burst
/// if it is this many times faster than the mean rate. BBR paces its start at 2.89 times the delivery rate.
const MANY: f64 = 64.0;
const FASTER: f64 = 6.0;

/// The fastest burst so far. A sender in slow start fills the path late, but its bursts show the path's rate
/// early.
#[derive(Debug, Clone, Default)]
struct Burst {
    /// When the current part began, and the number of bytes that were delivered by then.
    since: Time,
    from: u64,
    /// Bytes a second.
    rate: f64,
    /// Whether a burst was much faster than the mean rate of its round trip. Then the sender does not pace,
    /// as BBR would.
    alone: bool,
}

impl Burst {
    /// Updates the rate of the fastest burst. Time is divided into parts of an eighth of a round trip. The
    /// rate is the bytes delivered in the current part, divided by the time since it began. That time counts
    /// as at least a sixteenth of a round trip, so that two packets close together do not look like a burst.
    fn arrived(&mut self, sample: &Sample, rtt: f64, carried: f64) {
        let took = sample.now.saturating_sub(self.since).as_secs_f64();
        let rate = sample.delivered.saturating_sub(self.from) as f64 / took.max(rtt / 16.0);
        if took > rtt / 8.0 {
            (self.since, self.from) = (sample.now, sample.delivered);
        } else {
            self.rate = self.rate.max(rate);
        }
        self.alone |= carried >= MANY * f64::from(sample.segment) && self.rate * rtt >= FASTER * carried;
    }
}

impl Delay {
    /// Creates the controller for a flow whose handshake took `rtt`.
    pub fn new(settings: DelaySettings, most: u64, segment: u32, rtt: Option<Time>) -> Self {
        let segments = |count: u32| f64::from(count) * f64::from(segment);
        let mut least = Least::new(settings.base);
        // One-way delays are relative to the delay of the SYN, so 0 is the first value.
        let mut base = Least::new(settings.base);
        base.add(Time::ZERO, 0.0);
        if let Some(rtt) = rtt {
            least.add(Time::ZERO, rtt.as_secs_f64());
        }
        Self {
            window: segments(settings.initial).min(most as f64),
            least: segments(settings.least).min(most as f64),
            most: most as f64,
            starting: true,
            ramping: true,
            rtt: least,
            base,
            way: f64::INFINITY,
            trip: f64::INFINITY,
            before: (f64::INFINITY, f64::INFINITY),
            marked: false,
            last: None,
            last_arrival: None,
            past: VecDeque::new(),
            rates: [0.0; TICKS],
            turn: 0,
            aimed: 0.0,
            over: 0,
            windows: VecDeque::new(),
            dried: None,
            dry: 0,
            low: 0.0,
            rival: Rival::default(),
            buffer: BufferDepth::default(),
            burst: Burst::default(),
            settings,
        }
    }

    /// Updates the base delay and the minimum RTT. Of two successive ticks, the greater value counts. A
    /// packet that overtook a burst shows too short a delay, but only in one tick.
    fn learn(&mut self, now: Time) {
        if self.rival.is_there() {
            // Other flows keep the queue filled, so no new minimum can be measured. Keep the old ones.
            self.base.hold(now);
            self.rtt.hold(now);
        }
        let (way, trip) = self.before;
        for (base, before, latest) in [(&mut self.base, way, self.way), (&mut self.rtt, trip, self.trip)] {
            let seen = if before.is_finite() { before.max(latest) } else { latest };
            if seen.is_finite() {
                base.add(now, seen);
            }
        }
    }

    /// Queuing delay in seconds since the last tick, from one-way delays or else from RTTs.
    fn queue(&self, rtt: f64) -> Option<f64> {
        let way = self.base.get().filter(|_| self.way.is_finite()).map(|base| self.way - base);
        way.or(self.trip.is_finite().then_some(self.trip - rtt))
    }

    /// The window during the start, as a multiple of the bytes that the last round trip delivered.
    fn gain(&self, sample: &Sample, rtt: f64) -> f64 {
        let way = sample.one_way.zip(self.base.get()).map(|(way, base)| way - base);
        let queue = way.or(sample.rtt.map(|trip| trip.as_secs_f64() - rtt));
        let short = self.settings.queue.as_secs_f64() * SHORT;
        if queue.is_some_and(|queue| queue > short) {
            self.settings.crowded
        } else {
            self.settings.gain
        }
    }

    /// Remembers arrivals of the last round trip.
    fn remember(&mut self, sample: &Sample, rtt: f64) {
        let step = rtt / MARKS;
        let ago = |at: Time| sample.now.saturating_sub(at).as_secs_f64();
        if self.past.back().is_none_or(|&(at, ..)| ago(at) >= step) {
            self.past.push_back((sample.now, sample.delivered, sample.lost));
        }
        while self.past.get(1).is_some_and(|&(at, ..)| ago(at) >= rtt) {
            self.past.pop_front();
        }
    }

    /// The interval since about one round trip ago: seconds, bytes delivered, bytes lost.
    fn carried(&self, sample: &Sample) -> (f64, f64, f64) {
        let (at, delivered, lost) =
            self.past.front().copied().unwrap_or((sample.now, sample.delivered, sample.lost));
        let took = sample.now.saturating_sub(at).as_secs_f64();
        (took, sample.delivered.saturating_sub(delivered) as f64, sample.lost.saturating_sub(lost) as f64)
    }

    /// Detects that the sender sends again after a silence. Earlier arrivals then say nothing about the
    /// current rate.
    fn rested(&mut self, sample: &Sample, rtt: f64) {
        let silent = self
            .last_arrival
            .replace(sample.now)
            .is_some_and(|at| sample.now.saturating_sub(at).as_secs_f64() > SILENCE + rtt);
        if silent {
            self.ramping = true;
            self.past.clear();
            self.over = 0;
        }
    }

    /// Delivery rate in bytes a second: the maximum of the last two round trips.
    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    fn decide(&mut self, sample: &Sample, rtt: f64) {
        let queue = self.queue(rtt);
        let (took, delivered, lost) = self.carried(sample);
        if took < rtt / 2.0 {
            return;
        }
        self.rates[self.turn % TICKS] = delivered / took.max(rtt);
        self.turn += 1;
        let rate = self.rate();
        let aim = self.aim(rate, sample.share);
        self.aimed = aim;
        let full = rate * (rtt + aim);
        // A flow that uses little of its window has not caused the queue.
        let limit = if self.starting { self.window / self.settings.gain } else { self.window.min(full) };
        let uses = delivered >= IN_USE * limit;
        self.over = if uses && (queue.is_some_and(|q| q > aim) || self.marked) { self.over + 1 } else { 0 };
        let segments = |bytes: f64| bytes / f64::from(sample.segment.max(1));
        if let Some(queue) = queue.filter(|_| !self.starting) {
            self.buffer.see(
                queue,
                queue < SHORT * self.settings.queue.as_secs_f64(),
                segments(delivered),
                segments(lost),
            );
        }
        let enough = segments(delivered + lost) >= ENOUGH;
        let heavy = enough && lost > self.settings.loss * (delivered + lost);
        self.ramping &= self.over == 0 && delivered < self.window / self.settings.gain;
        if self.starting {
            self.ramping = true;
            if self.over >= 2 || heavy {
                self.starting = false;
                self.ramping = false;
                self.window = full;
            }
        } else if heavy {
            self.window = self.window.min(DRIED * rate * rtt);
        } else if let Some(queue) = queue {
            let queue = queue.max(0.0);
            let trip = if self.trip.is_finite() { self.trip.max(rtt + queue) } else { rtt + queue };
            let uses = rate * trip >= IN_USE * self.window;
            let seen = Observation {
                queue,
                aim,
                longest: sample.share.map_or(aim, |share| share.aim.max(aim)),
                rtt,
                trip,
                window: self.window,
                rate,
                uses,
                delivered,
                lost,
                usual: self.buffer.usual(),
            };
            match self.rival.window(sample, &seen) {
                Some(window) => self.window = window.min(1.5 * rate * trip),
                None => self.steer(queue, rtt, full, rate, aim),
            }
        }
        self.window = self.window.clamp(self.least, self.most.max(self.least));
        self.let_dry(sample.now, rate * rtt);
        self.note_window(sample.now, rtt + queue.unwrap_or(0.0).max(0.0));
    }

    /// Drains the queue every [`DRY`], so that the base delay and the minimum RTT can be measured again.
    /// Otherwise a standing queue would become part of the base delay. All flows of an endpoint drain at the
    /// same time. Otherwise the other flows would keep the queue filled.
    fn let_dry(&mut self, now: Time, carried: f64) {
        let turn = now.as_micros() / DRY.as_micros();
        self.dry = self.dry.saturating_sub(1);
        if self.dried.replace(turn).is_some_and(|before| before != turn) && !self.starting {
            self.dry = DRY_TICKS;
            self.buffer.forget();
            self.low = (DRIED * carried).max(self.least / 4.0);
        }
    }

    /// The target queuing delay in seconds, for a flow that delivers `rate` bytes a second.
    fn aim(&self, rate: f64, share: Option<GroupRate>) -> f64 {
        let aim = self.settings.queue.as_secs_f64();
        if self.starting {
            return aim;
        }
        let share = share.map(|share| share.rate).filter(|&share| share > 0.0);
        let lean = share.map_or(1.0, |share| 1.0 + LEAN * (1.0 - rate / share));
        let alone = (FAIR / rate.max(1.0)).powf(FAIRNESS);
        let buffer = self.buffer.bound().max(SHORT * aim);
        (aim * alone.clamp(1.0, 2.0)).min(buffer) * lean.clamp(*LEANS.start(), *LEANS.end())
    }

    /// Remembers the advertised window as long as data may arrive that was sent by it: a round trip and the
    /// queue.
    fn note_window(&mut self, now: Time, answer: f64) {
        self.windows.push_back((now, self.window()));
        let ago = |at: Time| now.saturating_sub(at).as_secs_f64();
        while self.windows.get(1).is_some_and(|&(at, _)| ago(at) >= answer) {
            self.windows.pop_front();
        }
    }

    /// Predicts the queuing delay after the sender has reacted to the current window. The data that arrives
    /// now was sent by the window of one round trip ago. Control by the measured delay alone would correct
    /// for too long, and would oscillate between an empty queue and twice the target.
    fn foreseen(&self, queue: f64, rate: f64) -> f64 {
        let then = self.windows.front().map_or(self.window, |&(_, window)| window as f64);
        queue + (self.window - then) / rate.max(1.0)
    }

    /// Changes the window by at most [`STEP`], so that the predicted delay approaches the target.
    fn steer(&mut self, queue: f64, rtt: f64, full: f64, rate: f64, aim: f64) {
        // If the path is not full, the window may grow by more than the queue of the target.
        let room = if queue < SHORT * aim { aim.max(rtt * ROOM) } else { aim };
        let step = GAIN * (room - self.foreseen(queue, rate)) / (rtt + aim);
        let step = if self.marked { step.min(-MARKED) } else { step };
        let most = if queue < SHORT * aim { 2.0 } else { 1.5 };
        let grown = self.window * (1.0 + step.clamp(-STEP, STEP));
        self.window = grown.min((most * full).max(self.window));
        if self.over >= 4 && self.window > 1.2 * full {
            self.window = 1.2 * full;
        }
    }
}

impl Control for Delay {
    fn arrived(&mut self, sample: &Sample) {
        if let Some(rtt) = sample.rtt {
            // On a short path, a millisecond clock shows an RTT of 0.
            self.trip = self.trip.min(rtt.as_secs_f64().max(0.0005));
        }
        if let Some(way) = sample.one_way {
            self.way = self.way.min(way);
        }
        self.learn(sample.now);
        self.marked |= sample.ce;
        let Some(rtt) = self.rtt.get() else { return };
        self.rested(sample, rtt);
        self.remember(sample, rtt);
        self.burst.arrived(sample, rtt, self.carried(sample).1);
        if self.starting && self.over == 0 {
            let grown = self.gain(sample, rtt) * self.carried(sample).1;
            self.window = self.window.max(grown).min(self.most.max(self.least));
        }
        let tick = (rtt / QUARTERS as f64).max(self.settings.tick.as_secs_f64());
        let last = *self.last.get_or_insert(sample.now);
        if sample.now.saturating_sub(last).as_secs_f64() < tick {
            return;
        }
        self.last = Some(sample.now);
        self.decide(sample, rtt);
        let kept = |now: f64, before: f64| if now.is_finite() { now } else { before };
        self.before = (kept(self.way, self.before.0), kept(self.trip, self.before.1));
        self.way = f64::INFINITY;
        self.trip = f64::INFINITY;
        self.marked = false;
    }

    fn window(&self) -> u64 {
        let low = if self.dry > 0 { self.low } else { f64::INFINITY };
        self.window.min(low) as u64
    }

    fn ramping(&self) -> bool {
        self.ramping
    }

    fn carries(&self) -> u64 {
        self.rtt.get().filter(|_| self.burst.alone).map_or(0, |rtt| (self.burst.rate * rtt) as u64)
    }

    fn share(&self) -> GroupRate {
        GroupRate { rate: self.rate(), aim: self.aimed }
    }
}
