//! The default: enough under way to fill the path, and a short queue.
//!
//! Each quarter of a round trip it takes the delivered rate (the most of the last two round trips, as BBR's bandwidth
//! filter), the shortest round trip, and the queueing delay: the least time on the way in that quarter, less the base.
//! It begins with 64 segments and allows twice what the last round trip carried until the queue shows, then steers so
//! that about 8 ms stay queued: the queue that it steers by is the one foreseen, since what it says now shows a round trip
//! later. Both bases forget after half a minute to a minute, since clocks and routes drift; so that they are seen again, the
//! queue runs dry each ten seconds (as BBR's ProbeRTT). Should delay show nothing, heavy loss or marks by the queue (RFC
//! 3168) are the backstop.
//!
//! A sender in slow start comes in bursts, many of them shorter than a quarter of a round trip, with nothing between them.
//! So what a round trip carried is known at each arrival, and is not a sum of quarters. Of what comes through a queue it
//! allows less than twice, or the last burst would fill a queue as long as the path.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use super::brim::Brim;
use super::rival::{Rival, Seen};
use super::{Control, Least, Sample, Share};
use crate::Time;

/// Ticks that rates are remembered for: two round trips.
const TICKS: usize = 8;
/// Ticks in a round trip.
const QUARTERS: usize = 4;
/// Segments in a round trip below which a loss rate says nothing.
const ENOUGH: f64 = 64.0;
/// Marks in a round trip that arrivals are remembered by.
const MARKS: f64 = 32.0;
/// After such a silence, and a round trip, senders slow start anew: Linux's shortest timeout.
const SILENCE: f64 = 0.2;
/// Share of the queue aimed at that is next to none.
const SHORT: f64 = 0.25;
/// Share of what is foreseen to be wrong that a tick puts right, and the most of the window that it moves.
const GAIN: f64 = 0.4;
const STEP: f64 = 0.08;
/// Share of the window that a mark by the queue takes.
const MARKED: f64 = 0.05;
/// How much a share that is exceeded or missed moves the aim, and what is left of the aim, or made of it, at most.
const LEAN: f64 = 2.0;
const LEANS: RangeInclusive<f64> = 0.5..=2.0;
/// Bytes a second at which the aim is as set, and how it falls with more: of flows that know nothing of each other, that
/// with less gets more (as Swift's target, SIGCOMM 2020, section 3.1).
const FAIR: f64 = 12.5e6;
const FAIRNESS: f64 = 0.25;
/// Share of a round trip that the window may grow by while no queue shows.
const ROOM: f64 = 0.25;
/// How often the queue is let run dry, for how many ticks, with a window of which share of what a round trip carries.
const DRY: Time = Time::from_secs(10);
const DRY_TICKS: u32 = 3;
const DRIED: f64 = 0.75;
/// Share of the window that is in use while the window is what limits.
const IN_USE: f64 = 0.5;

/// What the controller aims at.
#[derive(Debug, Clone)]
pub struct DelaySettings {
    /// The queueing delay that is kept.
    pub queue: Time,
    /// The first window, in segments.
    pub initial: u32,
    /// The smallest, in segments.
    pub least: u32,
    /// What a round trip carries, times this, is the window while starting.
    pub gain: f64,
    /// The same of what comes through a queue: bursts make short ones before the path is full.
    pub crowded: f64,
    /// The shortest time between two decisions.
    pub tick: Time,
    /// How long the bases are good for.
    pub base: Time,
    /// Share of loss in a round trip at which the window shrinks to what the path carries.
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
    /// The sender slow starts: as a new one, or after a silence.
    ramping: bool,
    rtt: Least,
    base: Least,
    /// The least time on the way, and the shortest round trip, since the last tick, and between the two before it.
    way: f64,
    trip: f64,
    before: (f64, f64),
    marked: bool,
    last: Option<Time>,
    heard: Option<Time>,
    /// Time, bytes that had come, bytes lost, the newest last: the first is just a round trip old, or older.
    past: VecDeque<(Time, u64, u64)>,
    rates: [f64; TICKS],
    turn: usize,
    /// The queue that is aimed at, in seconds.
    aimed: f64,
    /// Ticks in a row whose queue was over the aim.
    over: u32,
    /// The windows said since a round trip ago, the newest last: the first is what arrivals answer to.
    windows: VecDeque<(Time, u64)>,
    /// How often the queue has been let run dry, by the clock; for so many ticks more; with which window.
    dried: Option<u128>,
    dry: u32,
    low: f64,
    rival: Rival,
    brim: Brim,
    burst: Burst,
}

/// Segments of a round trip of which a burst is told from one that is paced, and how much faster than those it is. BBR paces
/// its start at 2.89 times of what came.
const MANY: f64 = 64.0;
const FASTER: f64 = 6.0;

