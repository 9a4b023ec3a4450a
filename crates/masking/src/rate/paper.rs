//! The paper's rate controller (section 3.2.2 and figure 8), as we read it: requirements U-M5 to U-M8 and
//! U-Q1 to U-Q5.
//!
//! The sender has no limit until the equilibrium. From the first loss on, the controller measures the loss
//! rate in loss sampling windows (LSW). Three equal rates in a row are the equilibrium. The window then
//! becomes the bytes that arrive in a round trip, and adjustment windows (ARW) begin. The first ARW uses 1.25
//! times that window. The controller keeps it if the loss rate has not risen. If it has risen, a second ARW
//! uses 0.75 times the window, which is kept if the loss rate has fallen. Four ARWs of rest follow.
//!
//! The paper gives no length of LSW and ARW, no tolerance for "equal", and no smallest window. Read literally
//! (one round trip, no tolerance beyond noise), the controller loses 54 to 89 % with real kernels. There are
//! three reasons. A change takes effect one round trip later. Noise raises the window step by step. Each
//! window is compared with the last accepted one, so the loss rate creeps up. The controller is here for
//! comparison, and each number is a setting.

use super::{Control, GroupRate, Least, Sample};
use crate::Time;

/// The parameters of the paper's controller, including those that the paper leaves open.
#[derive(Debug, Clone)]
pub struct PaperSettings {
    /// Length of LSW and ARW in round trips. The paper leaves it open; 1 is the literal reading.
    pub round_trips: f64,
    /// Minimum number of segments in an LSW or ARW, so that it can show a loss rate. The paper leaves it
    /// open.
    pub segments: u64,
    /// Number of equal loss rates in a row that make the equilibrium (3).
    pub equal: u32,
    /// Loss rates are equal if they differ by at most this many standard errors. The paper leaves it open.
    pub tolerance: f64,
    /// Factor of the first ARW (1.25).
    pub up: f64,
    /// Factor of the second ARW (0.75).
    pub down: f64,
    /// Number of ARWs of rest (4).
    pub rest: u32,
    /// Smallest window in bytes. The paper leaves it open.
    pub least: u64,
    /// Window in bytes before the equilibrium. The paper has no limit there.
    pub initial: u64,
}

