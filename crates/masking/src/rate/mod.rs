//! Rate controllers decide how many bytes a sender may have in flight. Once losses are masked, the advertised
//! window is the only brake.
//!
//! Without a brake, masking destroys the transfer: a Cubic sender lost 89 % of its bytes on a path of 100
//! Mbit/s. The window can only limit a sender. It cannot make the sender exceed its cwnd (requirement U-Q5).

mod buffer;
mod delay;
mod group;
#[cfg(feature = "baselines")]
mod paper;
mod rival;

pub use delay::{Delay, DelaySettings};
pub use group::{Group, GroupRate};
#[cfg(feature = "baselines")]
pub use paper::{Paper, PaperSettings};

use crate::Time;

/// The measurements that a controller gets when data arrives.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Current time.
    pub now: Time,
    /// Bytes that have arrived, each counted once. Masked bytes do not count. With them, the rate on a path
    /// of 100 Mbit/s would seem to be 1350 Mbit/s.
    pub delivered: u64,
    /// Masked bytes that have not arrived.
    pub lost: u64,
    /// Payload of a full segment.
    pub segment: u32,
    /// An RTT sample, including queues.
    pub rtt: Option<Time>,
    /// Arrival time minus send time in seconds. The two clocks have an arbitrary offset.
    pub one_way: Option<f64>,
    /// Whether the packet carries a congestion mark (CE, RFC 3168).
    pub ce: bool,
    /// The rate and target of the flow's group, if it is in one.
    pub share: Option<GroupRate>,
}

/// Decides how many bytes a flow may have in flight.
pub trait Control: std::fmt::Debug + Send {
    /// Processes a sample, when data has arrived.
    fn arrived(&mut self, sample: &Sample);
    /// Bytes that the sender may send beyond the highest byte that has arrived.
    fn window(&self) -> u64;
    /// Whether the sender seems to be in slow start.
    fn ramping(&self) -> bool {
        false
    }
    /// Bytes that fill the path (rate times minimum RTT), by the rate of the fastest burst. 0 if that is
    /// unknown, or if the sender paces.
    fn carries(&self) -> u64 {
        0
    }
    /// The rate and target that the flow publishes to its group. A rate of 0 means unknown.
    fn share(&self) -> GroupRate {
        GroupRate { rate: 0.0, aim: 0.0 }
    }
}

/// Which rate controller new flows get.
#[derive(Debug, Clone)]
pub enum Rate {
    /// No limit but the largest window. This reproduces figure 4 of the paper.
    None,
    /// A constant number of bytes.
    Fixed(u64),
    /// The paper's controller, as we read the paper.
    #[cfg(feature = "baselines")]
    Paper(PaperSettings),
    /// Controls by delivery rate, minimum RTT and queuing delay.
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
            #[cfg(feature = "baselines")]
            Rate::Paper(settings) => Box::new(Paper::new(settings.clone(), most, rtt)),
            Rate::Delay(settings) => Box::new(Delay::new(settings.clone(), most, segment, rtt)),
        }
    }
}

/// A constant window.
#[derive(Debug, Clone, Copy)]
struct Fixed(u64);

impl Control for Fixed {
    fn arrived(&mut self, _: &Sample) {}

    fn window(&self) -> u64 {
        self.0
    }
}

/// The minimum over the last one to two spans. Old values expire, so it follows slow changes of clocks and
/// routes.
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

    /// Keeps all values for another span.
    fn hold(&mut self, now: Time) {
        self.turned = now;
    }

    fn get(&self) -> Option<f64> {
        let least = self.now.min(self.before);
        least.is_finite().then_some(least)
    }
}
