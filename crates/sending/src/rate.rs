//! Computes cwnd and pacing rate by BBR (Cardwell et al., ACM Queue 14(5), 2016;
//! draft-cardwell-iccrg-bbr-congestion-control-00). BBR follows the delivery rate and does not react to loss.
//!
//! Two things differ from BBR. First, start-up ends at the first lasting queue, as in HyStart++ (RFC 9406),
//! because overflow during start-up is never retransmitted. Second, the bytes in flight beyond the
//! bandwidth-delay product (BDP) are bounded in time ([`QUEUE`]), and not by a second BDP. So senders on long
//! paths do not fill queues, and senders on short paths tolerate receivers that acknowledge late.

use std::collections::VecDeque;

use super::delivery::Measured;
use crate::{Belief, Time, Trips, Waits};

/// The queue that a sender may keep at the bottleneck, as a time.
const QUEUE: Time = Time::from_millis(20);
/// Number of rounds for which a delivery rate is valid (BBRBtlBwFilterLen).
const ROUNDS: u64 = 10;
/// Pacing gain of start-up, 4 ln 2. It doubles the rate each round trip (BBRStartupPacingGain).
const STARTUP_GAIN: f64 = 2.77;
/// Pacing gains of the phases of one cycle. Each phase lasts a round trip (ProbeBW).
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// If the probing phase raised the rate by this factor, the next probe follows at once. This corrects a
/// start-up that noise has ended too early.
const PROBE_AGAIN_GAIN: f64 = 1.15;
/// How long a minimum RTT is valid (RTpropFilterLen).
const MIN_RTT_VALID: Time = Time::from_secs(10);
/// When the minimum RTT has expired, the sender measures a new one for this long (ProbeRTTDuration).
const PROBE_RTT_TIME: Time = Time::from_millis(200);
/// The path is full if the rate has not risen by a quarter in this many rounds (BBRCheckFullPipe).
const FULL_ROUNDS: u8 = 3;
/// Number of ACKs in a row that must show a queue, or show none (RFC 9406, N_RTT_SAMPLE).
const QUEUE_SAMPLES: u8 = 8;
/// After this many ACKs in a row that show a queue, a sender on a very lossy path no longer makes up for
/// loss. On other paths one such ACK is enough.
const LOSSY_QUEUE_SAMPLES: u8 = 3;
/// The cwnd of a [fast start](Rate::starting_fast) is at least this many times what a round trip has carried.
/// When eight senders begin at once behind a queue of a quarter BDP, they send 1.35 packets for each that
/// arrives; with a factor of 2 they would send 2.23.
const FAST_START_FACTOR: f64 = 1.75;
/// Number of rounds for which a queue must last, since late ACKs of a busy host look like a queue (RFC 9406,
/// CSS_ROUNDS).
const CSS_ROUNDS: u64 = 2;
/// If the RTT is long in this many rounds in a row, scheduling is not the cause: the path has become slower.
/// Long means more than twice the sum of the minimum RTT and [`QUEUE`].
const SLOW_ROUNDS: u8 = 3;
/// This many packets may always be in flight (BBRMinPipeCwnd).
const MIN_PACKETS: u64 = 4;
/// On a path that loses more than [`VERY_LOSSY`], this many packets may always be in flight: the initial
/// window of TCP (RFC 6928). With four packets, perhaps only one would arrive in a round trip, and its ACK
/// might be lost.
const LOSSY_MIN_PACKETS: u64 = 10;
/// To make up for loss, the sender raises its rate by the recent loss rate while no queue builds up.
/// Otherwise the loss would slow it down. It makes up for a loss rate of at most this, unless the caller
/// [sets another limit](Rate::making_up). This is also the maximum loss that a sender can cause in this way,
/// in queues too short to be seen.
const MAX_MADE_UP: f64 = 0.1;
/// A path that loses a greater fraction than this is treated as very lossy: see [`LOSSY_MAX_MADE_UP`].
const VERY_LOSSY: f64 = 0.5;
/// On a very lossy path, a sender [with its own limit](Rate::making_up) makes up for at least this loss rate,
/// if the path loses that much. Otherwise, on a path that loses 70 %, the cwnd would shrink for ever, since
/// it is at most 1.3 times the bytes that a round trip delivered.
const LOSSY_MAX_MADE_UP: f64 = 0.62;
/// Loss greater than this is the path's own: senders that make up for [`LOSSY_MAX_MADE_UP`] cannot cause that
/// much, however many share the path.
const EXTREME_LOSS: f64 = 0.72;
/// The maximum loss rate that such a sender makes up for, if the path loss is greater than [`EXTREME_LOSS`].
/// With a limit of 62 % on a path that loses 80 %, packets would arrive at half of the sender's rate. The
/// sender would take that as its new rate, again and again.
const EXTREME_MAX_MADE_UP: f64 = 0.85;
/// On a very lossy path, a flight is large enough that this many of its packets are acknowledged on average.
/// Then at least one ACK arrives with a probability of 1 - e^-3 = 0.95, even if ACKs are lost as often as
/// packets.
const FLIGHT_ACKS: f64 = 3.0;
/// If the path loss is greater than this, the sender makes up for nothing in the second and third phase of
/// each cycle. Otherwise it would be faster than the path in every phase, and could mistake the loss that it
/// causes for loss of the path.
const SELF_CAUSED_LOSS: f64 = 0.4;
/// On a path whose jitter hides a queue, one round without growth ends start-up if the last loss sample
/// exceeds the path loss by this.
const OVERFLOW_LOSS: f64 = 0.05;
/// Start-up begins again if the path loss exceeds the least known path loss by this.
const RESTART_LOSS: f64 = 0.3;
/// After a sign of reordering the sender measures the minimum RTT anew, but at most this many times.
const MAX_OVERTAKEN: u8 = 8;
/// On a path that reorders, the median of this many RTT samples counts.
const MEDIAN_SAMPLES: usize = 7;
/// Minimum number of packets in a sample of the loss rate.
const MIN_SAMPLE_PACKETS: f64 = 16.0;
/// A busy host makes successive RTT samples vary by up to this much. Only variation beyond it counts as the
/// path's jitter.
const HOST_JITTER: Time = Time::from_millis(8);
/// The jitter allowance is this many times the path's jitter, as in a retransmission timeout (RFC 6298,
/// section 2).
const JITTER_FACTOR: u32 = 4;
/// Gain of the smoothed jitter (RFC 3550, section 6.4.1).
const JITTER_GAIN: u32 = 16;
/// On a path with a shorter minimum RTT the sender does not pace, since no timer is fine enough.
const MIN_PACED_RTT: Time = Time::from_millis(1);

