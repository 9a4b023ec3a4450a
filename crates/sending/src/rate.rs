//! Congestion window and pacing rate: BBR (Cardwell et al., ACM Queue 14(5), 2016;
//! draft-cardwell-iccrg-bbr-congestion-control-00). It follows the delivery rate and does not react to loss.
//!
//! Two things differ. First, start-up ends at the first lasting queue, as in HyStart++ (RFC 9406), because
//! overflow during start-up is never retransmitted. Second, the flight beyond the bandwidth-delay product is
//! bounded in time ([`QUEUE`]), and not by a second BDP. So long paths do not fill queues, and short paths
//! tolerate receivers that answer late.

use std::collections::VecDeque;

use super::delivery::Measured;
use crate::Time;

/// Queue that is tolerated at the bottleneck, in time.
const QUEUE: Time = Time::from_millis(20);
/// Rounds for which a delivery rate is valid (BBRBtlBwFilterLen).
const ROUNDS: u64 = 10;
/// 4 ln 2: doubles the rate each round trip (BBRStartupPacingGain).
const STARTING: f64 = 2.77;
/// Pacing gains of one cycle, a round trip each (ProbeBW).
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// If a probe raised the rate by this factor, the next one follows at once. It makes up for a start-up that
/// noise has ended too early.
const WORTH: f64 = 1.15;
/// How long the minimum RTT is valid, and how long a new one is looked for (RTpropFilterLen, ProbeRTTDuration).
const BASE_LASTS: Time = Time::from_secs(10);
const LOOKING: Time = Time::from_millis(200);
/// The path is full if the rate does not rise by a quarter in this many rounds (BBRCheckFullPipe).
const FULL_ROUNDS: u8 = 3;
/// Acknowledgements in a row that must show a queue, or none (RFC 9406, N_RTT_SAMPLE).
const QUEUED: u8 = 8;
/// Rounds for which a queue must last: late acknowledgements of a busy host look like a queue (RFC 9406,
/// CSS_ROUNDS).
const CHECKED: u64 = 2;
/// Rounds in a row with an RTT of more than twice the minimum and [`QUEUE`] that are no accident of scheduling: the path
/// has become slower.
const SLOW: u8 = 3;
/// Packets that may always be in flight (BBRMinPipeCwnd).
const FLOOR: u64 = 4;
/// While no queue builds up, the sender adds the recent loss rate to its rate, up to this share. Otherwise it
/// would slow down by the loss. It is also the most that a sender can lose because of it, in queues too short
/// to be seen.
const MADE_UP: f64 = 0.1;
/// On a path with a shorter RTT there is no pacing: no timer is fine enough.
const PACED: Time = Time::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Starting,
    /// A queue was seen. Until that round, at a constant rate, it shows whether the queue lasts.
    Checking(u64),
    Draining,
    /// Phase of [`CYCLE`], and since when.
    Cruising(usize, Time),
    /// ProbeRTT: send little until then, so that our own queue does not count as distance.
    Looking(Time),
}

/// An acknowledgement, as far as the rate is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Heard {
    /// When the acknowledgement came.
    pub now: Time,
    /// Newly acknowledged bytes.
    pub bytes: u64,
    /// Newly lost bytes.
    pub lost: u64,
    /// Bytes delivered in all.
    pub delivered: u64,
    /// Bytes still in flight.
    pub under_way: u64,
    /// RTT sample of the newest acknowledged packet, if it gives one.
    pub trip: Option<Time>,
    /// The delivery rate, if one could be measured.
    pub measured: Option<Measured>,
}

