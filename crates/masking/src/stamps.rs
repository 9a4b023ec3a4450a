//! TCP timestamps (RFC 7323): our clock, the peer's clock, which timestamp to echo (TSecr), and which
//! segments are too old.
//!
//! The echo determines what the sender concludes about its own retransmissions. Normally the receiver echoes
//! the TSval of the earliest segment that it has not acknowledged yet (RFC 7323 section 4.3). Only segments
//! that arrived count. So after a masked hole, the receiver echoes the TSval of the segment that opened the
//! gap.
//!
//! An ACK that may end a sender's recovery echoes a TSval from before the first retransmission
//! ([`Recovery`]). The sender then concludes that the retransmission was unnecessary, and undoes the
//! reduction of its window (Eifel, RFC 3522 and RFC 4015). Linux compares the echo with the time of its first
//! retransmission that may still be in flight (`tcp_packet_delayed`, `retrans_stamp`), whether that one
//! arrived or not.
//!
//! The sender retransmits only after our report of the loss has reached it. So all data that echoes an
//! earlier clock of ours was sent before the retransmissions. Of the TSvals of that data, the receiver echoes
//! the second newest if it is within `NEAR` ticks of the newest, since the sender has really used it. An
//! older echo would do harm. If an ACK reports nothing new, the sender takes the time since the echo for an
//! RTT (RFC 7323 section 4.1), and its next timeout is longer. A newer echo would undo nothing while one
//! recovery follows another without a pause.
//!
//! Data that ends a silence may be a retransmission after a retransmission timeout (RTO). The receiver then
//! echoes one tick less than its TSval. After a longer silence the timer may have expired twice, and the
//! first retransmission may be lost too. The receiver then echoes the last tick before that first one.

use super::recovery::Recovery;
use super::sequence::before;
use crate::Time;

/// An echo may be this many ticks older than the newest echo that has come back. An older echo counts as
/// forged.
const SLACK: u32 = 10_000;
/// After 24 idle days the peer's clock may have wrapped, so the last timestamp says nothing (RFC 7323 section
/// 5.5).
const OUTDATED: Time = Time::from_secs(24 * 24 * 3600);
/// How long the receiver watches a peer's clock before it estimates the clock's unit.
const WATCHED: Time = Time::from_millis(100);
/// The shortest retransmission timeout in seconds (Linux).
const SHORTEST: f64 = 0.2;
/// Two timestamps are near if they differ by at most this many ticks.
const NEAR: u32 = 16;
/// Clock units that peers use, in ticks a second.
const UNITS: [f64; 6] = [1e2, 250.0, 1e3, 1e4, 1e5, 1e6];

/// The timestamps of one connection.
#[derive(Debug, Clone)]
pub(super) struct Stamps {
    /// Random offset of our clock, so that connections cannot be related to each other (RFC 7323 section
    /// 5.4).
    shift: u32,
    /// The timestamp to echo (TS.Recent), and when it was set.
    pub recent: u32,
    recent_at: Time,
    /// The newest timestamp that has arrived: the sender's clock.
    pub newest: u32,
    /// The second newest timestamp that has arrived.
    second: u32,
    repair: Option<Repair>,
    /// At the last ACK that was sent during a recovery: our clock, the acknowledged offset, and `repair`.
    before: Option<(u32, u64, Repair)>,
    /// The newest of our timestamps that the peer has echoed.
    echoed: u32,
    /// The peer's first timestamp, and when it arrived.
    first: (u32, Time),
    /// Unit of the peer's clock in ticks a second, once it is known.
    unit: Option<f64>,
    /// Whether data has arrived since the last ACK was sent.
    pub unsent: bool,
}

/// The content of an ACK, by which the receiver chooses the timestamp to echo.
#[derive(Debug, Clone, Copy)]
pub(super) struct AckContent {
    /// One past the last byte acknowledged, and one past the highest byte that has arrived.
    pub acknowledged: u64,
    pub highest: u64,
    /// Whether a hole is held.
    pub holding: bool,
    /// Whether the sender seems to have more data to send.
    pub goes_on: bool,
    /// If the sender has no more data: the age in milliseconds beyond which an echo is too old.
    pub oldest: u32,
}

/// State while the sender may be in recovery: holes are held, or were held until recently.
#[derive(Debug, Clone, Copy)]
struct Repair {
    /// Our clock when we reported the loss to the sender, or when the previous echo became too old.
    since: u32,
    /// The two newest timestamps of data that was sent before our report reached the sender.
    newest: u32,
    second: u32,
    /// Whether a retransmission has arrived. Data that arrives later then no longer changes the echo.
    begun: bool,
    recovery: Recovery,
}

