//! How much may be under way, and how fast. Reads no clock: `now` is an argument.
//!
//! Two bounds hold at once. One is the peer's receive buffer, so that a peer that does not read stops its sender
//! and loses nothing: a datagram is counted by [`cost`], which is no less than what the kernel charges for it. The
//! other follows delivery, as BBR does (Cardwell et al., ACM Queue 14(5), 2016): the greatest rate at which
//! datagrams have lately arrived, times the least round trip plus a queue of [`QUEUE`]. Single losses are no
//! reason to slow down; a tenth of all is.
//!
//! The peer says what it has read when a datagram asks for it. Whatever a report passes over has been lost or
//! will be late; it holds up nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::datagram::WHOLE;

/// What the kernel charges a receive buffer for a packet beside its bytes, at most: Linux rounds the data up to a
/// power of two and adds the packet's own description.
pub const OVERHEAD: usize = 1024;
/// What a datagram that is not fragmented costs at most.
const FULL: u64 = cost(WHOLE);
/// Where a link begins, 16 datagrams of one packet: somewhat above TCP's 10 (RFC 6928), as none will be sent again.
const INITIAL: u64 = 16 * FULL;
/// The least, so that a report is always on its way.
const FLOOR: u64 = 8 * FULL;
/// How much of a queue we keep at the bottleneck, in time.
const QUEUE: Duration = Duration::from_millis(20);
/// Rounds for which a measured rate is believed.
const RATES: usize = 10;
/// Slow rounds, one after the other, that are no accident of scheduling.
const SLOW: u8 = 3;
/// How long the least round trip is believed; twice that at most.
const BASE_EVERY: Duration = Duration::from_secs(5);
/// Below this round trip there is nothing that a timer could pace.
const PACED: Duration = Duration::from_millis(1);
/// Datagrams that were asked to be reported and that we remember.
const MARKS: usize = 64;
/// What may be sent in one go where nothing is paced; the socket takes less.
const UNPACED: u64 = 1 << 24;
/// How long a report may be away before we ask again; doubled each time.
const PATIENCE: Duration = Duration::from_millis(20);
pub(crate) const MOST_PATIENCE: Duration = Duration::from_secs(1);

/// What a datagram counts for against the peer's receive buffer.
///
/// In fragments each packet is charged, and in one piece (over loopback) what its memory is rounded up to.
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

/// What the sender may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    /// Send as much, by cost.
    Now(u64),
    /// Wait until then.
    At(Instant),
    /// Wait for a report; ask for one if none has come by then.
    Report(Instant),
}

/// A datagram that asks for a report, and what was known when it was sent.
#[derive(Clone, Copy)]
struct Mark {
    position: u64,
    sent: Instant,
    /// What had come, as reported `heard`, by when the datagram before that report had been sent.
    received: u64,
    heard: Instant,
    first: Instant,
}

/// What happens until the datagrams under way at its beginning are reported.
struct Round {
    end: u64,
    seen: u64,
    received: u64,
    /// The greatest rate of arrival, by cost a second.
    rate: f64,
    /// Whether the window has held us up.
    limited: bool,
    last_trip: Option<Duration>,
}

pub(crate) struct Window {
    /// Without, everything may be sent at once.
    paced: bool,
    /// The peer's receive buffer.
    peer: u64,
    /// What the longest datagram costs that is being sent.
    full: u64,
    size: u64,
    sent: u64,
    /// The greatest position reported, and what had come by then.
    seen: u64,
    received: u64,
    marked: u64,
    marks: VecDeque<Mark>,
    /// When the last mark that was reported had been sent.
    first: Instant,
    round: Round,
    starting: bool,
    draining: bool,
    /// The rates of late rounds, the newest first.
    rates: VecDeque<f64>,
    /// Rounds that took more than twice as long as they should, one after the other.
    slow: u8,
    /// Least round trips of the time before and of this one.
    base: (Option<Duration>, Option<Duration>),
    base_began: Instant,
    smooth: Option<Duration>,
    tokens: f64,
    filled: Instant,
    heard: Instant,
    /// When the last report came.
    reported: Instant,
    patience: Duration,
}

