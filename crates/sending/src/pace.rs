//! Paces packets by a token bucket. A sender that wakes up late may catch up.

use crate::Time;

/// The bucket holds the tokens of this time, so a sender that wakes up this late can still catch up.
const LATE: Time = Time::from_millis(16);
/// This many packets may always leave together, since timers are not finer.
const PACKETS: f64 = 4.0;

/// Spaces out the packets of one sender.
#[derive(Debug)]
pub struct Pacer {
    tokens: f64,
    filled: Time,
}

impl Pacer {
    /// Creates an empty bucket, which fills from `now` on.
    pub fn new(now: Time) -> Self {
        Self { tokens: 0.0, filled: now }
    }

    /// When the next packet may leave: `now` or later. `rate`: bytes a second; `full`: bytes of the longest
    /// packet.
    pub fn at(&mut self, now: Time, rate: f64, full: f64) -> Time {
        let burst = (rate * LATE.as_secs_f64()).max(PACKETS * full);
        let earned = now.saturating_sub(self.filled).as_secs_f64() * rate;
        (self.tokens, self.filled) = ((self.tokens + earned).min(burst), now);
        if self.tokens >= full {
            return now;
        }
        // Wait for the tokens of two packets, so that one call can send several.
        let enough = (2.0 * full - self.tokens) / rate;
        now + Time::from_secs_f64(enough).max(Time::from_micros(1))
    }

    /// Bytes that may leave together, as of the last call of [`Self::at`].
    pub fn saved(&self) -> f64 {
        self.tokens
    }

    /// Takes the tokens of a packet of `bytes` bytes that was sent.
    pub fn sent(&mut self, bytes: u64) {
        self.tokens = (self.tokens - bytes as f64).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of bytes that a sender sends in a second if it wakes up `late` after each deadline.
    fn sent(rate: f64, late: Time) -> f64 {
        let (mut pacer, mut now, mut bytes) = (Pacer::new(Time::ZERO), Time::ZERO, 0);
        while now < Time::from_secs(1) {
            let at = pacer.at(now, rate, 1_400.0);
            if at == now {
                pacer.sent(1_400);
                bytes += 1_400;
            } else {
                now = at + late;
            }
        }
        bytes as f64
    }

    #[test]
    fn keeps_the_rate_whoever_is_late() {
        for rate in [1e5, 1e6, 1.25e7, 1.25e8] {
            for late in [0, 1, 5, 9] {
                let share = sent(rate, Time::from_millis(late)) / rate;
                assert!((0.95..1.05).contains(&share), "{rate} {late}: {share}");
            }
        }
    }
}
