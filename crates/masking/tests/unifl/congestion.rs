//! Congestion control of the model senders: NewReno (RFC 5681) and Cubic (RFC 9438), in segments.

use thalweg_masking::Time;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Reno,
    Cubic,
}

const BETA: f64 = 0.7;
const C: f64 = 0.4;

/// cwnd in segments, and ssthresh.
#[derive(Debug, Clone)]
pub struct Congestion {
    kind: Kind,
    pub window: f64,
    pub threshold: f64,
    epoch: Option<Time>,
    most: f64,
    origin: f64,
    reno: f64,
}

impl Congestion {
    pub fn new(kind: Kind) -> Self {
        let (window, threshold) = (10.0, f64::INFINITY);
        Self { kind, window, threshold, epoch: None, most: 0.0, origin: 0.0, reno: 0.0 }
    }

    /// An ACK acknowledged `segments` segments. Only the cwnd limits the sender, not the application or the
    /// receiver.
    pub fn acknowledged(&mut self, now: Time, segments: f64, rtt: f64) {
        if self.window < self.threshold {
            self.window += segments;
            return;
        }
        if self.kind == Kind::Reno {
            self.window += segments / self.window;
            return;
        }
        if self.epoch.is_none() {
            self.epoch = Some(now);
            self.most = self.most.max(self.window);
            self.origin = ((self.most - self.window) / C).cbrt();
            self.reno = self.window;
        }
        let since = now.saturating_sub(self.epoch.unwrap_or(now)).as_secs_f64() + rtt;
        let target = self.most + C * (since - self.origin).powi(3);
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) * segments / self.window;
        let grow = ((target - self.window) / self.window).clamp(0.01, 0.5);
        self.window = (self.window + grow * segments).max(self.reno);
    }

    /// The sender has detected a loss.
    pub fn reduce(&mut self) {
        let beta = if self.kind == Kind::Cubic { BETA } else { 0.5 };
        let converge = self.window < self.most;
        self.most = if converge { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.threshold = (self.window * beta).max(2.0);
        self.window = self.threshold;
        self.epoch = None;
    }
}