/// Pacing rate and congestion window of a sender.
#[derive(Debug)]
pub struct Rate {
    mode: Mode,
    /// Bytes of the longest packet.
    full: u64,
    /// Initial window in packets.
    initial: u64,
    window: u64,
    round: u64,
    /// The round ends with a packet that was sent after this many bytes had been delivered.
    round_ends: u64,
    /// Delivery rates by round, descending: the first is the maximum.
    rates: VecDeque<(u64, f64)>,
    base: Option<Time>,
    base_at: Time,
    /// Start-up: the reference rate, and rounds in which the rate has not risen.
    reached: f64,
    plateau: u8,
    queued: u8,
    calm: u8,
    /// The rate before the last bandwidth probe.
    probed: f64,
    /// Rounds with a long RTT, one after the other.
    slow: u8,
    /// Bytes delivered and lost in this round, and the smoothed loss rate.
    counted: (u64, u64),
    lossy: f64,
    most_made_up: f64,
}

impl Rate {
    /// Starts with `initial` packets of `full` bytes.
    pub fn new(full: u64, initial: u64) -> Self {
        Self {
            mode: Mode::Starting,
            full,
            initial,
            window: initial * full,
            round: 0,
            round_ends: 0,
            rates: VecDeque::new(),
            base: None,
            base_at: Time::ZERO,
            reached: 0.0,
            plateau: 0,
            queued: 0,
            calm: 0,
            probed: 0.0,
            slow: 0,
            counted: (0, 0),
            lossy: 0.0,
            most_made_up: MADE_UP,
        }
    }

    /// Adds the recent loss rate up to this share. For senders that retransmit nothing: they have to get through where a
    /// retransmission would only come later.
    #[must_use]
    pub fn making_up(self, most: f64) -> Self {
        Self { most_made_up: most, ..self }
    }

    /// Packets may have up to `longest` bytes from now on.
    pub fn carry(&mut self, longest: u64) {
        self.full = self.full.max(longest);
        self.window = self.window.max(FLOOR * self.full);
    }

    /// The longest packet.
    pub fn full(&self) -> u64 {
        self.full
    }

    /// Congestion window in bytes.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Minimum RTT.
    pub fn base(&self) -> Option<Time> {
        self.base
    }

    /// Pacing rate in bytes a second; `None` if only the window limits.
    pub fn pace(&self) -> Option<f64> {
        let base = self.base.filter(|&base| base >= PACED)?;
        let mut rate = self.rates.front()?.1;
        if matches!(self.mode, Mode::Starting | Mode::Checking(_)) {
            // A few small messages do not show what the path carries, and must not slow down what follows.
            rate = rate.max((self.initial * self.full) as f64 / base.as_secs_f64());
        }
        let gain = match self.mode {
            Mode::Starting => STARTING,
            Mode::Draining => 1.0 / STARTING,
            Mode::Cruising(phase, _) => CYCLE[phase],
            Mode::Looking(_) | Mode::Checking(_) => 1.0,
        };
        Some((gain * rate / (1.0 - self.made_up())).max(self.full as f64))
    }

    /// The share of what is sent that makes up for loss.
    pub fn made_up(&self) -> f64 {
        if self.queued == 0 {
            self.lossy.min(self.most_made_up)
        } else {
            0.0
        }
    }

    /// Bandwidth-delay product in bytes.
    fn holds(&self) -> Option<u64> {
        Some((self.rates.front()?.1 * self.base?.as_secs_f64()) as u64)
    }

    /// `gain` times the bandwidth-delay product, and a queue, in bytes.
    fn target(&self, gain: f64) -> Option<u64> {
        let (rate, base) = (self.rates.front()?.1, self.base?);
        Some((rate * (gain * base.as_secs_f64() + QUEUE.as_secs_f64())) as u64)
    }