impl Window {
    pub(crate) fn new(peer: u64, paced: bool, now: Instant) -> Self {
        let peer = peer.max(FULL);
        let round = Round { end: 0, seen: 0, received: 0, rate: 0.0, limited: false, last_trip: None };
        Self {
            paced,
            peer,
            full: FULL,
            size: INITIAL.min(peer),
            sent: 0,
            seen: 0,
            received: 0,
            marked: 0,
            marks: VecDeque::new(),
            first: now,
            round,
            starting: true,
            draining: false,
            rates: VecDeque::new(),
            slow: 0,
            base: (None, None),
            base_began: now,
            smooth: None,
            tokens: 0.0,
            filled: now,
            heard: now,
            reported: now,
            patience: PATIENCE,
        }
    }

    /// Datagrams of an update are this long at most, from now on.
    pub(crate) fn carry(&mut self, longest: usize) {
        self.full = cost(longest).max(FULL);
        self.size = self.size.max(self.floor().min(self.peer));
    }

    fn floor(&self) -> u64 {
        FLOOR.max(2 * self.full)
    }

    /// What has been sent, by cost.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The smoothed round trip.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.smooth
    }

    fn under_way(&self) -> u64 {
        self.sent - self.seen
    }

    fn base(&self) -> Option<Duration> {
        [self.base.0, self.base.1].into_iter().flatten().min()
    }

    /// What may be sent now, or what to wait for.
    pub(crate) fn permit(&mut self, now: Instant) -> Permit {
        if !self.paced {
            return Permit::Now(UNPACED);
        }
        let room = self.size.saturating_sub(self.under_way());
        if room < self.full && self.under_way() > 0 {
            self.round.limited = true;
            return Permit::Report(self.heard + self.patience);
        }
        let room = room.max(self.full);
        let Some(rate) = self.pace() else { return Permit::Now(room) };
        // Who wakes up late catches up.
        let burst = (rate * QUEUE.as_secs_f64()).max((4 * FULL).max(self.full) as f64);
        let earned = now.saturating_duration_since(self.filled).as_secs_f64() * rate;
        (self.tokens, self.filled) = ((self.tokens + earned).min(burst), now);
        if self.tokens >= self.full as f64 {
            return Permit::Now(room.min(self.tokens as u64));
        }
        let enough = self.full.max(2 * FULL) as f64;
        Permit::At(now + Duration::from_secs_f64((enough - self.tokens) / rate))
    }

    /// Cost a second, if there is a pace.
    fn pace(&self) -> Option<f64> {
        let trip = self.smooth.filter(|_| self.base().is_some_and(|base| base >= PACED))?;
        let gain = if self.starting { 2.0 } else { 1.25 };
        Some(gain * self.size as f64 / trip.as_secs_f64())
    }

    /// Whether the last datagram of a batch, which ends at `position`, should ask for a report: where it fills
    /// the window, and else eight times in each window.
    pub(crate) fn wants_report(&self, position: u64) -> bool {
        position - self.seen + self.full > self.size || position - self.marked >= self.size / 8
    }

    /// Datagrams have been sent up to `position`; `reported` are the ends of those that ask for a report.
    pub(crate) fn sent_to(&mut self, now: Instant, position: u64, reported: &[u64]) {
        if self.under_way() == 0 {
            (self.heard, self.patience) = (now, self.wait());
            (self.first, self.reported) = (now, now);
        }
        self.tokens = (self.tokens - (position - self.sent) as f64).max(0.0);
        self.sent = position;
        for &mark in reported {
            self.marked = mark;
            if self.marks.len() == MARKS {
                self.marks.pop_front();
            }
            let (received, heard, first) = (self.received, self.reported, self.first);
            self.marks.push_back(Mark { position: mark, sent: now, received, heard, first });
        }
    }

    /// We have asked for a report.
    pub(crate) fn probed(&mut self, now: Instant) {
        (self.heard, self.patience) = (now, (2 * self.patience).min(MOST_PATIENCE));
    }

    /// How long a report may take to come.
    pub(crate) fn wait(&self) -> Duration {
        self.smooth.map_or(10 * PATIENCE, |trip| PATIENCE + 2 * trip).min(MOST_PATIENCE)
    }

    /// The peer says that it has read up to the position `seen`, and `received` in all. `timely` if it is read as
    /// soon as it came, so that it says something about the round trip.
    pub(crate) fn reported(&mut self, now: Instant, seen: u64, received: u64, timely: bool) {
        if seen > self.sent || seen < self.seen || received > seen || received < self.received {
            return; // late, or it cannot be
        }
        (self.seen, self.received) = (seen, received);
        let mut asked = None;
        while let Some(mark) = self.marks.front().copied().filter(|mark| mark.position <= seen) {
            self.marks.pop_front();
            asked = Some(mark);
        }
        if let Some(mark) = asked {
            self.arrived(now, &mark);
            if timely {
                self.tripped(now, now.saturating_duration_since(mark.sent));
            }
            self.first = mark.sent;
        }
        (self.heard, self.reported, self.patience) = (now, now, self.wait());
        if seen >= self.round.end {
            self.conclude();
        }
    }

    /// The rate at which datagrams came while the mark was under way: over the time in which they were reported, or
    /// sent if that took longer, as one that reads its reports late gets many at once (Cheng et al., Delivery Rate
    /// Estimation, draft-cheng-iccrg-delivery-rate-estimation).
    fn arrived(&mut self, now: Instant, mark: &Mark) {
        let reported = now.saturating_duration_since(mark.heard);
        let sent = mark.sent.saturating_duration_since(mark.first);
        let seconds = reported.max(sent).as_secs_f64().max(1e-6);
        let rate = self.received.saturating_sub(mark.received) as f64 / seconds;
        self.round.rate = self.round.rate.max(rate);
    }

    fn tripped(&mut self, now: Instant, trip: Duration) {
        let trip = trip.max(Duration::from_micros(10));
        if now.saturating_duration_since(self.base_began) >= BASE_EVERY {
            // Our own queue would pass for distance: look at the path without it once.
            (self.base, self.base_began, self.draining) = ((self.base.1, None), now, true);
        }
        self.base.1 = Some(self.base.1.map_or(trip, |base| base.min(trip)));
        self.smooth = Some(self.smooth.map_or(trip, |smooth| (smooth * 7 + trip) / 8));
        self.round.last_trip = Some(trip);
    }

    fn conclude(&mut self) {
        let (offered, came) = (self.seen - self.round.seen, self.received - self.round.received);
        if let (Some(base), Some(trip), true) = (self.base(), self.round.last_trip, offered > 0) {
            let lost = offered.saturating_sub(came);
            self.adapt(base, trip, self.round.rate, lost > 8 * FULL && lost > offered / 10);
        }
        let (seen, received) = (self.seen, self.received);
        self.round = Round { end: self.sent, seen, received, rate: 0.0, limited: false, last_trip: None };
    }

    /// The greatest rate of late rounds that another round came near to: one alone may be an accident of scheduling.
    fn believed(&self) -> f64 {
        let mut rates: Vec<f64> = self.rates.iter().copied().collect();
        rates.sort_by(f64::total_cmp);
        rates.iter().rev().nth(1).or(rates.last()).copied().unwrap_or(0.0)
    }

    fn adapt(&mut self, base: Duration, trip: Duration, rate: f64, losing: bool) {
        let fastest = self.rates.iter().copied().fold(0.0, f64::max);
        self.slow = if trip > 2 * (base + QUEUE) { self.slow.saturating_add(1) } else { 0 };
        if losing {
            self.rates.clear();
        } else if self.slow >= SLOW {
            self.rates.truncate(1); // the path has become slower than it was
        }
        // A round in which we had little to send says nothing about the path, unless it was fast.
        if self.round.limited || losing || rate > fastest {
            self.rates.truncate(RATES - 1);
            self.rates.push_front(rate);
        }
        if self.starting && self.round.limited {
            let queued = trip > base + QUEUE / 2;
            if !losing && (!queued || rate > 1.25 * fastest) {
                let gain = if base < Duration::from_millis(50) { 2.0 } else { 1.5 };
                // No more than the rate asks for, so as not to find the path's limit far behind it.
                let most = (1.5 * rate * (base + QUEUE).as_secs_f64()).max(1.25 * self.size as f64);
                self.size = ((gain * self.size as f64).min(most) as u64).max(self.floor()).min(self.peer);
                return;
            }
            self.starting = false;
        }
        if self.starting {
            return;
        }
        let fastest = self.believed();
        let ahead = if self.draining { base.mul_f64(0.75) } else { base + QUEUE };
        // An eighth and a datagram wait for the next report; without them the window would shrink with the rate that
        // it allows.
        let follows = (fastest * ahead.as_secs_f64() * 8.0 / 7.0) as u64 + self.full;
        (self.draining, self.size) = (false, follows.min(2 * self.size).max(self.floor()).min(self.peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A link of `rate` a second by cost and a one-way `delay`, with a queue without end; what it did with a
    /// sender that has always something to send.
    struct Path {
        window: Window,
        now: Instant,
        free: Instant,
        came: u64,
        reports: VecDeque<(Instant, u64, u64)>,
        queued: Duration,
        /// Both ends are only now and then at work: times after which they are, drawn from this seed (xorshift64).
        late: Option<u64>,
        began: Instant,
    }

    impl Path {
        fn new(peer: u64) -> Self {
            let now = Instant::now();
            let window = Window::new(peer, true, now);
            let (free, began, queued) = (now, now, Duration::ZERO);
            Self { window, now, free, came: 0, reports: VecDeque::new(), queued, late: None, began }
        }

        /// When an end that is wanted at `at` gets to work, up to 12 ms later.
        fn at_work(&mut self, at: Instant) -> Instant {
            let Some(dice) = &mut self.late else { return at };
            *dice ^= *dice << 13;
            *dice ^= *dice >> 7;
            *dice ^= *dice << 17;
            // Ends are at work in slices of time, so that what comes meanwhile is seen at once.
            let slice = 4 * MS;
            let next = (at - self.began).as_nanos() / slice.as_nanos() + 1;
            match *dice % 4 {
                0 => self.began + slice * (next as u32 + 2),
                1 => self.began + slice * next as u32,
                _ => at,
            }
        }

        /// Lets one datagram go; every `lost`-th does not arrive, with 0 none.
        fn send(&mut self, rate: f64, delay: Duration, lost: u64) {
            let position = self.window.sent() + FULL;
            let asks = self.window.wants_report(position);
            self.window.sent_to(self.now, position, &[position][..usize::from(asks)]);
            self.free = self.free.max(self.now) + Duration::from_secs_f64(FULL as f64 / rate);
            self.queued = self.free - self.now;
            if !(position / FULL).is_multiple_of(lost) {
                self.came += FULL;
            }
            if asks {
                let read = self
                    .at_work(self.free + delay)
                    .max(self.reports.back().map_or(self.free, |r| r.0 - delay));
                self.reports.push_back((read + delay, position, self.came));
            }
        }

        fn run(&mut self, time: Duration, rate: f64, delay: Duration, lost: u64) -> (f64, Duration) {
            let (until, before, mut longest) = (self.now + time, self.came, Duration::ZERO);
            while self.now < until {
                match self.window.permit(self.now) {
                    Permit::Now(room) => {
                        assert!(room >= FULL);
                        self.send(rate, delay, lost);
                        longest = longest.max(self.queued);
                        continue;
                    }
                    Permit::At(at) => self.now = self.at_work(at.max(self.now + MS / 10)),
                    Permit::Report(by) => {
                        if self.reports.is_empty() {
                            // The window has shrunk since the last datagram was sent: we ask.
                            self.window.probed(by);
                            self.reports.push_back((
                                self.free.max(by) + 2 * delay,
                                self.window.sent(),
                                self.came,
                            ));
                        }
                        let next = self.reports[0].0;
                        self.now = self.at_work(next.max(self.now)).max(self.now);
                    }
                }
                while let Some((_, seen, came)) = self.reports.front().copied().filter(|r| r.0 <= self.now) {
                    self.reports.pop_front();
                    self.window.reported(self.now, seen, came, true);
                }
            }
            ((self.came - before) as f64 / time.as_secs_f64(), longest)
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

    /// Busy machines: what was delivered bit by bit is reported at once. A queue of 100 ms of the rate, or 64 KiB if
    /// that is more, as the emulated networks have it, must never be full: nothing is lost by our own pacing.
    #[test]
    fn ends_that_are_late_overrun_no_queue() {
        for (megabits, delay) in
            [(5.0, 50), (5.0, 0), (20.0, 0), (20.0, 25), (60.0, 0), (60.0, 10), (100.0, 20)]
        {
            for seed in 1..20 {
                // By cost; a datagram has 1456 bytes with its IP header.
                let bytes = megabits * 1e6 / 8.0;
                let (rate, delay) = (bytes * FULL as f64 / 1_456.0, delay * MS + MS / 10);
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
        assert!(reached > 0.97e6 && queued < 100 * MS, "{reached} {queued:?}");
    }

    #[test]
    fn single_losses_do_not_slow_it_down() {
        let mut path = Path::new(64 << 20);
        path.run(2_000 * MS, 1e7, 20 * MS, 50);
        let (reached, _) = path.run(4_000 * MS, 1e7, 20 * MS, 50);
        assert!(reached > 0.95e7, "{reached}");
    }

    #[test]
    fn never_more_than_the_peer_holds() {
        let now = Instant::now();
        let mut window = Window::new(10 * FULL, true, now);
        let mut position = 0;
        while let Permit::Now(room) = window.permit(now) {
            assert!(position + FULL <= 10 * FULL && room <= 10 * FULL - position);
            position += FULL;
            window.sent_to(now, position, &[position]);
        }
        assert_eq!(position, 10 * FULL);
        window.reported(now, position, position, true);
        assert_eq!(window.permit(now), Permit::Now(10 * FULL));
    }

    #[test]
    fn unpaced_nothing_is_waited_for() {
        let now = Instant::now();
        let mut window = Window::new(FULL, false, now);
        for position in 1..1000 {
            assert_eq!(window.permit(now), Permit::Now(UNPACED));
            window.sent_to(now, position * FULL, &[position * FULL]);
        }
    }

    #[test]
    fn reports_that_cannot_be_open_nothing() {
        let now = Instant::now();
        let mut window = Window::new(4 * FULL, true, now);
        window.sent_to(now, 4 * FULL, &[4 * FULL]);
        for (seen, received) in [(u64::MAX, 0), (5 * FULL, 0), (FULL, 2 * FULL), (0, u64::MAX)] {
            window.reported(now, seen, received, true);
            assert!(matches!(window.permit(now), Permit::Report(_)), "{seen} {received}");
        }
        window.reported(now, FULL, FULL, true);
        assert_eq!(window.permit(now), Permit::Now(FULL));
        window.reported(now, 0, 0, true); // late
        assert_eq!(window.permit(now), Permit::Now(FULL));
    }

    #[test]
    fn asks_ever_more_rarely_while_nobody_answers() {
        let mut now = Instant::now();
        let mut window = Window::new(FULL, true, now);
        window.sent_to(now, FULL, &[FULL]);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let Permit::Report(by) = window.permit(now) else { unreachable!("the window is full") };
            pauses.push(by - now);
            now = by;
            window.probed(now);
        }
        assert!(pauses.is_sorted() && pauses[9] == MOST_PATIENCE, "{pauses:?}");
        window.reported(now, FULL, 0, true); // all was lost
        assert_eq!(window.permit(now), Permit::Now(FULL));
    }
}