/// How fast the fastest burst was: a sender in slow start shows early what the path carries, though it fills it late.
#[derive(Debug, Clone, Default)]
struct Burst {
    /// When a part of it began, and what had come then.
    since: Time,
    from: u64,
    /// Bytes in a second.
    rate: f64,
    /// One was much faster than what a round trip brought: the sender does not pace itself, as BBR does.
    alone: bool,
}

impl Burst {
    /// Parts are an eighth of a round trip long, and count as half of that at least.
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
        // Ways are told by how much longer they are than the SYN's.
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
            brim: Brim::default(),
            burst: Burst::default(),
            settings,
        }
    }

    /// Bases are what two ticks in a row have seen: a packet that overtook those of a burst before it makes the path look
    /// shorter than it is, once.
    fn learn(&mut self, now: Time) {
        if self.rival.is_there() {
            // Their queue does not run dry for us.
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

    /// The queueing delay since the last tick in seconds: from one-way times, else from round trips.
    fn queue(&self, rtt: f64) -> Option<f64> {
        let way = self.base.get().filter(|_| self.way.is_finite()).map(|base| self.way - base);
        way.or(self.trip.is_finite().then_some(self.trip - rtt))
    }

    /// How much more than a round trip's may be under way while starting.
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

    /// Remembers what has come, for a round trip.
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

    /// Seconds, bytes that came and bytes that were lost since about a round trip ago.
    fn carried(&self, sample: &Sample) -> (f64, f64, f64) {
        let (at, delivered, lost) =
            self.past.front().copied().unwrap_or((sample.now, sample.delivered, sample.lost));
        let took = sample.now.saturating_sub(at).as_secs_f64();
        (took, sample.delivered.saturating_sub(delivered) as f64, sample.lost.saturating_sub(lost) as f64)
    }

    /// A sender that was silent for so long begins anew, and what came before tells nothing of its rate.
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

    /// Bytes a second that come.
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
        // Who uses little of the window has not made the queue.
        let limit = if self.starting { self.window / self.settings.gain } else { self.window.min(full) };
        let uses = came >= IN_USE * limit;
        self.over = if uses && (queue.is_some_and(|q| q > aim) || self.marked) { self.over + 1 } else { 0 };
        let segments = |bytes: f64| bytes / f64::from(sample.segment.max(1));
        if let Some(queue) = queue.filter(|_| !self.starting) {
            self.brim.see(
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
            let seen = Seen {
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
                usual: self.brim.usual(),
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

    /// Lets the queue run dry now and then, so that the bases are seen again: a queue that stays becomes the base. All
    /// flows of an endpoint do it at the same time, or the others' would remain.
    fn let_dry(&mut self, now: Time, carried: f64) {
        let turn = now.as_micros() / DRY.as_micros();
        self.dry = self.dry.saturating_sub(1);
        if self.dried.replace(turn).is_some_and(|before| before != turn) && !self.starting {
            self.dry = DRY_TICKS;
            self.brim.forget();
            self.low = (DRIED * carried).max(self.least / 4.0);
        }
    }

    /// The queue that a flow of this rate aims at.
    fn aim(&self, rate: f64, share: Option<Share>) -> f64 {
        let aim = self.settings.queue.as_secs_f64();
        if self.starting {
            return aim;
        }
        let share = share.map(|share| share.rate).filter(|&share| share > 0.0);
        let lean = share.map_or(1.0, |share| 1.0 + LEAN * (1.0 - rate / share));
        let alone = (FAIR / rate.max(1.0)).powf(FAIRNESS);
        let brim = self.brim.bound().max(SHORT * aim);
        (aim * alone.clamp(1.0, 2.0)).min(brim) * lean.clamp(*LEANS.start(), *LEANS.end())
    }

    /// Remembers the window since `now`, for as long as arrivals may answer to it: a round trip and the queue.
    fn note_window(&mut self, now: Time, answer: f64) {
        self.windows.push_back((now, self.window()));
        let ago = |at: Time| now.saturating_sub(at).as_secs_f64();
        while self.windows.get(1).is_some_and(|&(at, _)| ago(at) >= answer) {
            self.windows.pop_front();
        }
    }

    /// The queue that will be when senders have heard of the window as it is: what arrives now was sent by the window of a
    /// round trip ago. Who steers by the queue alone does so too long, and it swings between empty and twice its aim.
    fn foreseen(&self, queue: f64, rate: f64) -> f64 {
        let then = self.windows.front().map_or(self.window, |&(_, window)| window as f64);
        queue + (self.window - then) / rate.max(1.0)
    }

    /// A little more or less, so that the queue comes to its aim; flows above their share aim at less, those below at more.
    fn steer(&mut self, queue: f64, rtt: f64, full: f64, rate: f64, aim: f64) {
        // Of a path that is not full the window may grow by more than the queue.
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
            // A clock of milliseconds shows 0 on a short path.
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

    fn share(&self) -> Share {
        Share { rate: self.rate(), aim: self.aimed }
    }
}
