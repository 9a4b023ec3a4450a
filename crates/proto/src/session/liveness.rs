//! The rule of liveness: a link ends after a time T without progress. T follows the measured rate; see
//! [`Liveness::timeout`].

use crate::Time;

/// A step: this many more bytes, about one packet, count as progress. So a peer that sends a byte a second
/// makes no progress.
const STEP: u64 = 1500;
/// The timeout T is the smoothed time of a step, times this factor. It is at least `floor` and at most `floor
/// * CEILING`.
const TIMEOUT_FACTOR: u32 = 64;
const CEILING: u32 = 12;

/// Watches the progress of one direction of one link.
#[derive(Debug, Clone)]
pub struct Liveness {
    /// Minimum of T, the time without progress that ends the transfer.
    floor: Time,
    /// When the last progress was made.
    last: Time,
    /// Bytes that have arrived since `last`, fewer than a step.
    gathered: u64,
    /// Smoothed time of a step.
    step_time: Option<Time>,
}

impl Liveness {
    /// Starts watching at `now`. T, the time without progress after which the link counts as broken, is at
    /// least `floor`.
    pub fn new(now: Time, floor: Time) -> Self {
        Self { floor, last: now, gathered: 0, step_time: None }
    }

    /// Reports that `bytes` more bytes arrived.
    pub fn progress(&mut self, now: Time, bytes: u64) {
        self.gathered = self.gathered.saturating_add(bytes);
        if self.gathered < STEP {
            return;
        }
        let steps = u32::try_from(self.gathered / STEP).unwrap_or(u32::MAX);
        let took = now.saturating_sub(self.last) / steps;
        self.step_time = Some(self.step_time.map_or(took, |usual| (usual * 7 + took) / 8));
        self.gathered %= STEP;
        self.last = now;
    }

    /// Reports a message of the peer, which counts as progress whatever its size.
    pub fn message_received(&mut self, now: Time) {
        self.last = self.last.max(now);
        self.gathered = 0;
    }

    /// The present T: how long the peer may make no progress.
    pub fn timeout(&self) -> Time {
        let followed = self.step_time.map_or(self.floor, |usual| usual.saturating_mul(TIMEOUT_FACTOR));
        followed.clamp(self.floor, self.floor.saturating_mul(CEILING))
    }

    /// When the peer counts as dead, unless it makes progress earlier.
    pub fn deadline(&self) -> Time {
        self.last.saturating_add(self.timeout())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Time = Time::from_secs(1);

    #[test]
    fn a_byte_a_second_is_no_progress() {
        let mut live = Liveness::new(Time::ZERO, 10 * SECOND);
        for second in 1..=9 {
            live.progress(second * SECOND, 1);
        }
        assert_eq!(live.deadline(), 10 * SECOND);
    }

    #[test]
    fn a_slow_link_that_moves_stays_alive_and_gets_a_longer_timeout() {
        let mut live = Liveness::new(Time::ZERO, 10 * SECOND);
        for second in 1..=60 {
            live.progress(second * SECOND, STEP);
            assert!(live.deadline() > second * SECOND);
        }
        assert_eq!(live.timeout(), 64 * SECOND);
    }

    #[test]
    fn a_fast_link_has_the_floor() {
        let mut live = Liveness::new(Time::ZERO, 10 * SECOND);
        live.progress(Time::from_millis(1), 1 << 20);
        assert_eq!(live.timeout(), 10 * SECOND);
    }

    #[test]
    fn the_timeout_has_a_ceiling() {
        let mut live = Liveness::new(Time::ZERO, SECOND);
        live.progress(1000 * SECOND, STEP);
        assert_eq!(live.timeout(), 12 * SECOND);
    }
}