    /// Processes an acknowledgement.
    pub fn heard(&mut self, heard: &Heard) {
        let new_round = heard.measured.is_some_and(|measured| measured.before >= self.round_ends);
        if new_round {
            self.round += 1;
            self.round_ends = heard.delivered;
            let (came, lost) = std::mem::take(&mut self.counted);
            self.lossy = (3.0 * self.lossy + lost as f64 / ((came + lost) as f64).max(1.0)) / 4.0;
            self.see_slow_path(heard.trip);
        }
        self.counted = (self.counted.0 + heard.bytes, self.counted.1 + heard.lost);
        self.see_queue(heard.trip);
        if let Some(measured) = heard.measured {
            self.delivered_at(measured);
        }
        let aged = heard.trip.is_some_and(|trip| self.tripped(heard.now, trip));
        match self.mode {
            Mode::Starting => self.starting(heard, new_round),
            Mode::Checking(_) if self.calm >= QUEUED => self.mode = Mode::Starting,
            Mode::Checking(until) if self.round >= until => self.mode = Mode::Draining,
            Mode::Checking(_) => {}
            Mode::Draining | Mode::Cruising(..) if aged => {
                self.mode = Mode::Looking(heard.now + LOOKING.max(self.base.unwrap_or_default()));
            }
            Mode::Draining => {
                if self.target(1.0).is_none_or(|most| heard.under_way <= most) {
                    self.mode = Mode::Cruising(0, heard.now);
                    self.probed = self.rates.front().map_or(0.0, |&(_, rate)| rate);
                }
            }
            Mode::Cruising(phase, since) => self.cruising(heard, phase, since),
            Mode::Looking(until) if heard.now >= until => {
                self.base_at = heard.now;
                self.mode = Mode::Cruising(2, heard.now);
            }
            Mode::Looking(_) => {}
        }
        self.resize(heard.bytes);
    }

    fn delivered_at(&mut self, measured: Measured) {
        let greatest = self.rates.front().map_or(0.0, |&(_, rate)| rate);
        if measured.idle && measured.rate < greatest {
            return;
        }
        let oldest = self.round.saturating_sub(ROUNDS);
        self.rates.retain(|&(round, rate)| round >= oldest && rate > measured.rate);
        self.rates.push_back((self.round, measured.rate));
    }

    /// Takes an RTT sample. Returns whether the minimum RTT is too old and has to be measured again.
    fn tripped(&mut self, now: Time, trip: Time) -> bool {
        let trip = trip.max(Time::from_micros(10));
        let aged = now.saturating_sub(self.base_at) > BASE_LASTS;
        if self.base.is_none_or(|base| trip <= base || aged) {
            (self.base, self.base_at, self.queued) = (Some(trip), now, 0);
            return aged;
        }
        if matches!(self.mode, Mode::Looking(_)) {
            self.base = self.base.map(|base| base.min(trip));
        }
        false
    }

    /// Counts successive acknowledgements behind a queue (RFC 9406, section 4.2).
    fn see_queue(&mut self, trip: Option<Time>) {
        let (Some(trip), Some(base)) = (trip, self.base) else { return };
        let more = (base / 8).clamp(Time::from_millis(4), Time::from_millis(16));
        (self.queued, self.calm) = match trip > base + more {
            true => (self.queued.saturating_add(1), 0),
            false => (0, self.calm.saturating_add(1)),
        };
    }

    /// A path that has become slower than the rates that are still valid: the queue they fill makes rounds so long that
    /// [`ROUNDS`] of them would take seconds. Forgets all rates but that of the last round.
    fn see_slow_path(&mut self, trip: Option<Time>) {
        let (Some(trip), Some(base)) = (trip, self.base) else { return };
        self.slow = if trip > 2 * (base + QUEUE) { self.slow.saturating_add(1) } else { 0 };
        if self.slow >= SLOW {
            let last = self.round.saturating_sub(1);
            self.rates.retain(|&(round, _)| round >= last);
        }
    }

    fn starting(&mut self, heard: &Heard, new_round: bool) {
        let rate = self.rates.front().map_or(0.0, |&(_, rate)| rate);
        if new_round && !heard.measured.is_some_and(|measured| measured.idle) {
            if rate >= 1.25 * self.reached {
                (self.reached, self.plateau) = (rate, 0);
            } else {
                self.plateau += 1;
            }
        }
        if self.plateau >= FULL_ROUNDS {
            self.mode = Mode::Draining;
        } else if self.queued >= QUEUED && self.reached > 0.0 {
            self.mode = Mode::Checking(self.round + CHECKED);
        }
    }