impl Repair {
    /// The timestamp to echo. It is older than `newest`, and so than every retransmission.
    fn echo(&self) -> u32 {
        let near = self.newest.wrapping_sub(self.second) <= NEAR && self.newest != self.second;
        if near {
            self.second
        } else {
            self.newest.wrapping_sub(1)
        }
    }
}

impl Stamps {
    pub fn new(now: Time, shift: u32, value: u32) -> Self {
        Self {
            shift,
            recent: value,
            recent_at: now,
            newest: value,
            second: value,
            repair: None,
            before: None,
            echoed: clock(now, shift),
            first: (value, now),
            unit: None,
            unsent: false,
        }
    }

    /// Our clock in milliseconds, with its random offset (TSval).
    pub fn value(&self, now: Time) -> u32 {
        clock(now, self.shift)
    }

    /// Whether a segment with this timestamp is too old (PAWS, RFC 7323 section 5.3). `floor`: the oldest
    /// timestamp that data for a hole can have, if the segment fills one.
    pub fn is_old(&self, now: Time, value: u32, floor: Option<u32>) -> bool {
        let least = floor.filter(|&floor| before(floor, self.recent)).unwrap_or(self.recent);
        before(value, least) && now.saturating_sub(self.recent_at) < OUTDATED
    }

    /// Whether a segment echoes a recent timestamp of ours. An attacker off the path cannot know such a
    /// timestamp.
    pub fn is_ours(&self, now: Time, echo: u32) -> bool {
        !before(self.value(now), echo) && !before(echo, self.echoed.wrapping_sub(SLACK))
    }

    /// Notes data that has arrived while no hole is held. `stays`: it is not the first unacknowledged data,
    /// so its timestamp is not echoed.
    pub fn arrived(&mut self, now: Time, value: u32, stays: bool) {
        self.repair = None;
        self.see(value);
        if !self.unsent && !stays {
            self.echo(now, value);
        }
        self.unsent = true;
    }

    /// Notes data that has arrived after a silence, so it may be an RTO retransmission. After a `long`
    /// silence, it may be the second one. The echo must be older than the first retransmission, which the
    /// sender sent at least [`SHORTEST`] after the last data before the silence.
    pub fn woke(&mut self, now: Time, value: u32, long: bool) {
        let ticks = self.unit.map(|unit| (unit * SHORTEST) as u32).filter(|_| long);
        let first = ticks.map(|ticks| self.newest.wrapping_add(ticks)).filter(|&first| before(first, value));
        let echo = first.unwrap_or(value).wrapping_sub(1);
        self.arrived(now, echo, false);
        self.see(value);
    }

    /// Called when the receiver is about to report a hole to the sender. `acknowledged` and `highest`:
    /// offsets at that time. If the last recovery ended just now and at the same offset, the next recovery
    /// begins without a pause. Then this keeps the earlier echo, since only that echo undoes both reductions.
    pub fn hold(&mut self, now: Time, acknowledged: u64, highest: u64, rtt: Time) {
        let (since, newest, second) = (self.value(now), self.newest, self.second);
        let recovery = Recovery::new(since, acknowledged, highest);
        let soon = (rtt * 2).as_millis() as u32;
        let before =
            self.before.filter(|&(at, end, _)| since.wrapping_sub(at) <= soon && end == acknowledged);
        let first = Repair { since, newest, second, begun: false, recovery };
        self.repair.get_or_insert(before.map_or(first, |(_, _, before)| Repair { recovery, ..before }));
    }

    /// The timestamp that an ACK echoes.
    pub fn echoed(&mut self, now: Time, ack: AckContent) -> u32 {
        let clock = self.value(now);
        let Some(mut repair) = self.repair.take() else { return self.recent };
        let ends = repair.recovery.may_end(clock, ack.acknowledged, ack.highest);
        let next = repair.recovery.after(clock, ack.acknowledged, ack.highest, ack.holding);
        self.repair = next.map(|recovery| Repair { recovery, ..repair });
        self.before = Some((clock, ack.acknowledged, repair));
        // An old echo makes the sender's RTO longer. A sender without new data may depend on that timer.
        let aged = !ack.goes_on && clock.wrapping_sub(repair.since) > ack.oldest;
        if ends && !aged {
            self.recent
        } else {
            self.newest
        }
    }

    /// Whether the sender may still be in recovery.
    pub fn repairing(&self) -> bool {
        self.repair.is_some()
    }

