//! The default controller: enough in flight to fill the path, and a short queue.
//!
//! Every quarter of a round trip (a tick) it takes three values: the delivery rate (the maximum of the last
//! two round trips, as in BBR's bandwidth filter), the minimum RTT, and the queuing delay (the least one-way
//! delay in the tick, less the base delay).
//!
//! The window begins with 64 segments. Until a queue shows, it is twice what the last round trip carried.
//! From then on it steers the queuing delay towards a target of about 8 ms. It steers by the predicted delay,
//! since the effect of a change shows one round trip later. Both bases are forgotten after 30 to 60 s, since
//! clocks and routes drift. To measure them again, the queue is drained every ten seconds (as in BBR's
//! ProbeRTT). If the delay shows nothing, heavy loss or ECN marks (RFC 3168) limit the window.
//!
//! A sender in slow start sends bursts, with pauses between them; many are shorter than a tick. So what a
//! round trip carried is updated at each arrival, and not as a sum of ticks. Behind a queue, the window is
//! less than twice that; otherwise the last burst would fill a queue as long as the path.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::buffer::BufferDepth;
use super::rival::{Observation, Rival};
use super::{Control, GroupRate, Least, Sample};
use crate::Time;

/// Ticks for which rates are remembered: two round trips.
const TICKS: usize = 8;
/// Ticks in a round trip.
const QUARTERS: usize = 4;
/// Segments in a round trip below which a loss rate means nothing.
const ENOUGH: f64 = 64.0;
/// Points in a round trip at which arrivals are remembered.
const MARKS: f64 = 32.0;
/// Silence in seconds, beyond a round trip, after which a sender is in slow start again: Linux's shortest
/// timeout.
const SILENCE: f64 = 0.2;
/// A queue below this share of the target counts as empty.
const SHORT: f64 = 0.25;
/// Proportional gain per tick, and the largest change of the window in a tick.
const GAIN: f64 = 0.4;
const STEP: f64 = 0.08;
/// Share of the window that an ECN mark takes.
const MARKED: f64 = 0.05;
/// How strongly a rate above or below the group's mean changes the target, and the bounds of that factor.
const LEAN: f64 = 2.0;
const LEANS: RangeInclusive<f64> = 0.5..=2.0;
/// Rate in bytes a second from which the target is as set, and the exponent by which it rises for slower
/// flows. Of flows that do not know each other, the slower one gets more (as in Swift, SIGCOMM 2020, section
/// 3.1).
const FAIR: f64 = 12.5e6;
const FAIRNESS: f64 = 0.25;
/// Share of a round trip by which the window may grow while no queue shows.
const ROOM: f64 = 0.25;
/// How often the queue is drained, for how many ticks, and with which share of what a round trip carries.
const DRY: Time = Time::from_secs(10);
const DRY_TICKS: u32 = 3;
const DRIED: f64 = 0.75;
/// A flow uses its window if at least this share of it is in flight.
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
    /// Window while starting, as a multiple of what a round trip carries.
    pub gain: f64,
    /// The same behind a queue: bursts build short queues before the path is full.
    pub crowded: f64,
    /// Shortest tick.
    pub tick: Time,
    /// How long base delay and minimum RTT are valid.
    pub base: Time,
    /// Loss rate of a round trip at which the window shrinks to what the path carries.
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
    /// The sender is in slow start: as a new one, or after a silence.
    ramping: bool,
    rtt: Least,
    base: Least,
    /// The least one-way delay and the shortest RTT since the last tick, and in the tick before it.
    way: f64,
    trip: f64,
    before: (f64, f64),
    marked: bool,
    last: Option<Time>,
    heard: Option<Time>,
    /// Time, bytes delivered, bytes lost; newest last. The first entry is one round trip old, or older.
    past: VecDeque<(Time, u64, u64)>,
    rates: [f64; TICKS],
    turn: usize,
    /// Target queuing delay in seconds.
    aimed: f64,
    /// Successive ticks with a delay above the target.
    over: u32,
    /// Windows advertised since one round trip ago, newest last. Arrivals answer to the first.
    windows: VecDeque<(Time, u64)>,
    /// Draining: number of the current period, by the clock; ticks left; the window meanwhile.
    dried: Option<u128>,
    dry: u32,
    low: f64,
    rival: Rival,
    buffer: BufferDepth,
    burst: Burst,
}

/// Segments in a round trip from which a burst can be told from pacing, and how much faster than the mean
/// rate a burst is. BBR paces its start at 2.89 times what came.
const MANY: f64 = 64.0;
const FASTER: f64 = 6.0;

/// The fastest burst. A sender in slow start shows early what the path carries, though it fills it late.
#[derive(Debug, Clone, Default)]
struct Burst {
    /// Start of the current part, and bytes delivered by then.
    since: Time,
    from: u64,
    /// Bytes a second.
    rate: f64,
    /// A burst was much faster than the mean rate of its round trip: the sender does not pace, as BBR does.
    alone: bool,
}

