//! The send window: how many bytes may be in flight, and how fast they are sent. The window reads no clock;
//! `now` is an argument.
//!
//! Two limits hold at once. The first is the peer's receive buffer: a peer that does not read stops its
//! sender, and no datagram is lost. Each datagram counts with its [`cost`], which is at least what the kernel
//! charges for it. The second limit comes from [`thalweg_sending`], which `ltp` uses too: BBR's cwnd and
//! pacing rate. They follow the delivery rate and do not react to loss.
//!
//! Nothing is retransmitted, and single datagrams are not acknowledged. Some datagrams, called marks, ask for
//! a report; the peer then reports what it has received. Datagrams that a report passes over are lost or
//! late, and hold up nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use thalweg_sending::{AckSample, Belief, Delivery, Pacer, Rate, Stamp, Time, Trips, Waits};

use crate::datagram::WHOLE;

/// Maximum number of bytes that the kernel charges a receive buffer for a packet beyond its data. Linux
/// rounds the data up to a power of two and adds the size of its own packet structure.
pub const OVERHEAD: usize = 1024;
/// Cost of the longest datagram that IP does not fragment.
const FULL_COST: u64 = cost(WHOLE);
/// Initial window in full-sized datagrams. TCP begins with 10 segments (RFC 6928). We begin with more,
/// because lost chunks are not retransmitted.
const INITIAL_WINDOW: u64 = 16;
/// Upper bound of loss compensation, as a share of the sending rate. If a queue is too short to be noticed,
/// compensation itself causes loss; this is also the upper bound of that loss.
const MAX_COMPENSATION: f64 = 0.4;
/// RTT differences up to this value do not count as jitter. Few RTT samples are taken, and the queue may
/// change by this much between two of them.
const MAX_NOISE: Duration = Duration::from_millis(20);
/// Reports requested per window. The interval shrinks with the path's loss rate, since a lost datagram cannot
/// ask for a report.
const REPORTS_PER_WINDOW: u64 = 8;
/// Maximum number of report requests tracked at once.
const MAX_MARKS: usize = 64;
/// How much a sender that is not paced may send at once, by cost. One system call takes less.
const UNPACED_BURST: u64 = 1 << 24;
/// Base of the report timeout. The timeout doubles after each probe, up to `MAX_TIMEOUT`.
const TIMEOUT: Duration = Duration::from_millis(20);
/// Longest report timeout.
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_secs(1);

/// The most that a datagram of `bytes` bytes takes of the peer's receive buffer.
///
/// The kernel may receive a long datagram in fragments, and then it charges each packet. Or it receives it in
/// one piece, over loopback, and then it charges the size rounded up to a power of two. The cost is the
/// greater of both.
pub(crate) const fn cost(bytes: usize) -> u64 {
    if bytes <= WHOLE {
        return (bytes + OVERHEAD) as u64;
    }
    let fragments = bytes + bytes.div_ceil(1024) * OVERHEAD;
    let piece = (bytes + 512).next_power_of_two() + OVERHEAD;
    if fragments > piece {
        fragments as u64
    } else {
        piece as u64
    }
}

/// What the sender may do now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    /// Send datagrams of at most this cost.
    Now(u64),
    /// Wait until this time: pacing.
    At(Instant),
    /// Wait for a report: the window is full. If none has arrived by this time, send a probe.
    Report(Instant),
}

/// A datagram that asked for a report.
#[derive(Clone, Copy)]
struct Mark {
    /// Total cost sent, up to and with this datagram.
    position: u64,
    sent: Time,
    stamp: Stamp,
}