    /// Notes that data up to `end` has arrived while the sender may be in recovery. `value` and `echo`: its
    /// TSval and TSecr. `fills`: it is a retransmission. `oldest`: maximum age of an echo, in milliseconds of
    /// our clock.
    pub fn held(&mut self, now: Time, (value, echo): (u32, u32), end: u64, fills: bool, oldest: u32) {
        self.see(value);
        self.unsent = true;
        let time = self.value(now);
        let Some(repair) = &mut self.repair else { return };
        if time.wrapping_sub(repair.since) > oldest {
            *repair = Repair { since: time, newest: value, second: value, begun: fills, ..*repair };
        } else if !fills && !repair.begun && before(echo, repair.since) && before(repair.newest, value) {
            (repair.second, repair.newest) = (repair.newest, value);
        }
        repair.begun |= fills;
        repair.recovery.arrived((value, echo), end, fills);
        // The echo may go back by one tick, since a retransmission may have the same timestamp as older data.
        (self.recent, self.recent_at) = (repair.echo(), now);
    }

    fn see(&mut self, value: u32) {
        if before(self.newest, value) {
            (self.second, self.newest) = (self.newest, value);
        }
    }

    fn echo(&mut self, now: Time, value: u32) {
        if !before(value, self.recent) {
            self.recent = value;
            self.recent_at = now;
        }
    }

    /// An RTT sample, from the timestamp that a segment echoes. `None` if the echo is not ours.
    pub fn round_trip(&mut self, now: Time, echo: u32) -> Option<Time> {
        if !self.is_ours(now, echo) {
            return None;
        }
        if before(self.echoed, echo) {
            self.echoed = echo;
        }
        Some(Time::from_millis(u64::from(self.value(now).wrapping_sub(echo))))
    }

    /// One-way delay in seconds, relative to the delay of the peer's first segment. `None` until the unit of
    /// the peer's clock is known.
    pub fn one_way(&mut self, now: Time, value: u32) -> Option<f64> {
        let (first, at) = self.first;
        let ticks = f64::from(value.wrapping_sub(first) as i32);
        let took = now.saturating_sub(at);
        if self.unit.is_none() {
            self.unit = clock_unit(ticks, took);
        }
        Some(took.as_secs_f64() - ticks / self.unit?)
    }
}

/// The unit of a peer's clock that made `ticks` ticks in the time `took`, in ticks a second. `None` if that
/// does not show the unit.
pub fn clock_unit(ticks: f64, took: Time) -> Option<f64> {
    if took < WATCHED || ticks <= 0.0 {
        return None;
    }
    let speed = ticks / took.as_secs_f64();
    let off = |unit: &f64| (speed / unit).ln().abs();
    UNITS.into_iter().min_by(|a, b| off(a).total_cmp(&off(b))).filter(|unit| off(unit) < 0.5)
}