impl Burst {
    /// Measures parts of an eighth of a round trip; a part counts as at least half as long.
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
    /// For a flow whose handshake took `rtt`.
    pub fn new(settings: DelaySettings, most: u64, segment: u32, rtt: Option<Time>) -> Self {
        let segments = |count: u32| f64::from(count) * f64::from(segment);
        let mut least = Least::new(settings.base);
        // One-way delays are relative to that of the SYN.
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
            heard: None,
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

    /// Updates both bases by the greater of two successive ticks. A packet that overtook a burst shows too
    /// short a path, once.
    fn learn(&mut self, now: Time) {
        if self.rival.is_there() {
            // Other flows keep the queue filled, so keep the bases.
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

    /// Queuing delay since the last tick in seconds: from one-way delays, else from RTTs.
    fn queue(&self, rtt: f64) -> Option<f64> {
        let way = self.base.get().filter(|_| self.way.is_finite()).map(|base| self.way - base);
        way.or(self.trip.is_finite().then_some(self.trip - rtt))
    }

    /// The multiple of what a round trip carries that may be in flight while starting.
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

    /// Remembers arrivals for a round trip.
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

    /// Since about one round trip ago: seconds, bytes that came, bytes lost.
    fn carried(&self, sample: &Sample) -> (f64, f64, f64) {
        let (at, delivered, lost) =
            self.past.front().copied().unwrap_or((sample.now, sample.delivered, sample.lost));
        let took = sample.now.saturating_sub(at).as_secs_f64();
        (took, sample.delivered.saturating_sub(delivered) as f64, sample.lost.saturating_sub(lost) as f64)
    }

    /// Detects a restart after a silence: earlier arrivals do not show the current rate.
    fn rested(&mut self, sample: &Sample, rtt: f64) {
        let silent = self
            .heard
            .replace(sample.now)
            .is_some_and(|at| sample.now.saturating_sub(at).as_secs_f64() > SILENCE + rtt);
        if silent {
            self.ramping = true;
            self.past.clear();
            self.over = 0;
        }
    }

    /// Delivery rate in bytes a second.
    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    fn decide(&mut self, sample: &Sample, rtt: f64) {
        let queue = self.queue(rtt);
        let (took, came, gone) = self.carried(sample);
        if took < rtt / 2.0 {
            return;
        }
        self.rates[self.turn % TICKS] = came / took.max(rtt);
        self.turn += 1;
        let rate = self.rate();
        let aim = self.aim(rate, sample.share);
        self.aimed = aim;
        let full = rate * (rtt + aim);
        // A flow that uses little of its window has not made the queue.
        let limit = if self.starting { self.window / self.settings.gain } else { self.window.min(full) };
        let uses = came >= IN_USE * limit;
        self.over = if uses && (queue.is_some_and(|q| q > aim) || self.marked) { self.over + 1 } else { 0 };
        let segments = |bytes: f64| bytes / f64::from(sample.segment.max(1));
        if let Some(queue) = queue.filter(|_| !self.starting) {
            self.buffer.see(
                queue,
                queue < SHORT * self.settings.queue.as_secs_f64(),
                segments(came),
                segments(gone),
            );
        }
        let enough = segments(came + gone) >= ENOUGH;
        let heavy = enough && gone > self.settings.loss * (came + gone);
        self.ramping &= self.over == 0 && came < self.window / self.settings.gain;
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
                came,
                gone,
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

    /// Drains the queue now and then, so that the bases can be measured again: a standing queue becomes the
    /// base delay. All flows of an endpoint drain at the same time; otherwise the queue of the others would
    /// stay.
    fn let_dry(&mut self, now: Time, carried: f64) {
        let turn = now.as_micros() / DRY.as_micros();
        self.dry = self.dry.saturating_sub(1);
        if self.dried.replace(turn).is_some_and(|before| before != turn) && !self.starting {
            self.dry = DRY_TICKS;
            self.buffer.forget();
            self.low = (DRIED * carried).max(self.least / 4.0);
        }
    }

    /// The target queuing delay of a flow of this rate.
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

    /// Remembers the advertised window for as long as arrivals may answer to it: a round trip and the queue.
    fn note_window(&mut self, now: Time, answer: f64) {
        self.windows.push_back((now, self.window()));
        let ago = |at: Time| now.saturating_sub(at).as_secs_f64();
        while self.windows.get(1).is_some_and(|&(at, _)| ago(at) >= answer) {
            self.windows.pop_front();
        }
    }

    /// The predicted queuing delay when the sender has reacted to the current window. What arrives now was
    /// sent by the window of one round trip ago. Control by the measured delay alone reacts too long, and
    /// oscillates between an empty queue and twice the target.
    fn foreseen(&self, queue: f64, rate: f64) -> f64 {
        let then = self.windows.front().map_or(self.window, |&(_, window)| window as f64);
        queue + (self.window - then) / rate.max(1.0)
    }

    /// Changes the window a little, so that the delay approaches the target.
    fn steer(&mut self, queue: f64, rtt: f64, full: f64, rate: f64, aim: f64) {
        // If the path is not full, the window may grow by more than the target queue.
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
            // A millisecond clock shows 0 on a short path.
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