/// Limits what one direction of a link has in flight.
pub(crate) struct Window {
    /// If false, everything may be sent at once.
    paced: bool,
    /// The cost that the peer's receive buffer holds.
    peer: u64,
    began: Instant,
    rate: Rate,
    pacer: Pacer,
    delivery: Delivery,
    trips: Trips,
    /// Total cost sent.
    sent: u64,
    /// Highest position that the peer has reported.
    seen: u64,
    /// Total cost that the peer had received when it reported `seen`.
    received: u64,
    /// Largest value of `seen - received` so far, which is the total cost that counts as lost.
    missing: u64,
    /// Position of the last datagram that asked for a report.
    marked: u64,
    marks: VecDeque<Mark>,
    /// When the last report arrived or was asked for, and how long to wait for the next one.
    last_report: Instant,
    timeout: Duration,
    /// `sent` when a full window last led to a probe, since no report had arrived in time.
    probed: u64,
    /// Cost lost and cost received since a report last covered a mark.
    since_mark: (u64, u64),
    /// Why the sender does not send, for the trace.
    waits: Waits,
}

impl Window {
    pub(crate) fn new(peer: u64, paced: bool, now: Instant) -> Self {
        Self {
            paced,
            peer: peer.max(FULL_COST),
            began: now,
            rate: Rate::new(FULL_COST, INITIAL_WINDOW).making_up(MAX_COMPENSATION).unsteady(MAX_NOISE),
            pacer: Pacer::new(Time::ZERO),
            delivery: Delivery::default(),
            trips: Trips::new(),
            sent: 0,
            seen: 0,
            received: 0,
            missing: 0,
            marked: 0,
            marks: VecDeque::new(),
            last_report: now,
            timeout: TIMEOUT,
            probed: 0,
            since_mark: (0, 0),
            waits: Waits::Idle,
        }
    }

    /// From now on, datagrams have at most this length, in bytes.
    pub(crate) fn carry(&mut self, longest: usize) {
        self.rate.carry(cost(longest));
    }