fn clock(now: Time, shift: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Time = Time::from_millis(1);

    #[test]
    fn the_echo_is_the_first_unacknowledged_segment_s() {
        let mut stamps = Stamps::new(Time::ZERO, 7, 100);
        stamps.arrived(MS, 110, false);
        stamps.arrived(MS, 120, false);
        assert_eq!((stamps.recent, stamps.newest), (110, 120));
        stamps.unsent = false;
        stamps.arrived(MS, 130, true);
        assert_eq!(stamps.recent, 110, "not in order");
        stamps.unsent = false;
        stamps.arrived(MS, 140, false);
        assert_eq!(stamps.recent, 140);
    }

    /// The sender's clock shows 1000 when ours shows 0. A round trip takes 40 ms.
    #[test]
    fn the_echo_while_holes_are_held_is_from_before_the_first_repair() {
        let mut stamps = Stamps::new(Time::ZERO, 0, 1000);
        stamps.arrived(100 * MS, 1080, false);
        stamps.arrived(110 * MS, 1090, false);
        let mut end = 5000;
        stamps.hold(110 * MS, 0, end, 40 * MS);
        // Two segments were sent before our report reached the sender, and others after it.
        for (at, value, echo) in [(111, 1091, 71), (140, 1120, 100), (149, 1129, 109), (151, 1131, 111)] {
            end += 1000;
            stamps.held(at * MS, (value, echo), end, false, 600);
        }
        assert_eq!(stamps.recent, 1120, "sent, and before the last that was sent unknowing");
        // The first retransmission is lost. Later ones and new data arrive, which change nothing.
        stamps.held(230 * MS, (1210, 190), 4000, true, 600);
        stamps.held(231 * MS, (1211, 211), 10_000, false, 600);
        assert_eq!(stamps.recent, 1120);
        let ack = |acknowledged, holding| AckContent {
            acknowledged,
            highest: 10_000,
            holding,
            goes_on: true,
            oldest: 200,
        };
        // Data up to 8000 was sent before our report reached the sender.
        assert_eq!(stamps.echoed(232 * MS, ack(7999, true)), 1211, "of a part");
        assert_eq!(stamps.echoed(232 * MS, ack(8000, true)), 1120, "it may be all");
        assert!(stamps.repairing());
        assert_eq!(stamps.echoed(232 * MS, AckContent { goes_on: false, ..ack(8001, true) }), 1120);
        assert_eq!(
            stamps.echoed(332 * MS, AckContent { goes_on: false, ..ack(8001, true) }),
            1211,
            "that is long ago"
        );
        assert_eq!(stamps.echoed(332 * MS, ack(10_000, false)), 1120);
        assert!(!stamps.repairing());
        stamps.unsent = false;
        stamps.arrived(333 * MS, 1213, false);
        assert_eq!(stamps.recent, 1213);
    }

    #[test]
    fn what_was_lost_where_a_recovery_ended_keeps_its_echo() {
        let echoed = |acknowledged, waits: u32| {
            let mut stamps = Stamps::new(Time::ZERO, 0, 1000);
            stamps.arrived(99 * MS, 1079, false);
            stamps.arrived(100 * MS, 1080, false);
            stamps.hold(100 * MS, 0, 5000, 40 * MS);
            stamps.held(140 * MS, (1120, 100), 1000, true, 600);
            let (highest, goes_on, oldest) = (5000, true, 200);
            let ack = AckContent { acknowledged: 5000, highest, holding: false, goes_on, oldest };
            assert_eq!(stamps.echoed(140 * MS, ack), 1079);
            assert!(!stamps.repairing());
            let at = MS * (140 + waits);
            stamps.hold(at, acknowledged, 7000, 40 * MS);
            stamps.held(at + 40 * MS, (1160, 140 + waits), 6000, true, 600);
            stamps.echoed(at + 40 * MS, AckContent { acknowledged: 7000, highest: 7000, ..ack })
        };
        assert_eq!(echoed(5000, 40), 1079, "the sender has not paused");
        assert!(echoed(6000, 40) > 1079 && echoed(5000, 90) > 1079);
    }

    #[test]
    fn an_echo_is_neither_held_for_long_nor_from_before_a_pause() {
        let mut stamps = Stamps::new(Time::ZERO, 0, 1000);
        stamps.arrived(9000 * MS, 10_000, false);
        stamps.hold(9000 * MS, 0, 1000, 40 * MS);
        stamps.held(9050 * MS, (10_050, 9000), 500, true, 600);
        assert_eq!(stamps.recent, 9999);
        stamps.held(9601 * MS, (10_601, 9561), 600, true, 600);
        assert_eq!(stamps.recent, 10_600);
        let mut stamps = Stamps::new(Time::ZERO, 0, 1000);
        stamps.woke(250 * MS, 1250, false);
        assert_eq!((stamps.recent, stamps.newest), (1249, 1250));
    }

    #[test]
    fn old_is_what_is_older_than_the_echo_but_for_a_hole_s() {
        let mut stamps = Stamps::new(Time::ZERO, 7, u32::MAX - 5);
        stamps.arrived(MS, 5, false);
        assert!(stamps.is_old(MS, u32::MAX, None) && !stamps.is_old(MS, 5, None));
        assert!(!stamps.is_old(MS, u32::MAX, Some(u32::MAX - 5)));
        assert!(stamps.is_old(MS, u32::MAX - 6, Some(u32::MAX - 5)));
        assert!(!stamps.is_old(OUTDATED * 2, u32::MAX, None));
    }

    #[test]
    fn an_echo_from_the_future_or_from_nowhere_is_not_ours() {
        let mut stamps = Stamps::new(Time::from_secs(50), 7, 1);
        let now = Time::from_secs(60);
        assert!(stamps.is_ours(now, 7 + 55_000) && !stamps.is_ours(now, 7 + 60_001));
        assert!(!stamps.is_ours(now, 7 + 39_999));
        assert_eq!(stamps.round_trip(now, 7 + 59_960), Some(40 * MS));
        assert_eq!(stamps.round_trip(now, 0x8000_0000), None);
    }

    #[test]
    fn the_unit_of_a_peer_s_clock_is_found() {
        for per_second in [1e2, 1e3, 1e6] {
            let mut stamps = Stamps::new(Time::ZERO, 0, 1000);
            let at = |seconds: f64| 1000 + (seconds * per_second) as u32;
            assert_eq!(stamps.one_way(50 * MS, at(0.05)), None);
            let late = stamps.one_way(330 * MS, at(0.3)).unwrap();
            assert!((late - 0.03).abs() < 0.011, "{per_second}: {late}");
        }
    }
}
