//! RTT estimation and retransmission timeout as in Linux (`tcp_rtt_estimator`, `tcp_set_rto`, after RFC
//! 6298).

use thalweg_masking::Time;

/// Least difference between the RTO and the smoothed RTT (`TCP_RTO_MIN`), and the longest RTO, in seconds.
const LEAST: f64 = 0.2;
const MOST: f64 = 120.0;
/// The RTO before the first RTT sample.
const FIRST: f64 = 1.0;

/// A sender's estimate of its path, in seconds.
#[derive(Debug, Clone, Default)]
pub struct Estimator {
    smooth: Option<f64>,
    /// Four times the mean deviation, and its maximum in this round trip.
    deviation: f64,
    highest: f64,
    /// Difference between the RTO and the smoothed RTT.
    spread: f64,
    /// The offset whose acknowledgement ends this round trip.
    round: u64,
    doubled: u32,
    longest: f64,
}

impl Estimator {
    /// Processes an RTT sample in seconds. `una` is the next offset to be acknowledged, `next` the next to be
    /// sent. It ends the back-off (RFC 6298, 5.7).
    pub fn measured(&mut self, rtt: f64, una: u64, next: u64) {
        self.doubled = 0;
        match self.smooth {
            None => {
                self.smooth = Some(rtt);
                self.deviation = 2.0 * rtt;
                self.spread = self.deviation.max(LEAST);
                self.highest = self.spread;
                self.round = next;
            }
            Some(smooth) => {
                self.smooth = Some(smooth + (rtt - smooth) / 8.0);
                self.deviate(rtt - smooth);
                if una > self.round {
                    self.spread -= (self.spread - self.highest).max(0.0) / 4.0;
                    self.round = next;
                    self.highest = LEAST;
                }
            }
        }
        self.longest = self.longest.max(self.plain());
    }

    /// Falling RTTs must not lengthen the RTO, so they count one eighth.
    fn deviate(&mut self, error: f64) {
        let change = error.abs() - self.deviation / 4.0;
        self.deviation += if error < 0.0 && change > 0.0 { change / 8.0 } else { change };
        self.highest = self.highest.max(self.deviation);
        self.spread = self.spread.max(self.highest);
    }

    /// The smoothed RTT, once there is one.
    pub fn smooth(&self) -> Option<f64> {
        self.smooth
    }

    fn plain(&self) -> f64 {
        self.smooth.map_or(FIRST, |smooth| smooth + self.spread)
    }

    /// The current timeout.
    pub fn timeout(&self) -> Time {
        Time::from_secs_f64((self.plain() * f64::from(1 << self.doubled.min(16))).min(MOST))
    }

    /// The timer has expired, so the next timeout is twice as long.
    pub fn expired(&mut self) {
        self.doubled += 1;
    }

    /// The longest timeout that RTT samples have caused, in seconds.
    pub fn longest(&self) -> f64 {
        self.longest
    }
}

#[test]
fn a_steady_path_has_the_least_timeout_and_one_long_round_trip_makes_it_long() {
    let mut estimator = Estimator::default();
    let steady = |estimator: &mut Estimator, count: u64| {
        (0..count).for_each(|i| estimator.measured(0.01, i * 10 + 1, (i + 1) * 10));
    };
    assert_eq!(estimator.timeout(), Time::from_secs(1));
    steady(&mut estimator, 100);
    assert!((estimator.timeout().as_secs_f64() - 0.21).abs() < 1e-6, "{estimator:?}");
    estimator.expired();
    assert!((estimator.timeout().as_secs_f64() - 0.42).abs() < 1e-6);
    // After a timeout, an echo from before it makes the silence an RTT sample. So the next timeout is as long
    // as the silence.
    let mut once = estimator.clone();
    once.measured(1.01, 1001, 1010);
    assert!((1.0..1.3).contains(&once.timeout().as_secs_f64()), "{once:?}");
    steady(&mut once, 300);
    assert!(once.timeout().as_secs_f64() < 0.22, "forgotten: {once:?}");
    assert!(once.longest() > 1.0);
    // With repetitions the RTO grows: to 10 s on a path with an RTT of 10 ms.
    let mut silent = estimator.timeout().as_secs_f64();
    for _ in 0..6 {
        estimator.measured(silent, 5000, 6000);
        silent = estimator.timeout().as_secs_f64();
    }
    assert!(silent > 5.0, "{silent}");
}