    /// Total cost sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The smoothed RTT.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.trips.smooth()
    }

    fn time(&self, now: Instant) -> Time {
        now.saturating_duration_since(self.began)
    }

    fn under_way(&self) -> u64 {
        self.sent - self.seen
    }

    fn size(&self) -> u64 {
        // The cwnd, limited by the peer's buffer. A lost datagram stays in flight until a report passes over
        // it.
        self.rate.flight().max(2 * self.rate.full()).min(self.peer)
    }

    /// Returns what the sender may do now, and notes for the trace why it waits.
    pub(crate) fn permit(&mut self, now: Instant) -> Permit {
        let permit = self.next(now);
        self.waits = match permit {
            Permit::Now(_) => Waits::Idle,
            Permit::At(_) => Waits::Pace,
            Permit::Report(_) if self.size() == self.peer => Waits::Buffer,
            Permit::Report(_) => Waits::Window,
        };
        permit
    }

    /// The sender's path estimate for the trace, by cost.
    pub(crate) fn believes(&self) -> Belief {
        let (in_flight, delivered) = (self.under_way(), self.delivery.delivered());
        let (lost, waits, window) = (self.seen - self.received, self.waits, self.size());
        Belief { in_flight, delivered, lost, waits, window, ..self.rate.believes(&self.trips) }
    }

    fn next(&mut self, now: Instant) -> Permit {
        if !self.paced {
            return Permit::Now(UNPACED_BURST);
        }
        let full = self.rate.full();
        let room = self.size().saturating_sub(self.under_way());
        if room < full && self.under_way() > 0 {
            return Permit::Report(self.last_report + self.timeout);
        }
        let room = room.max(full);
        let Some(pace) = self.rate.pace() else { return Permit::Now(room) };
        let time = self.time(now);
        let at = self.pacer.at(time, pace, full as f64);
        if at > time {
            return Permit::At(self.began + at);
        }
        Permit::Now(room.min(self.pacer.saved() as u64))
    }

    /// Whether the last datagram of a batch should ask for a report. `position` is where the batch ends. A
    /// report is wanted when the batch fills the window, and [`REPORTS_PER_WINDOW`] times per window
    /// otherwise.
    pub(crate) fn wants_report(&self, position: u64) -> bool {
        position - self.seen + self.rate.full() > self.size() || position - self.marked >= self.interval()
    }

    fn interval(&self) -> u64 {
        ((self.size() / REPORTS_PER_WINDOW) as f64 * (1.0 - self.rate.path_loss())) as u64
    }

    /// Notes that datagrams were sent up to `position`. `reported` holds the positions of those that ask for
    /// a report.
    pub(crate) fn sent_to(&mut self, now: Instant, position: u64, reported: &[u64]) {
        let (time, alone) = (self.time(now), self.under_way() == 0);
        if alone {
            (self.last_report, self.timeout) = (now, self.wait());
        }
        let stamp = self.delivery.sent(time, alone);
        self.pacer.sent(position - self.sent);
        self.sent = position;
        for &mark in reported {
            self.marked = mark;
            if self.marks.len() == MAX_MARKS {
                self.marks.pop_front();
            }
            self.marks.push_back(Mark { position: mark, sent: time, stamp });
        }
    }

    /// Notes that the sender has no more data (it is application-limited).
    pub(crate) fn idle(&mut self) {
        self.delivery.idle(self.under_way());
        self.waits = Waits::Idle;
    }

    /// Notes that a probe was sent, and doubles the report timeout.
    pub(crate) fn probed(&mut self, now: Instant) {
        self.probed = self.sent;
        (self.last_report, self.timeout) = (now, (2 * self.timeout).min(MAX_TIMEOUT));
    }

    /// The report timeout before it is doubled.
    pub(crate) fn wait(&self) -> Duration {
        self.trips.smooth().map_or(10 * TIMEOUT, |trip| TIMEOUT + 2 * trip).min(MAX_TIMEOUT)
    }

    /// Processes a report: the peer has read up to position `seen`, and a cost of `received` in total.
    /// `timely` says that we read the report as soon as it arrived, so its delay is an RTT sample.
    pub(crate) fn reported(&mut self, now: Instant, seen: u64, received: u64, timely: bool) {
        if seen > self.sent || received > seen {
            // An honest peer cannot report this.
            return;
        }
        if seen < self.seen || received < self.received {
            // A later report has overtaken this one.
            return self.rate.overtaken();
        }
        let (time, arrived) = (self.time(now), received - self.received);
        if arrived > seen - self.seen {
            self.rate.overtaken();
        }
        (self.seen, self.received) = (seen, received);
        // Missing datagrams may only have been overtaken. So only a new maximum of the missing cost counts as
        // loss.
        let lost = (seen - received).saturating_sub(self.missing);
        self.missing += lost;
        (self.last_report, self.timeout) = (now, self.wait());
        let mut newest = None;
        while let Some(mark) = self.marks.front().copied().filter(|mark| mark.position <= seen) {
            self.marks.pop_front();
            newest = Some(mark);
        }
        self.since_mark = (self.since_mark.0 + lost, self.since_mark.1 + arrived);
        let Some(mark) = newest else { return };
        let (lost, arrived) = std::mem::take(&mut self.since_mark);
        self.delivery.arrived(time, arrived, mark.sent, mark.stamp);
        // Take no RTT sample if a later datagram or a probe may have caused the report (Karn and Partridge
        // 1987; RFC 6298, section 3).
        let by_probe = self.rate.base().is_some() && mark.position <= self.probed && self.probed <= seen;
        let caused = (lost == 0 || mark.position == seen) && !by_probe;
        let trip = (timely && caused).then(|| time.saturating_sub(mark.sent));
        trip.into_iter().for_each(|trip| self.trips.measured(trip));
        self.rate.on_ack(&AckSample {
            now: time,
            bytes: arrived,
            fates: (arrived, lost),
            delivered: self.delivery.delivered(),
            under_way: self.under_way(),
            trip,
            measured: self.delivery.measure(self.rate.base()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded;

    const MS: Duration = Duration::from_millis(1);

    /// A simulated link with a receiver. The sender always has data. Rates are by cost; the delay is one-way.
    struct Path {
        window: Window,
        now: Instant,
        free: Instant,
        received: u64,
        reports: VecDeque<(Instant, u64, u64)>,
        queued: Duration,
        /// If set, both ends react late; the delays are drawn from this seed (xorshift64).
        late: Option<u64>,
        began: Instant,
        /// Longest time in the queue. Datagrams beyond it are dropped.
        holds: Duration,
    }

    impl Path {
        fn new(peer: u64) -> Self {
            let now = Instant::now();
            let window = Window::new(peer, true, now);
            let (free, began, queued) = (now, now, Duration::ZERO);
            Self {
                window,
                now,
                free,
                received: 0,
                reports: VecDeque::new(),
                queued,
                late: None,
                began,
                holds: Duration::MAX,
            }
        }

        /// When an end that should work at `at` gets to run: up to 12 ms later.
        fn at_work(&mut self, at: Instant) -> Instant {
            let Some(rng) = &mut self.late else { return at };
            *rng ^= *rng << 13;
            *rng ^= *rng >> 7;
            *rng ^= *rng << 17;
            // A late end wakes up at a multiple of the slice, so it sees everything that arrived meanwhile at
            // once.
            let slice = 4 * MS;
            let next = (at - self.began).as_nanos() / slice.as_nanos() + 1;
            match *rng % 4 {
                0 => self.began + slice * (next as u32 + 2),
                1 => self.began + slice * next as u32,
                _ => at,
            }
        }

        /// Sends one datagram. Every `lost`-th one is dropped; with 0, none is.
        fn send(&mut self, rate: f64, delay: Duration, lost: u64) {
            let position = self.window.sent() + FULL_COST;
            let asks = self.window.wants_report(position);
            self.window.sent_to(self.now, position, &[position][..usize::from(asks)]);
            let fits = self.free.saturating_duration_since(self.now) <= self.holds;
            if fits && !(position / FULL_COST).is_multiple_of(lost) {
                self.received += FULL_COST;
            }
            if fits {
                self.free = self.free.max(self.now) + Duration::from_secs_f64(FULL_COST as f64 / rate);
                self.queued = self.free - self.now;
            }
            if asks {
                let read = self
                    .at_work(self.free + delay)
                    .max(self.reports.back().map_or(self.free, |r| r.0 - delay));
                self.reports.push_back((read + delay, position, self.received));
            }
        }

        fn run(&mut self, time: Duration, rate: f64, delay: Duration, lost: u64) -> (f64, Duration) {
            let (until, before, mut longest) = (self.now + time, self.received, Duration::ZERO);
            while self.now < until {
                match self.window.permit(self.now) {
                    Permit::Now(room) => {
                        assert!(room >= FULL_COST);
                        self.send(rate, delay, lost);
                        longest = longest.max(self.queued);
                        continue;
                    }
                    Permit::At(at) => self.now = self.at_work(at.max(self.now + MS / 10)),
                    Permit::Report(by) => {
                        if self.reports.is_empty() {
                            // The window has shrunk since the last datagram was sent, so no report is due.
                            // Send a probe.
                            self.window.probed(by);
                            self.reports.push_back((
                                self.free.max(by) + 2 * delay,
                                self.window.sent(),
                                self.received,
                            ));
                        }
                        let next = self.reports[0].0;
                        self.now = self.at_work(next.max(self.now)).max(self.now);
                    }
                }
                while let Some((_, seen, received)) =
                    self.reports.front().copied().filter(|r| r.0 <= self.now)
                {
                    self.reports.pop_front();
                    self.window.reported(self.now, seen, received, true);
                }
            }
            ((self.received - before) as f64 / time.as_secs_f64(), longest)
        }
    }

    #[test]
    fn fills_a_link_and_keeps_its_queue_short() {
        for (megabits, delay) in [(5.0, 50), (20.0, 30), (60.0, 10), (100.0, 20), (1000.0, 5)] {
            let (rate, delay) = (megabits * 1e6 / 8.0, delay * MS);
            let mut path = Path::new(64 << 20);
            let (_, starting) = path.run(2_000 * MS, rate, delay, 0);
            let (reached, settled) = path.run(8_000 * MS, rate, delay, 0);
            assert!(reached > 0.97 * rate, "{megabits} Mbit/s: {}", reached / rate);
            assert!(starting < 100 * MS, "{megabits} Mbit/s: {starting:?} queued at the beginning");
            assert!(settled < 60 * MS, "{megabits} Mbit/s: {settled:?} queued");
        }
    }

    /// On busy hosts, one late report covers what arrived over a longer time. Pacing must not overflow the
    /// queue even then. The queue holds 100 ms at the link's rate or 64 KiB, whichever is more, as in the
    /// emulated networks.
    #[test]
    fn late_ends_do_not_overflow_the_queue() {
        for (megabits, delay) in
            [(5.0, 50), (5.0, 0), (20.0, 0), (20.0, 25), (60.0, 0), (60.0, 10), (100.0, 20)]
        {
            for seed in 1..20 {
                // Convert to cost: a datagram has 1456 bytes with its IP header.
                let bytes = megabits * 1e6 / 8.0;
                let (rate, delay) = (bytes * FULL_COST as f64 / 1_456.0, delay * MS + MS / 10);
                let mut path = Path::new(4 << 20);
                path.late = Some(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
                let (_, starting) = path.run(2_000 * MS, rate, delay, 0);
                let (reached, longest) = path.run(40_000 * MS, rate, delay, 0);
                let longest = longest.max(starting);
                let holds = Duration::from_secs_f64((65_536.0 / bytes).max(0.1));
                assert!(longest < holds, "{megabits} Mbit/s, {delay:?}, {seed}: {longest:?} queued");
                assert!(reached > 0.97 * rate, "{megabits} Mbit/s, {delay:?}, {seed}: {}", reached / rate);
            }
        }
    }

    #[test]
    fn follows_a_link_that_changes() {
        let mut path = Path::new(64 << 20);
        path.run(2_000 * MS, 2.5e6, 20 * MS, 0);
        path.run(2_000 * MS, 1e7, 20 * MS, 0);
        let (reached, _) = path.run(2_000 * MS, 1e7, 20 * MS, 0);
        assert!(reached > 0.97e7, "{reached}");
        path.run(4_000 * MS, 1e6, 20 * MS, 0);
        let (reached, queued) = path.run(4_000 * MS, 1e6, 20 * MS, 0);
        assert!(reached > 0.97e6 && queued < 120 * MS, "{reached} {queued:?}");
    }

    #[test]
    fn single_losses_do_not_slow_it_down() {
        let mut path = Path::new(64 << 20);
        path.run(2_000 * MS, 1e7, 20 * MS, 50);
        let (reached, _) = path.run(4_000 * MS, 1e7, 20 * MS, 50);
        assert!(reached > 0.95e7, "{reached}");
    }

    #[test]
    fn the_peers_buffer_bounds_the_bytes_in_flight() {
        let now = Instant::now();
        let mut window = Window::new(10 * FULL_COST, true, now);
        let mut position = 0;
        while let Permit::Now(room) = window.permit(now) {
            assert!(position + FULL_COST <= 10 * FULL_COST && room <= 10 * FULL_COST - position);
            position += FULL_COST;
            window.sent_to(now, position, &[position]);
        }
        assert_eq!(position, 10 * FULL_COST);
        window.reported(now, position, position, true);
        assert_eq!(window.permit(now), Permit::Now(10 * FULL_COST));
    }

    #[test]
    fn an_unpaced_sender_does_not_wait() {
        let now = Instant::now();
        let mut window = Window::new(FULL_COST, false, now);
        for position in 1..1000 {
            assert_eq!(window.permit(now), Permit::Now(UNPACED_BURST));
            window.sent_to(now, position * FULL_COST, &[position * FULL_COST]);
        }
    }

    #[test]
    fn impossible_reports_do_not_open_the_window() {
        let now = Instant::now();
        let mut window = Window::new(4 * FULL_COST, true, now);
        window.sent_to(now, 4 * FULL_COST, &[4 * FULL_COST]);
        for (seen, received) in [(u64::MAX, 0), (5 * FULL_COST, 0), (FULL_COST, 2 * FULL_COST), (0, u64::MAX)]
        {
            window.reported(now, seen, received, true);
            assert!(matches!(window.permit(now), Permit::Report(_)), "{seen} {received}");
        }
        window.reported(now, FULL_COST, FULL_COST, true);
        assert_eq!(window.permit(now), Permit::Now(FULL_COST));
        // An old report changes nothing.
        window.reported(now, 0, 0, true);
        assert_eq!(window.permit(now), Permit::Now(FULL_COST));
    }

    #[test]
    fn probes_become_rarer_while_nobody_answers() {
        let mut now = Instant::now();
        let mut window = Window::new(FULL_COST, true, now);
        window.sent_to(now, FULL_COST, &[FULL_COST]);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let Permit::Report(by) = window.permit(now) else { unreachable!("the window is full") };
            pauses.push(by - now);
            now = by;
            window.probed(now);
        }
        assert!(pauses.is_sorted() && pauses[9] == MAX_TIMEOUT, "{pauses:?}");
        // The peer has received nothing.
        window.reported(now, FULL_COST, 0, true);
        assert_eq!(window.permit(now), Permit::Now(FULL_COST));
    }

    /// Runs one link for 2 s and then 8 s. The row has what arrived and what was sent in those 8 s, as shares
    /// of the link's rate, and the longest queue.
    fn row(megabits: f64, delay: Duration, lost: u64, holds: Option<Duration>) -> String {
        let rate = megabits * 1e6 / 8.0;
        let mut path = Path::new(64 << 20);
        path.holds = holds.unwrap_or(Duration::MAX);
        path.run(2_000 * MS, rate, delay, lost);
        let before = path.window.sent();
        let (reached, queued) = path.run(8_000 * MS, rate, delay, lost);
        let sent = (path.window.sent() - before) as f64 / 8.0;
        format!(
            "{megabits:>6} {:>7} {:>7} {:>9.1} {:>10.1} {:>12.1} {:>9.1}\n",
            2 * delay.as_millis(),
            holds.map_or("-".into(), |holds| holds.as_millis().to_string()),
            if lost == 0 { 0.0 } else { 100.0 / lost as f64 },
            reached / rate * 100.0,
            sent / rate * 100.0,
            queued.as_secs_f64() * 1e3,
        )
    }

    /// Compares the behaviour under loss with a table under version control.
    /// `THALWEG_REWRITE=1 cargo test -p thalweg-udp --lib table` rewrites the table.
    #[test]
    fn behaviour_under_loss_is_as_in_the_table() {
        let mut table = String::from(
            "One sender with always something to send, every so many-th datagram lost in front of a link whose queue holds\n\
             so many ms, or has no end. Seconds 3 to 10; what arrived and what was sent as shares of the link's rate.\n\n\
             Mbit/s  rtt ms   queue lost in % arrived %       sent % queued ms\n",
        );
        for (megabits, delay) in [(5.0, 50 * MS), (20.0, 25 * MS), (100.0, 20 * MS), (1000.0, MS)] {
            for lost in [0, 100, 20, 5, 3] {
                table.push_str(&row(megabits, delay, lost, None));
            }
            for holds in [1, 3, 10, 30] {
                table.push_str(&row(megabits, delay, 0, Some(holds * MS)));
                table.push_str(&row(megabits, delay, 20, Some(holds * MS)));
            }
        }
        recorded::assert_recorded(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/window.txt"), &table);
    }
}