    fn cruising(&mut self, heard: &Heard, phase: usize, since: Time) {
        let passed = heard.now.saturating_sub(since) > self.base.unwrap_or_default();
        let over = match CYCLE[phase] {
            gain if gain < 1.0 => passed || self.target(0.5).is_none_or(|most| heard.under_way <= most),
            _ => passed,
        };
        if over {
            let rate = self.rates.front().map_or(0.0, |&(_, rate)| rate);
            let again = phase == 1 && rate >= WORTH * self.probed;
            let next = if again { 0 } else { (phase + 1) % CYCLE.len() };
            if next == 0 {
                self.probed = rate;
            }
            self.mode = Mode::Cruising(next, heard.now);
        }
    }

    fn resize(&mut self, acknowledged: u64) {
        let floor = FLOOR * self.full;
        let follows = match self.mode {
            Mode::Starting => {
                // Twice the BDP doubles the rate, and overshoots by a queue of one round trip at most.
                let most = self.target(1.0).zip(self.holds()).map(|(target, holds)| target.max(2 * holds));
                (self.window + acknowledged).min(most.unwrap_or(u64::MAX).max(self.initial * self.full))
            }
            Mode::Draining | Mode::Cruising(..) => {
                // Falls to the target at once; rises by what is delivered.
                self.target(1.25).unwrap_or(self.window).min(self.window + acknowledged)
            }
            Mode::Checking(_) => self.window,
            Mode::Looking(_) => (self.target(0.5).unwrap_or(floor)).min(self.window),
        };
        self.window = follows.max(floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = Time::from_millis(1);

    fn heard(now: Time, rate: f64, trip: Time, round: u64) -> Heard {
        let measured = Some(Measured { rate, idle: false, before: round });
        Heard {
            now,
            bytes: 10_000,
            lost: 0,
            delivered: round + 1,
            under_way: 10_000,
            trip: Some(trip),
            measured,
        }
    }

    fn cruising() -> Rate {
        let mut rate = Rate::new(1_400, 32);
        for round in 0..20 {
            rate.heard(&heard((40 * round as u32) * MS, 1e6, 40 * MS, round));
        }
        assert!(matches!(rate.mode, Mode::Cruising(..)), "{:?}", rate.mode);
        rate
    }

    #[test]
    fn starts_fast_and_then_keeps_to_the_path() {
        let mut rate = Rate::new(1_400, 32);
        assert_eq!((rate.window(), rate.pace()), (32 * 1_400, None));
        rate.heard(&heard(40 * MS, 5e5, 40 * MS, 0));
        assert_eq!(rate.pace(), Some(STARTING * 32.0 * 1_400.0 / 0.04), "not slower than it began");
        rate.heard(&heard(80 * MS, 2e6, 40 * MS, 1));
        assert_eq!(rate.pace(), Some(STARTING * 2e6));
        let rate = cruising();
        let holds = 1e6 * (1.25 * 0.04 + 0.02);
        assert!((rate.window() as f64 - holds).abs() < 1_400.0, "{} of {holds}", rate.window());
    }

    /// A sender that has just seen a queue.
    fn checking() -> Rate {
        let mut rate = Rate::new(1_400, 32);
        rate.heard(&heard(40 * MS, 1e6, 40 * MS, 0));
        for n in 1..=QUEUED {
            assert_eq!(rate.mode, Mode::Starting);
            rate.heard(&heard((40 + u32::from(n)) * MS, 2e6, 46 * MS, 0));
        }
        assert!(matches!(rate.mode, Mode::Checking(_)), "{:?}", rate.mode);
        rate
    }

    #[test]
    fn the_first_queue_that_stays_ends_the_start() {
        let mut rate = checking();
        for round in 1..4 {
            rate.heard(&heard((40 + 40 * round as u32) * MS, 2e6, 46 * MS, round));
        }
        assert!(matches!(rate.mode, Mode::Draining | Mode::Cruising(..)), "{:?}", rate.mode);
    }

    #[test]
    fn small_messages_do_not_end_the_start() {
        let mut rate = Rate::new(1_400, 32);
        for round in 0..40 {
            let idle = Measured { rate: 1e3, idle: true, before: round };
            let late = heard((40 * round as u32) * MS, 1e3, if round == 0 { 40 } else { 50 } * MS, round);
            rate.heard(&Heard { measured: Some(idle), ..late });
        }
        assert_eq!(rate.mode, Mode::Starting);
        assert_eq!(rate.pace(), Some(STARTING * 32.0 * 1_400.0 / 0.04));
    }

    #[test]
    fn late_acknowledgements_do_not_end_the_start() {
        let mut rate = checking();
        for n in 0..QUEUED {
            rate.heard(&heard((60 + u32::from(n)) * MS, 2e6, 41 * MS, 0));
        }
        assert_eq!(rate.mode, Mode::Starting);
    }

    #[test]
    fn a_rate_is_forgotten_after_ten_rounds_and_an_idle_one_at_once() {
        let mut rate = cruising();
        let idle = Measured { rate: 5e5, idle: true, before: 20 };
        rate.heard(&Heard { measured: Some(idle), ..heard(800 * MS, 5e5, 40 * MS, 20) });
        assert_eq!(rate.rates.front().map(|r| r.1), Some(1e6));
        for round in 21..40 {
            rate.heard(&heard(40 * MS * round as u32, 5e5, 40 * MS, round));
        }
        assert_eq!(rate.rates.front().map(|r| r.1), Some(5e5));
    }

    #[test]
    fn what_is_lost_is_made_up_for_within_a_bound() {
        let mut rate = cruising();
        let pace = |rate: &Rate| {
            rate.pace().unwrap()
                / 1e6
                / if let Mode::Cruising(phase, _) = rate.mode { CYCLE[phase] } else { 1.0 }
        };
        for (share, expected) in [(0.05, 1.0 / 0.95), (0.4, 1.0 / 0.9), (0.0, 1.0)] {
            for _ in 0..60 {
                let round = rate.round + 1;
                let lost = (10_000.0 * share / (1.0 - share)) as u64;
                let now = 40 * MS * round as u32;
                rate.heard(&Heard { lost, ..heard(now, 1e6, 40 * MS, rate.round_ends) });
            }
            assert!((pace(&rate) - expected).abs() < 0.001, "{share}: {}", pace(&rate));
        }
    }

    #[test]
    fn who_retransmits_nothing_may_make_up_for_more() {
        let mut rate = cruising().making_up(0.4);
        for _ in 0..60 {
            let round = rate.round + 1;
            rate.heard(&Heard {
                lost: 5_000,
                ..heard(40 * MS * round as u32, 1e6, 40 * MS, rate.round_ends)
            });
        }
        assert!((rate.made_up() - 1.0 / 3.0).abs() < 0.001, "{}", rate.made_up());
    }

    /// A tenth of the rate, behind the queue that the others have left: three such rounds are enough.
    #[test]
    fn a_path_that_has_become_slower_is_believed_after_three_rounds() {
        let mut rate = cruising();
        for round in 20..23 {
            assert_eq!(rate.rates.front().map(|r| r.1), Some(1e6));
            rate.heard(&heard(800 * MS + 130 * MS * (round as u32 - 19), 1e5, 130 * MS, round));
        }
        assert_eq!(rate.rates.front().map(|r| r.1), Some(1e5));
    }

    #[test]
    fn the_least_round_trip_is_looked_for_again() {
        let mut rate = cruising();
        let mut shrank = false;
        for round in 20..400 {
            rate.heard(&heard(40 * MS * round as u32, 1e6, 60 * MS, round));
            shrank |= rate.window() <= (1e6 * (0.5 * 0.06 + 0.02)) as u64;
        }
        assert!(shrank, "it never looked");
        assert_eq!(rate.base(), Some(60 * MS), "the path has become longer");
        assert!(matches!(rate.mode, Mode::Cruising(..)));
    }
}