impl Default for PaperSettings {
    fn default() -> Self {
        Self {
            round_trips: 1.0,
            segments: 100,
            equal: 3,
            tolerance: 2.0,
            up: 1.25,
            down: 0.75,
            rest: 4,
            least: 4 * 1448,
            initial: u64::MAX,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// No loss has occurred yet.
    Free,
    /// This many equal loss rates in a row.
    Sampling(u32),
    /// The first ARW, with the window that preceded it.
    Up(f64),
    /// The second ARW, with the window that preceded the first ARW.
    Down(f64),
    /// The ARWs of rest; this many are left.
    Rest(u32),
}

/// The paper's controller.
#[derive(Debug, Clone)]
pub struct Paper {
    settings: PaperSettings,
    phase: Phase,
    window: f64,
    most: u64,
    /// Loss rate of the last LSW, or of the last accepted ARW.
    loss: f64,
    rtt: Least,
    since: Option<(Time, u64, u64)>,
    rate: f64,
}

impl Paper {
    /// Creates the controller for a flow whose handshake took `rtt`.
    pub fn new(settings: PaperSettings, most: u64, rtt: Option<Time>) -> Self {
        let window = settings.initial.min(most) as f64;
        let mut least = Least::new(Time::from_secs(30));
        if let Some(rtt) = rtt {
            least.add(Time::ZERO, rtt.as_secs_f64());
        }
        Self { settings, phase: Phase::Free, window, most, loss: 0.0, rtt: least, since: None, rate: 0.0 }
    }

    /// Ends an LSW or ARW. `loss`: loss rate of its `segments`. `bytes`: number of bytes that arrive in a
    /// round trip.
    pub fn step(&mut self, loss: f64, segments: f64, bytes: f64) {
        let settings = &self.settings;
        let spread = |p: f64| settings.tolerance * (p * (1.0 - p) / segments.max(1.0)).max(0.0).sqrt();
        let epsilon = spread(self.loss).max(spread(loss));
        let rest = if settings.rest > 0 { Phase::Rest(settings.rest) } else { Phase::Up(self.window) };
        match self.phase {
            Phase::Free if loss > 0.0 => {
                self.phase = Phase::Sampling(1);
                self.loss = loss;
            }
            Phase::Free => {}
            Phase::Sampling(equal) => {
                let equal = if (loss - self.loss).abs() <= epsilon { equal + 1 } else { 1 };
                self.phase = Phase::Sampling(equal);
                self.loss = loss;
                if equal >= settings.equal {
                    self.phase = Phase::Up(bytes);
                    self.window = bytes * settings.up;
                }
            }
            Phase::Up(before) if loss - self.loss > epsilon => {
                self.phase = Phase::Down(before);
                self.window = before * settings.down;
            }
            Phase::Up(_) => {
                self.phase = rest;
                self.loss = loss;
            }
            Phase::Down(before) => {
                self.phase = rest;
                if loss - self.loss < -epsilon {
                    self.loss = loss;
                } else {
                    self.window = before;
                }
            }
            Phase::Rest(left) if left > 1 => self.phase = Phase::Rest(left - 1),
            Phase::Rest(_) => {
                self.phase = Phase::Up(self.window);
                self.window *= settings.up;
            }
        }
        self.window =
            self.window.clamp(self.settings.least as f64, self.most.max(self.settings.least) as f64);
    }
}

impl Control for Paper {
    fn arrived(&mut self, sample: &Sample) {
        if let Some(rtt) = sample.rtt {
            self.rtt.add(sample.now, rtt.as_secs_f64());
        }
        let Some((start, delivered, lost)) = self.since else {
            self.since = Some((sample.now, sample.delivered, sample.lost));
            return;
        };
        let rtt = self.rtt.get().unwrap_or(0.1).max(0.001);
        let took = sample.now.saturating_sub(start).as_secs_f64();
        let delivered = sample.delivered.saturating_sub(delivered) as f64;
        // Late data reduces the number of lost bytes.
        let lost = sample.lost.saturating_sub(lost) as f64;
        let segments = (delivered + lost) / f64::from(sample.segment.max(1));
        if took < rtt * self.settings.round_trips || segments < self.settings.segments as f64 {
            return;
        }
        self.since = Some((sample.now, sample.delivered, sample.lost));
        self.rate = delivered / took;
        self.step(lost / (delivered + lost).max(1.0), segments, self.rate * rtt);
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn share(&self) -> GroupRate {
        GroupRate { rate: self.rate, aim: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: f64 = 1e9;

    fn at_equilibrium() -> Paper {
        let mut paper = Paper::new(PaperSettings::default(), u64::MAX, None);
        for loss in [0.0, 0.0, 0.01, 0.01, 0.01] {
            assert_eq!(paper.window(), u64::MAX, "no brake before the equilibrium");
            paper.step(loss, MANY, 1e6);
        }
        paper
    }

    #[test]
    fn three_equal_losses_begin_the_first_adjustment() {
        assert_eq!(at_equilibrium().window(), 1_250_000);
        let mut paper = Paper::new(PaperSettings::default(), u64::MAX, None);
        for loss in [0.01, 0.01, 0.02, 0.02, 0.03] {
            paper.step(loss, MANY, 1e6);
        }
        assert_eq!(paper.window(), u64::MAX);
    }

    #[test]
    fn a_larger_window_is_kept_if_loss_has_not_risen() {
        let mut paper = at_equilibrium();
        for window in [1_250_000, 1_250_000, 1_250_000, 1_250_000, 1_562_500] {
            paper.step(0.01, MANY, 1e6);
            assert_eq!(paper.window(), window);
        }
    }

    #[test]
    fn a_smaller_window_is_kept_only_if_loss_has_fallen() {
        let mut paper = at_equilibrium();
        paper.step(0.05, MANY, 1e6);
        assert_eq!(paper.window(), 750_000);
        let mut fallen = paper.clone();
        fallen.step(0.005, MANY, 1e6);
        assert_eq!(fallen.window(), 750_000);
        paper.step(0.01, MANY, 1e6);
        assert_eq!(paper.window(), 1_000_000);
        for _ in 0..4 {
            paper.step(0.01, MANY, 1e6);
        }
        assert_eq!(paper.window(), 1_250_000);
    }

    #[test]
    fn noise_within_the_tolerance_is_equal() {
        let mut paper = Paper::new(PaperSettings::default(), u64::MAX, None);
        for loss in [0.01, 0.015, 0.01] {
            paper.step(loss, 100.0, 1e6);
        }
        assert_eq!(paper.window(), 1_250_000);
    }
}
