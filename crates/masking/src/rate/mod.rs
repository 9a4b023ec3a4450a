//! How much a sender may have under way: the advertised window is the only brake once losses are masked.
//!
//! Without one, masking destroys what it carries: 89 % of a Cubic sender's bytes were lost on a path of 100 Mbit/s.
//! A window caps a sender; it cannot make one send more than its own congestion window allows (requirement U-Q5).

mod brim;
mod delay;
mod group;
mod paper;
mod rival;

pub use delay::{Delay, DelaySettings};
pub use group::{Group, Share};
pub use paper::{Paper, PaperSettings};

use crate::Time;

/// What is known when data arrives.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// The time.
    pub now: Time,
    /// Bytes that have come, each counted once. Masked bytes do not count: a rate of acknowledged bytes would show
    /// 1350 Mbit/s on a path of 100.
    pub delivered: u64,
    /// Bytes that are masked and have not come.
    pub lost: u64,
    /// Payload of a full segment.
    pub segment: u32,
    /// A round trip, its queues included.
    pub rtt: Option<Time>,
    /// When it came less when it was sent, in seconds, by two clocks that differ by anything.
    pub one_way: Option<f64>,
    /// Whether a queue marked it (RFC 3168).
    pub ce: bool,
    /// What the flows of its group have in common.
    pub share: Option<Share>,
}

/// Decides how many bytes a flow may have under way.
pub trait Control: std::fmt::Debug + Send {
    /// Data has come.
    fn arrived(&mut self, sample: &Sample);
    /// Bytes beyond the highest one that has come which the sender may send.
    fn window(&self) -> u64;
    /// Whether the sender seems to be in slow start.
    fn ramping(&self) -> bool {
        false
    }
    /// Bytes that fill the path at the rate of the fastest burst; 0 while that is unknown, or where the sender paces itself.
    fn carries(&self) -> u64 {
        0
    }
    /// What it tells its group; a rate of 0 while it is unknown.
    fn share(&self) -> Share {
        Share { rate: 0.0, aim: 0.0 }
    }
}

/// Which controller new flows get.
#[derive(Debug, Clone)]
pub enum Rate {
    /// No limit but the largest window: reproduces figure 4 of the paper.
    None,
    /// Always so many bytes.
    Fixed(u64),
    /// The paper's, as read.
    Paper(PaperSettings),
    /// By delivered rate, minimum round trip and queueing delay.
    Delay(DelaySettings),
}

impl Default for Rate {
    fn default() -> Self {
        Rate::Delay(DelaySettings::default())
    }
}

impl Rate {
    /// A controller for a new flow whose handshake took `rtt` and whose window is at most `most` bytes.
    pub fn control(&self, most: u64, segment: u32, rtt: Option<Time>) -> Box<dyn Control> {
        match self {
            Rate::None => Box::new(Fixed(most)),
            Rate::Fixed(bytes) => Box::new(Fixed((*bytes).min(most))),
            Rate::Paper(settings) => Box::new(Paper::new(settings.clone(), most, rtt)),
            Rate::Delay(settings) => Box::new(Delay::new(settings.clone(), most, segment, rtt)),
        }
    }
}

/// The same window always.
#[derive(Debug, Clone, Copy)]
struct Fixed(u64);

impl Control for Fixed {
    fn arrived(&mut self, _: &Sample) {}

    fn window(&self) -> u64 {
        self.0
    }
}

/// The least of what came in the last one to two spans, so that a base drifts with clocks and routes.
#[derive(Debug, Clone, Copy)]
struct Least {
    span: Time,
    turned: Time,
    now: f64,
    before: f64,
}

impl Least {
    fn new(span: Time) -> Self {
        Self { span, turned: Time::ZERO, now: f64::INFINITY, before: f64::INFINITY }
    }

    fn add(&mut self, now: Time, value: f64) {
        if now.saturating_sub(self.turned) >= self.span {
            self.turned = now;
            self.before = std::mem::replace(&mut self.now, f64::INFINITY);
        }
        self.now = self.now.min(value);
    }

    /// Nothing is forgotten for another span.
    fn hold(&mut self, now: Time) {
        self.turned = now;
    }

    fn get(&self) -> Option<f64> {
        let least = self.now.min(self.before);
        least.is_finite().then_some(least)
    }
}