/// How much longer than the minimum an RTT is that shows a queue (RFC 9406, section 4.2).
fn queue_shows(base: Time) -> Time {
    (base / 8).clamp(Time::from_millis(4), Time::from_millis(16))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// Start-up: the rate grows until the path is full (BBR's Startup).
    Starting,
    /// A queue was seen. The sender keeps its rate until this round, to see whether the queue lasts.
    Checking(u64),
    /// The sender sends more slowly, until the queue of start-up is gone (BBR's Drain).
    Draining,
    /// ProbeBW: index of the phase in [`CYCLE`], and when the phase began.
    Cruising(usize, Time),
    /// ProbeRTT: the sender keeps little in flight until this time, so that its own queue does not count as
    /// RTT.
    Looking(Time),
}

/// Input of the rate controller: what one ACK tells.
#[derive(Debug, Clone, Copy)]
pub struct AckSample {
    /// When the ACK arrived.
    pub now: Time,
    /// Newly acknowledged bytes.
    pub bytes: u64,
    /// Bytes that arrived and bytes that were lost, as detected since the last ACK. Packets that may have
    /// been rebuilt from others do not count, since their ACKs say nothing about loss.
    pub fates: (u64, u64),
    /// Bytes delivered so far.
    pub delivered: u64,
    /// Bytes still in flight.
    pub under_way: u64,
    /// RTT sample of the newest acknowledged packet, if there is one.
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
    /// The round ends with the ACK of a packet that was sent after this many bytes had been delivered.
    round_ends: u64,
    /// Delivery rates with their rounds, by descending rate. The first is the maximum.
    rates: VecDeque<(u64, f64)>,
    /// Minimum RTT; `None` before the first sample.
    base: Option<Time>,
    /// When the minimum RTT was measured.
    base_at: Time,
    /// Number of times that a packet or an ACK has overtaken others, up to [`MAX_OVERTAKEN`]. From the first
    /// time on, a single RTT sample may be too short, so the median of `late_trips` counts.
    overtaken: u8,
    /// The last [`MEDIAN_SAMPLES`] RTT samples.
    late_trips: VecDeque<Time>,
    /// The last two RTT samples, the older one first.
    turns: Option<[Time; 2]>,
    /// The smoothed amount by which successive RTT samples go up and down.
    shakes: Time,
    /// The maximum of `shakes` since the minimum RTT was measured.
    jitter: Time,
    /// Smoothed RTT.
    smooth: Time,
    /// Start-up: the maximum number of bytes that one round trip carried. Bytes that waited in a queue do not
    /// count.
    carried: u64,
    /// Start-up: whether the jitter allowance was above 0 at the last ACK of start-up.
    jittery: bool,
    /// Start-up: the delivery rate at the last growth. The next growth must reach 1.25 times this.
    reached: f64,
    /// Start-up: number of rounds in a row without growth to 1.25 times `reached`.
    plateau: u8,
    /// Number of ACKs in a row that show a queue.
    queued: u8,
    /// Number of ACKs in a row that show no queue.
    calm: u8,
    /// The delivery rate before the last bandwidth probe, in bytes a second.
    probed: f64,
    /// Number of rounds in a row with a long RTT (see [`SLOW_ROUNDS`]).
    slow: u8,
    /// Bytes delivered and lost in this round.
    counted: (u64, u64),
    /// Bytes delivered and lost in the current loss sample, which takes a round or more.
    sampled: (u64, u64),
    /// Loss rates of the last samples: as many as [`CYCLE`] has phases.
    losses: VecDeque<f64>,
    /// Whether a queue was seen during this sample.
    crowded: bool,
    /// The fraction of packets that the path loses however fast they are sent; see [`Self::see_loss`].
    path_loss: f64,
    /// The least path loss since start-up last began.
    least_path_loss: f64,
    /// The smoothed loss rate of rounds.
    lossy: f64,
    /// The greatest path loss that the sender makes up for, if the caller has set it.
    most_made_up: Option<f64>,
    /// In start-up, the cwnd is at least this many times what a round trip has carried.
    growth: f64,
    /// RTT samples that vary by up to this much do not count as jitter.
    unsteady: Time,
    /// Whether the receiver acknowledges each packet.
    acknowledged_each: bool,
}

