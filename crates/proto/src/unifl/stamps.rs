//! Timestamps (RFC 7323): our clock, the peer's, what is echoed, and what is too old.
//!
//! What is echoed decides what the sender makes of its own retransmissions. Ordinarily it is the timestamp of the
//! earliest segment not yet acknowledged (RFC 7323 section 4.3), of what has *come*: after a masked hole that is the
//! segment which showed it. While a hole is held, the echo stays what it was when the first one opened: a sender that
//! sees an acknowledgement of its retransmission with an echo from before it takes the retransmission for needless and
//! undoes its reduction (Eifel, RFC 3522 and RFC 4015; Linux: `tcp_packet_delayed`).

use super::sequence::before;
use crate::Time;

/// Echoes this much older than the newest seen still belong to a peer and not to a forger.
const SLACK: u32 = 10_000;
/// An idle connection's last timestamp says nothing after 24 days (RFC 7323 section 5.5).
const OUTDATED: Time = Time::from_secs(24 * 24 * 3600);
/// How long a peer's clock is watched before its unit is known.
const WATCHED: Time = Time::from_millis(100);
/// Units of peers' clocks, per second.
const UNITS: [f64; 6] = [1e2, 250.0, 1e3, 1e4, 1e5, 1e6];

/// The timestamps of one connection.
#[derive(Debug, Clone)]
pub(super) struct Stamps {
    /// Ours, so that connections cannot be told from each other's.
    shift: u32,
    /// What is echoed (TS.Recent).
    pub recent: u32,
    recent_at: Time,
    /// The newest timestamp that has come: the sender's clock.
    pub newest: u32,
    /// The newest of our own that came back.
    echoed: u32,
    first: (u32, Time),
    unit: Option<f64>,
    /// Whether something has come since the last acknowledgement was sent.
    pub unsent: bool,
}

impl Stamps {
    pub fn new(now: Time, shift: u32, value: u32) -> Self {
        let echoed = clock(now, shift);
        let (recent, newest, first) = (value, value, (value, now));
        Self { shift, recent, recent_at: now, newest, echoed, first, unit: None, unsent: false }
    }

    /// Our clock: milliseconds.
    pub fn value(&self, now: Time) -> u32 {
        clock(now, self.shift)
    }

    /// Whether a segment with this timestamp is from an earlier time (PAWS, RFC 7323 section 5.3). `floor`: data for
    /// a hole is as old as the hole.
    pub fn is_old(&self, now: Time, value: u32, floor: Option<u32>) -> bool {
        let least = floor.filter(|&floor| before(floor, self.recent)).unwrap_or(self.recent);
        before(value, least) && now.saturating_sub(self.recent_at) < OUTDATED
    }

    /// Whether a segment echoes what we have sent, and not too long ago: somebody off the path cannot know it.
    pub fn is_ours(&self, now: Time, echo: u32) -> bool {
        !before(self.value(now), echo) && !before(echo, self.echoed.wrapping_sub(SLACK))
    }

    /// Data has come. `holding`: holes are being repaired; the echo stays.
    pub fn came(&mut self, now: Time, value: u32, holding: bool) {
        if before(self.newest, value) {
            self.newest = value;
        }
        if !self.unsent && !holding && !before(value, self.recent) {
            self.recent = value;
            self.recent_at = now;
        }
        self.unsent = true;
    }

    /// A round trip, from what a segment echoes.
    pub fn round_trip(&mut self, now: Time, echo: u32) -> Option<Time> {
        if !self.is_ours(now, echo) {
            return None;
        }
        if before(self.echoed, echo) {
            self.echoed = echo;
        }
        Some(Time::from_millis(u64::from(self.value(now).wrapping_sub(echo))))
    }

    /// Seconds on the way, from any base: our time less the peer's, once the unit of its clock is known.
    pub fn one_way(&mut self, now: Time, value: u32) -> Option<f64> {
        let (first, at) = self.first;
        let ticks = f64::from(value.wrapping_sub(first) as i32);
        let took = now.saturating_sub(at);
        if self.unit.is_none() && took >= WATCHED && ticks > 0.0 {
            let speed = ticks / took.as_secs_f64();
            let off = |unit: &f64| (speed / unit).ln().abs();
            self.unit = UNITS.into_iter().min_by(|a, b| off(a).total_cmp(&off(b))).filter(|u| off(u) < 0.5);
        }
        Some(took.as_secs_f64() - ticks / self.unit?)
    }
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
        stamps.came(MS, 110, false);
        stamps.came(MS, 120, false);
        assert_eq!((stamps.recent, stamps.newest), (110, 120));
        stamps.unsent = false;
        stamps.came(MS, 130, true);
        assert_eq!(stamps.recent, 110, "held");
        stamps.unsent = false;
        stamps.came(MS, 140, false);
        assert_eq!(stamps.recent, 140);
    }

    #[test]
    fn old_is_what_is_older_than_the_echo_but_for_a_hole_s() {
        let mut stamps = Stamps::new(Time::ZERO, 7, u32::MAX - 5);
        stamps.came(MS, 5, false);
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
