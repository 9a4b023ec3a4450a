//! When the next packet may leave: a token bucket that whoever wakes up late catches up with.

use crate::Time;

/// How late a sender may wake up and still catch up.
const LATE: Time = Time::from_millis(16);
/// At least so many packets in one go: timers are no finer.
const PACKETS: f64 = 4.0;

/// Spaces the packets of one sender.
#[derive(Debug)]
pub struct Pacer {
    tokens: f64,
    filled: Time,
}

impl Pacer {
    /// An empty bucket, filled from `now` on.
    pub fn new(now: Time) -> Self {
        Self { tokens: 0.0, filled: now }
    }

    /// When a packet may leave, at `rate` bytes a second, if packets have at most `full` bytes: `now`, or later.
    pub fn at(&mut self, now: Time, rate: f64, full: f64) -> Time {
        let burst = (rate * LATE.as_secs_f64()).max(PACKETS * full);
        let earned = now.saturating_sub(self.filled).as_secs_f64() * rate;
        (self.tokens, self.filled) = ((self.tokens + earned).min(burst), now);
        if self.tokens >= full {
            return now;
        }
        // A few at a time, so that there is something to send in one go.
        let enough = (2.0 * full - self.tokens) / rate;
        now + Time::from_secs_f64(enough).max(Time::from_micros(1))
    }

    /// A packet of so many bytes was sent.
    pub fn sent(&mut self, bytes: u64) {
        self.tokens = (self.tokens - bytes as f64).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes sent in a second by a sender that wakes up when told to, `late` afterwards.
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