impl Rate {
    /// Creates the controller. The first cwnd is `initial` packets of `full` bytes.
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
            overtaken: 0,
            late_trips: VecDeque::new(),
            turns: None,
            shakes: Time::ZERO,
            jitter: Time::ZERO,
            smooth: Time::ZERO,
            carried: 0,
            jittery: false,
            reached: 0.0,
            plateau: 0,
            queued: 0,
            calm: 0,
            probed: 0.0,
            slow: 0,
            counted: (0, 0),
            sampled: (0, 0),
            losses: VecDeque::new(),
            crowded: false,
            path_loss: 0.0,
            least_path_loss: 0.0,
            lossy: 0.0,
            most_made_up: None,
            growth: 0.0,
            unsteady: HOST_JITTER,
            acknowledged_each: false,
        }
    }

    /// Makes up for loss of up to this fraction, but only for the [path loss](Self::path_loss). The sender
    /// must not make up for loss that its own rate causes.
    #[must_use]
    pub fn making_up(self, most: f64) -> Self {
        Self { most_made_up: Some(most), ..self }
    }

    /// Starts faster, and overflows short queues by more. Meant for senders that retransmit the packets that
    /// are lost there.
    #[must_use]
    pub fn starting_fast(self) -> Self {
        Self { growth: FAST_START_FACTOR, ..self }
    }

    /// For a sender whose receiver acknowledges each packet: keeps enough in flight to get ACKs even if most
    /// packets and ACKs are lost.
    #[must_use]
    pub fn acknowledged_each(self) -> Self {
        Self { acknowledged_each: true, ..self }
    }

    /// RTT samples that vary by up to `unsteady` do not count as jitter. Meant for senders with few RTT
    /// samples, because a queue changes much between two of them.
    #[must_use]
    pub fn unsteady(self, unsteady: Time) -> Self {
        Self { unsteady, ..self }
    }

    /// From now on, packets may have up to `longest` bytes.
    pub fn carry(&mut self, longest: u64) {
        self.full = self.full.max(longest);
        self.window = self.window.max(self.floor());
    }

    /// Bytes of the longest packet.
    pub fn full(&self) -> u64 {
        self.full
    }

    /// Congestion window in bytes.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Maximum number of bytes in flight: the cwnd, and those bytes that the path will lose. Lost bytes count
    /// as in flight until their loss is detected.
    pub fn flight(&self) -> u64 {
        let flight = (self.window as f64 / (1.0 - self.made_up())) as u64;
        if self.acknowledged_each && self.path_loss > VERY_LOSSY && self.is_clear() {
            // The pacing rate limits too, so this adds packets only while no ACK arrives.
            flight.max(self.answered() * self.full)
        } else {
            flight
        }
    }

    /// Whether the RTT shows no queue. If many senders overflow a queue together, none of them can lessen the
    /// loss by slowing down alone. But each of them sees the queue in its RTT.
    fn is_clear(&self) -> bool {
        self.base.is_some_and(|base| self.smooth <= base + queue_shows(base) + self.held_up())
    }

    /// Number of packets that must be sent for at least one ACK to arrive with a probability of 0.95. 0 if
    /// the loss rate is not known.
    pub fn answered(&self) -> u64 {
        let arrives = 1.0 - self.path_loss.min(EXTREME_MAX_MADE_UP);
        if self.losses.is_empty() {
            0
        } else {
            (FLIGHT_ACKS / (arrives * arrives)) as u64
        }
    }

    /// Minimum RTT.
    pub fn base(&self) -> Option<Time> {
        self.base
    }

    /// Pacing rate in bytes a second; `None` if only the cwnd limits.
    pub fn pace(&self) -> Option<f64> {
        let base = self.base.filter(|&base| base >= MIN_PACED_RTT)?;
        let mut rate = self.rates.front()?.1;
        if matches!(self.mode, Mode::Starting | Mode::Checking(_)) {
            // A few small messages do not show the path's rate, and must not slow down the data that follows.
            let carried = if self.growth > 0.0 { self.carried } else { 0 };
            rate = rate.max((self.initial * self.full).max(carried) as f64 / base.as_secs_f64());
        }
        let gain = match self.mode {
            Mode::Starting => STARTUP_GAIN,
            Mode::Draining => 1.0 / STARTUP_GAIN,
            Mode::Cruising(phase, _) => CYCLE[phase],
            Mode::Looking(_) | Mode::Checking(_) => 1.0,
        };
        // A delivery rate that was measured with few ACKs may be far too low.
        let least = if self.acknowledged_each && self.path_loss > VERY_LOSSY {
            MIN_PACKETS as f64 / self.smooth.max(base).as_secs_f64()
        } else {
            1.0
        };
        Some((gain * rate / (1.0 - self.made_up())).max(least * self.full as f64))
    }

    /// Bytes that may always be in flight.
    fn floor(&self) -> u64 {
        self.full * if self.path_loss > VERY_LOSSY { LOSSY_MIN_PACKETS } else { MIN_PACKETS }
    }

    /// The fraction of the sent bytes that makes up for loss.
    pub fn made_up(&self) -> f64 {
        if matches!(self.mode, Mode::Cruising(1..=2, _)) && self.path_loss > SELF_CAUSED_LOSS {
            return 0.0;
        }
        // On a very lossy path there are few RTT samples, so one late sample does not prove a queue.
        let queued =
            if self.acknowledged_each && self.path_loss > VERY_LOSSY { LOSSY_QUEUE_SAMPLES } else { 1 };
        if self.queued < queued || matches!(self.mode, Mode::Checking(_)) {
            let most = self.most_made_up.map(|most| match self.path_loss {
                loss if self.acknowledged_each && loss > EXTREME_LOSS && self.is_clear() => {
                    most.max(EXTREME_MAX_MADE_UP)
                }
                loss if loss > VERY_LOSSY => most.max(LOSSY_MAX_MADE_UP),
                _ => most,
            });
            most.map_or(self.lossy.min(MAX_MADE_UP), |most| self.path_loss.min(most))
        } else {
            0.0
        }
    }

    /// Returns the estimates of this controller and of `trips`. The sender fills in the other fields.
    pub fn believes(&self, trips: &Trips) -> Belief {
        Belief {
            phase: match self.mode {
                Mode::Starting => "starting",
                Mode::Checking(_) => "checking",
                Mode::Draining => "draining",
                Mode::Cruising(..) => "cruising",
                Mode::Looking(_) => "looking",
            },
            smooth: trips.smooth(),
            variation: trips.variation(),
            latest: trips.latest(),
            base: self.base,
            held_up: self.held_up(),
            rate: self.rates.front().map(|&(_, rate)| rate),
            pace: self.pace(),
            window: self.window,
            in_flight: 0,
            delivered: 0,
            lost: 0,
            path_loss: self.path_loss,
            reordering_packets: trips.packets(),
            reordering_time: trips.time_threshold(),
            waits: Waits::Idle,
        }
    }

    /// Path loss: the fraction of packets that the path loses however fast they are sent.
    pub fn path_loss(&self) -> f64 {
        self.path_loss
    }

    /// The BDP in bytes, for an RTT that includes jitter.
    fn holds(&self) -> Option<u64> {
        let base = self.base?;
        let jitter = self.held_up();
        let trip = self.smooth.clamp(base + jitter, base + 2 * jitter);
        Some((self.rates.front()?.1 * trip.as_secs_f64()) as u64)
    }

    /// `gain` times the BDP, plus the bytes that arrive during [`QUEUE`] and the jitter allowance.
    fn target(&self, gain: f64) -> Option<u64> {
        let (rate, base) = (self.rates.front()?.1, self.base?);
        let more = QUEUE + self.held_up();
        Some((rate * (gain * base.as_secs_f64() + more.as_secs_f64())) as u64)
    }

    /// Jitter allowance: how much longer than the minimum an RTT may be because of the path's jitter.
    fn held_up(&self) -> Time {
        JITTER_FACTOR * self.jitter.saturating_sub(self.unsteady)
    }

    /// Measures jitter: how far RTT samples go up and down again from one to the next. A queue, in contrast,
    /// grows and shrinks over many samples.
    fn see_jitter(&mut self, trip: Option<Time>) {
        let Some(trip) = trip else { return };
        self.smooth = if self.smooth.is_zero() { trip } else { self.smooth - self.smooth / 8 + trip / 8 };
        let [before, last] = self.turns.unwrap_or([trip; 2]);
        self.turns = Some([last, trip]);
        let turned = (before < last && last > trip) || (before > last && last < trip);
        let by = if turned { before.abs_diff(last).max(last.abs_diff(trip)) } else { Time::ZERO };
        self.shakes = self.shakes - self.shakes / JITTER_GAIN + by / JITTER_GAIN;
        self.jitter = self.jitter.max(self.shakes);
    }

    /// Processes an ACK.
    pub fn on_ack(&mut self, sample: &AckSample) {
        let new_round = sample.measured.is_some_and(|measured| measured.before >= self.round_ends);
        if new_round {
            self.round += 1;
            self.round_ends = sample.delivered;
            self.see_loss();
            self.see_slow_path(sample.trip);
        }
        let (arrived, lost) = sample.fates;
        self.counted = (self.counted.0 + arrived, self.counted.1 + lost);
        self.see_jitter(sample.trip);
        self.see_queue(sample.trip);
        self.see_carried(sample);
        if let Some(measured) = sample.measured {
            self.delivered_at(measured);
        }
        let aged = sample.trip.is_some_and(|trip| self.tripped(sample.now, trip));
        match self.mode {
            Mode::Starting => self.starting(sample, new_round),
            // If the path's jitter shows only now, the apparent queue was jitter: go on with start-up.
            Mode::Checking(_) if self.calm >= QUEUE_SAMPLES || self.found_jitter() => {
                self.mode = Mode::Starting
            }
            Mode::Checking(until) if self.round >= until => self.mode = Mode::Draining,
            Mode::Checking(_) => {}
            Mode::Draining | Mode::Cruising(..) if aged => {
                self.mode = Mode::Looking(sample.now + PROBE_RTT_TIME.max(self.base.unwrap_or_default()));
            }
            Mode::Draining => {
                if self.target(1.0).is_none_or(|most| sample.under_way <= most) {
                    self.mode = Mode::Cruising(0, sample.now);
                    self.probed = self.rates.front().map_or(0.0, |&(_, rate)| rate);
                }
            }
            Mode::Cruising(phase, since) => self.cruising(sample, phase, since),
            Mode::Looking(until) if sample.now >= until => {
                self.base_at = sample.now;
                self.mode = Mode::Cruising(2, sample.now);
            }
            Mode::Looking(_) => {}
        }
        self.resize(sample.bytes);
    }

    /// Takes a sample of the loss rate. The least sample of one cycle is the path's loss. The sender was
    /// slower than the path in some of these samples, so slowing down does not lessen that loss. A sample
    /// during which a queue was seen does not count, since the queue may have overflowed.
    fn see_loss(&mut self) {
        let (arrived, lost) = std::mem::take(&mut self.counted);
        self.lossy = (3.0 * self.lossy + lost as f64 / ((arrived + lost) as f64).max(1.0)) / 4.0;
        self.sampled = (self.sampled.0 + arrived, self.sampled.1 + lost);
        let (arrived, lost) = self.sampled;
        let packets = (arrived + lost) as f64 / self.full as f64;
        if packets < MIN_SAMPLE_PACKETS {
            return;
        }
        self.sampled = (0, 0);
        if std::mem::take(&mut self.crowded) {
            return; // the queue may have overflowed, whoever filled it
        }
        let share = lost as f64 / (arrived + lost) as f64;
        // The least of several samples is below the mean by about their standard deviation, so add that.
        let error = (share * (1.0 - share) / packets).sqrt();
        if self.losses.len() == CYCLE.len() {
            self.losses.pop_front();
        }
        self.losses.push_back(share + error);
        self.path_loss = self.losses.iter().copied().fold(1.0, f64::min);
        let least = self.least_path_loss.min(self.path_loss);
        self.least_path_loss = least;
        let makes_up = self.most_made_up.is_some();
        if makes_up && self.path_loss > least + RESTART_LOSS && matches!(self.mode, Mode::Cruising(..)) {
            // The path loss has risen, and the rate fell before this was detected. Later cycles would raise
            // the rate only by a quarter each, which takes too long. So start up again.
            self.least_path_loss = self.path_loss;
            (self.mode, self.plateau) = (Mode::Starting, 0);
            (self.reached, self.carried) = (0.0, 0);
        }
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

    /// Processes an RTT sample. Returns whether the minimum RTT has expired and must be measured again.
    fn tripped(&mut self, now: Time, trip: Time) -> bool {
        let trip = trip.max(Time::from_micros(10));
        let aged = now.saturating_sub(self.base_at) > MIN_RTT_VALID;
        let trip = self.usual(trip);
        if self.base.is_none_or(|base| trip <= base || aged) {
            (self.base, self.base_at, self.queued) = (Some(trip), now, 0);
            if aged {
                self.jitter = self.shakes;
            }
            return aged;
        }
        if matches!(self.mode, Mode::Looking(_)) {
            self.base = self.base.map(|base| base.min(trip));
        }
        false
    }

    /// The RTT that counts. On a path that reorders it is the median of the last samples, since the RTT of a
    /// packet or ACK that overtakes others is too short.
    fn usual(&mut self, trip: Time) -> Time {
        if self.late_trips.len() == MEDIAN_SAMPLES {
            self.late_trips.pop_front();
        }
        self.late_trips.push_back(trip);
        if self.overtaken == 0 {
            return trip;
        }
        let mut trips: Vec<Time> = self.late_trips.iter().copied().collect();
        trips.sort_unstable();
        trips.get(trips.len() / 2).copied().unwrap_or(trip)
    }

    /// Notes that a packet or an ACK has overtaken others. The one from which the current minimum RTT comes
    /// may have done so too. So the first few times, raise the minimum RTT to the smoothed RTT and measure it
    /// anew.
    pub fn overtaken(&mut self) {
        if self.overtaken < MAX_OVERTAKEN {
            self.overtaken += 1;
            self.base = self.base.map(|base| base.max(self.smooth));
        }
    }

    /// Counts successive ACKs that show a queue, or none (RFC 9406, section 4.2).
    fn see_queue(&mut self, trip: Option<Time>) {
        let (Some(trip), Some(base)) = (trip, self.base) else { return };
        (self.queued, self.calm) = match trip > base + queue_shows(base) + self.held_up() {
            true => (self.queued.saturating_add(1), 0),
            false => (0, self.calm.saturating_add(1)),
        };
        self.crowded |= self.queued >= QUEUE_SAMPLES;
    }

    /// Measures how many bytes a round trip carries. If it took long to send a flight, its delivery rate is
    /// less than the path's rate. With the delivery rate alone, the cwnd would then grow only by half in a
    /// round trip. Bytes that waited in a queue do not count.
    fn see_carried(&mut self, sample: &AckSample) {
        let (Some(trip), Some(base), Some(measured)) = (sample.trip, self.base, sample.measured) else {
            return;
        };
        let usual = self.smooth.clamp(base, base + self.held_up());
        let share = (usual.as_secs_f64() / trip.as_secs_f64().max(1e-6)).min(1.0);
        self.carried = self.carried.max(((sample.delivered - measured.before) as f64 * share) as u64);
    }

    /// Detects that the path has become slower than the rates that are still valid. Those rates fill a queue,
    /// and so make rounds longer; [`ROUNDS`] of them would take seconds. So this forgets all rates except
    /// those of the last round.
    fn see_slow_path(&mut self, trip: Option<Time>) {
        let (Some(trip), Some(base)) = (trip, self.base) else { return };
        self.slow = if trip > 2 * (base + QUEUE) + self.held_up() { self.slow.saturating_add(1) } else { 0 };
        if self.slow >= SLOW_ROUNDS {
            let last = self.round.saturating_sub(1);
            self.rates.retain(|&(round, _)| round >= last);
        }
    }

    fn starting(&mut self, sample: &AckSample, new_round: bool) {
        let rate = self.rates.front().map_or(0.0, |&(_, rate)| rate);
        if new_round && !sample.measured.is_some_and(|measured| measured.idle) {
            if rate >= 1.25 * self.reached {
                (self.reached, self.plateau) = (rate, 0);
            } else {
                self.plateau += 1;
            }
        }
        let jitter = !self.held_up().is_zero();
        self.jittery = jitter;
        let more = self.losses.back().map_or(0.0, |late| late - self.path_loss);
        let full = if jitter && more > OVERFLOW_LOSS { 1 } else { FULL_ROUNDS };
        if self.plateau >= full {
            self.mode = Mode::Draining;
        } else if self.queued >= QUEUE_SAMPLES && self.reached > 0.0 && !jitter {
            self.mode = Mode::Checking(self.round + CSS_ROUNDS);
        }
    }

    /// Whether the path shows jitter that was not known when start-up saw a queue.
    fn found_jitter(&self) -> bool {
        !self.jittery && !self.held_up().is_zero()
    }

    fn cruising(&mut self, sample: &AckSample, phase: usize, since: Time) {
        let passed = sample.now.saturating_sub(since) > self.base.unwrap_or_default();
        let over = match CYCLE[phase] {
            gain if gain < 1.0 => passed || self.target(0.5).is_none_or(|most| sample.under_way <= most),
            _ => passed,
        };
        if over {
            let rate = self.rates.front().map_or(0.0, |&(_, rate)| rate);
            let again = phase == 1 && rate >= PROBE_AGAIN_GAIN * self.probed;
            let next = if again { 0 } else { (phase + 1) % CYCLE.len() };
            if next == 0 {
                self.probed = rate;
            }
            self.mode = Mode::Cruising(next, sample.now);
        }
    }

    fn resize(&mut self, acknowledged: u64) {
        let floor = self.floor();
        let follows = match self.mode {
            Mode::Starting => {
                // Twice the BDP doubles the rate each round trip. It overshoots by a queue of at most one
                // round trip.
                let most = self.target(1.0).zip(self.holds()).map(|(target, holds)| target.max(2 * holds));
                let follows =
                    (self.window + acknowledged).min(most.unwrap_or(u64::MAX).max(self.initial * self.full));
                follows.max((self.growth * self.carried as f64) as u64)
            }
            Mode::Draining | Mode::Cruising(..) => {
                // The cwnd falls to the target at once. It rises by the bytes that are delivered.
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
    /// A number of bytes so large that the sampling error of a loss rate is small.
    const MANY: f64 = 1e9;

    fn sample(now: Time, rate: f64, trip: Time, round: u64) -> AckSample {
        let measured = Some(Measured { rate, idle: false, before: round });
        AckSample {
            now,
            bytes: 10_000,
            fates: (10_000, 0),
            delivered: round + 1,
            under_way: 10_000,
            trip: Some(trip),
            measured,
        }
    }

    fn cruising() -> Rate {
        let mut rate = Rate::new(1_400, 32);
        for round in 0..20 {
            rate.on_ack(&sample((40 * round as u32) * MS, 1e6, 40 * MS, round));
        }
        assert!(matches!(rate.mode, Mode::Cruising(..)), "{:?}", rate.mode);
        rate
    }

    #[test]
    fn starts_fast_and_then_keeps_to_the_path() {
        let mut rate = Rate::new(1_400, 32);
        assert_eq!((rate.window(), rate.pace()), (32 * 1_400, None));
        rate.on_ack(&sample(40 * MS, 5e5, 40 * MS, 0));
        assert_eq!(rate.pace(), Some(STARTUP_GAIN * 32.0 * 1_400.0 / 0.04), "not slower than it began");
        rate.on_ack(&sample(80 * MS, 2e6, 40 * MS, 1));
        assert_eq!(rate.pace(), Some(STARTUP_GAIN * 2e6));
        let rate = cruising();
        let holds = 1e6 * (1.25 * 0.04 + 0.02);
        assert!((rate.window() as f64 - holds).abs() < 1_400.0, "{} of {holds}", rate.window());
    }

    /// A sender that has just seen a queue.
    fn checking() -> Rate {
        let mut rate = Rate::new(1_400, 32);
        rate.on_ack(&sample(40 * MS, 1e6, 40 * MS, 0));
        for n in 1..=QUEUE_SAMPLES {
            assert_eq!(rate.mode, Mode::Starting);
            rate.on_ack(&sample((40 + u32::from(n)) * MS, 2e6, 46 * MS, 0));
        }
        assert!(matches!(rate.mode, Mode::Checking(_)), "{:?}", rate.mode);
        rate
    }

    #[test]
    fn the_first_queue_that_stays_ends_the_start() {
        let mut rate = checking();
        for round in 1..4 {
            rate.on_ack(&sample((40 + 40 * round as u32) * MS, 2e6, 46 * MS, round));
        }
        assert!(matches!(rate.mode, Mode::Draining | Mode::Cruising(..)), "{:?}", rate.mode);
    }

    #[test]
    fn small_messages_do_not_end_the_start() {
        let mut rate = Rate::new(1_400, 32);
        for round in 0..40 {
            let idle = Measured { rate: 1e3, idle: true, before: round };
            let late = sample((40 * round as u32) * MS, 1e3, if round == 0 { 40 } else { 50 } * MS, round);
            rate.on_ack(&AckSample { measured: Some(idle), ..late });
        }
        assert_eq!(rate.mode, Mode::Starting);
        assert_eq!(rate.pace(), Some(STARTUP_GAIN * 32.0 * 1_400.0 / 0.04));
    }

    #[test]
    fn a_queue_that_turns_out_to_be_jitter_does_not_end_the_start() {
        let mut rate = checking();
        for n in 0..20_u32 {
            let trip = if n % 2 == 0 { 60 } else { 160 };
            rate.on_ack(&sample((60 + n) * MS, 2e6, trip * MS, 0));
        }
        assert_eq!(rate.mode, Mode::Starting);
    }

    /// The flight took a round trip to send, so its delivery rate is half of what the path carries.
    #[test]
    fn a_flight_that_took_long_to_send_does_not_slow_down_the_start() {
        let mut rate = Rate::new(1_400, 32).starting_fast();
        rate.on_ack(&sample(40 * MS, 1e6, 40 * MS, 0));
        let long = AckSample { delivered: 100_000, ..sample(120 * MS, 1.25e6, 40 * MS, 0) };
        rate.on_ack(&long);
        assert_eq!(rate.window(), (FAST_START_FACTOR * 100_000.0) as u64);
        // Bytes that waited in a queue do not count.
        let mut rate = Rate::new(1_400, 32).starting_fast();
        rate.on_ack(&sample(40 * MS, 1e6, 40 * MS, 0));
        rate.on_ack(&AckSample { delivered: 100_000, trip: Some(400 * MS), ..long });
        assert!(rate.carried < 50_000, "{}", rate.carried);
    }

    #[test]
    fn late_acknowledgements_do_not_end_the_start() {
        let mut rate = checking();
        for n in 0..QUEUE_SAMPLES {
            rate.on_ack(&sample((60 + u32::from(n)) * MS, 2e6, 41 * MS, 0));
        }
        assert_eq!(rate.mode, Mode::Starting);
    }

    #[test]
    fn a_rate_is_forgotten_after_ten_rounds_and_an_idle_one_at_once() {
        let mut rate = cruising();
        let idle = Measured { rate: 5e5, idle: true, before: 20 };
        rate.on_ack(&AckSample { measured: Some(idle), ..sample(800 * MS, 5e5, 40 * MS, 20) });
        assert_eq!(rate.rates.front().map(|r| r.1), Some(1e6));
        for round in 21..40 {
            rate.on_ack(&sample(40 * MS * round as u32, 5e5, 40 * MS, round));
        }
        assert_eq!(rate.rates.front().map(|r| r.1), Some(5e5));
    }

    #[test]
    fn a_sender_makes_up_for_loss_within_a_bound() {
        let mut rate = cruising();
        let pace = |rate: &Rate| {
            rate.pace().unwrap()
                / 1e6
                / if let Mode::Cruising(phase, _) = rate.mode { CYCLE[phase] } else { 1.0 }
        };
        for (share, expected) in [(0.05, 1.0 / 0.95), (0.4, 1.0 / 0.9), (0.0, 1.0)] {
            for _ in 0..60 {
                let round = rate.round + 1;
                let lost = (MANY * share / (1.0 - share)) as u64;
                let now = 40 * MS * round as u32;
                let fates = (MANY as u64, lost);
                rate.on_ack(&AckSample { fates, ..sample(now, 1e6, 40 * MS, rate.round_ends) });
            }
            assert!((pace(&rate) - expected).abs() < 0.001, "{share}: {}", pace(&rate));
        }
    }

    #[test]
    fn a_sender_without_retransmissions_may_make_up_for_more() {
        let mut rate = cruising().making_up(0.4);
        for _ in 0..60 {
            let round = rate.round + 1;
            rate.on_ack(&AckSample {
                fates: (MANY as u64, MANY as u64 / 2),
                ..sample(40 * MS * round as u32, 1e6, 40 * MS, rate.round_ends)
            });
        }
        assert!((rate.made_up() - 1.0 / 3.0).abs() < 0.001, "{}", rate.made_up());
    }

    /// Every eighth round is slower and loses nothing. So the sender causes the losses of the other rounds
    /// itself.
    #[test]
    fn loss_that_slowing_down_lessens_is_not_made_up_for() {
        let mut rate = cruising().making_up(0.8);
        for n in 0..60 {
            let round = rate.round + 1;
            let fates = if n % 8 == 0 { (MANY as u64, 0) } else { (MANY as u64, MANY as u64 / 2) };
            rate.on_ack(&AckSample {
                fates,
                ..sample(40 * MS * round as u32, 1e6, 40 * MS, rate.round_ends)
            });
        }
        assert_eq!((rate.path_loss(), rate.flight()), (0.0, rate.window()));
    }

    /// At first the path loses 70 % in front of a queue too short to be seen. Later it loses only what the
    /// queue cannot hold.
    #[test]
    fn loss_that_making_up_for_loss_causes_is_not_path_loss() {
        let mut rate = cruising().making_up(0.4);
        for (loss, least, most) in [(0.7, 0.6, 0.62), (0.0, 0.0, 0.05)] {
            for _ in 0..100 {
                let sent = rate.pace().unwrap();
                let arrived = (sent * (1.0 - loss)).min(1e6);
                let fates = ((MANY * arrived / sent) as u64, (MANY * (1.0 - arrived / sent)) as u64);
                let now = 40 * MS * (rate.round + 1) as u32;
                rate.on_ack(&AckSample { fates, ..sample(now, arrived, 40 * MS, rate.round_ends) });
            }
            let made_up = rate.path_loss().min(LOSSY_MAX_MADE_UP);
            assert!((least..=most).contains(&made_up), "{loss}: {made_up} of {rate:?}");
        }
    }

    #[test]
    fn start_up_begins_again_once_much_more_is_lost() {
        let mut rate = cruising().making_up(0.6).starting_fast();
        let mut modes = Vec::new();
        for _ in 0..20 {
            let round = rate.round + 1;
            let fates = (MANY as u64, 2 * MANY as u64);
            rate.on_ack(&AckSample {
                fates,
                ..sample(40 * MS * round as u32, 1e5, 40 * MS, rate.round_ends)
            });
            modes.push(rate.mode == Mode::Starting);
        }
        assert!(modes[..6].iter().all(|starting| !starting), "one bad round is no sign: {modes:?}");
        assert!(modes.contains(&true), "{modes:?}");
    }

    /// RTTs of 40 ms and 140 ms by turns.
    #[test]
    fn the_window_allows_for_jitter_and_start_up_does_not_end_for_it() {
        let mut rate = Rate::new(1_400, 32);
        for n in 0..40_u32 {
            let trip = if n % 2 == 0 { 40 * MS } else { 140 * MS };
            rate.on_ack(&sample(n * MS, 1e5 * 1.3_f64.powi(n as i32), trip, n.into()));
        }
        assert_eq!(rate.mode, Mode::Starting);
        assert!(rate.held_up() > 100 * MS, "{:?}", rate.held_up());
        assert!(rate.window() > 300_000, "{}", rate.window());
        // A queue that grows and then shrinks is no jitter.
        let mut rate = cruising();
        for n in 0..100_u32 {
            let trip = 40 * MS + 4 * MS * if n < 50 { n } else { 100 - n };
            rate.on_ack(&sample(800 * MS + n * MS, 1e6, trip, 19));
        }
        assert_eq!(rate.held_up(), Time::ZERO);
    }

    #[test]
    fn overtaking_packets_do_not_shorten_the_minimum_rtt() {
        let trips = [20, 40, 40, 40, 40, 20, 40, 40, 40, 20, 40, 40, 40, 40, 40];
        let mut rate = Rate::new(1_400, 32);
        for (n, &trip) in (0_u32..).zip(&trips) {
            rate.on_ack(&sample(n * MS, 1e6, trip * MS, 0));
            if n == 3 {
                assert_eq!(rate.base(), Some(20 * MS), "nobody knows yet");
                rate.overtaken();
            }
        }
        assert!(rate.base() > Some(25 * MS), "{:?}", rate.base());
    }

    /// The path's rate has fallen to a tenth, behind the queue that earlier packets have left. Three such
    /// rounds are enough to detect it.
    #[test]
    fn a_path_that_has_become_slower_is_believed_after_three_rounds() {
        let mut rate = cruising();
        for round in 20..23 {
            assert_eq!(rate.rates.front().map(|r| r.1), Some(1e6));
            rate.on_ack(&sample(800 * MS + 130 * MS * (round as u32 - 19), 1e5, 130 * MS, round));
        }
        assert_eq!(rate.rates.front().map(|r| r.1), Some(1e5));
    }

    #[test]
    fn an_old_minimum_rtt_is_measured_again() {
        let mut rate = cruising();
        let mut shrank = false;
        for round in 20..400 {
            rate.on_ack(&sample(40 * MS * round as u32, 1e6, 60 * MS, round));
            shrank |= rate.window() <= (1e6 * (0.5 * 0.06 + 0.02)) as u64;
        }
        assert!(shrank, "it never looked");
        assert_eq!(rate.base(), Some(60 * MS), "the path has become longer");
        assert!(matches!(rate.mode, Mode::Cruising(..)));
    }
}
