//! What things cost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::systems::{DataPlane, Levels, Start, Switches};

/// The most updates that one pass over the sums folds.
const MANY: u32 = 8;

/// Costs of one machine. Rates are bytes a second. The defaults are measurements on two cores (decision 0046); those of
/// the machine that is meant belong in the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Reading updates while they are folded.
    pub fold: u64,
    /// Reading and writing the sums, once a pass of up to eight updates.
    pub sums: u64,
    /// Handing an object over by a note.
    #[serde(with = "crate::seconds")]
    pub hand_over: Duration,
    /// From one process to another over a socket.
    pub socket: u64,
    /// From one process through a broker to another.
    pub broker: u64,
    /// Through one side process.
    pub side: u64,
    /// Start of a worker from its template.
    #[serde(with = "crate::seconds")]
    pub warm_start: Duration,
    /// Start of a worker as a new process.
    #[serde(with = "crate::seconds")]
    pub cold_start: Duration,
    /// Making a model of the sums at the end of a round, in bytes of the model; 0 takes no time.
    pub finish: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            fold: 13_100_000_000,
            sums: 22_500_000_000,
            hand_over: Duration::from_micros(20),
            socket: 3_300_000_000,
            broker: 840_000_000,
            side: 3_300_000_000,
            warm_start: Duration::from_micros(1300),
            cold_start: Duration::from_millis(100),
            finish: 0,
        }
    }
}

/// The time of so many bytes at a rate in bytes a second, rounded down to nanoseconds. A rate of zero takes no time.
pub fn at_rate(bytes: u64, rate: u64) -> Duration {
    let nanos = (u128::from(bytes) * 1_000_000_000).checked_div(u128::from(rate)).unwrap_or(0);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Costs {
    /// One pass that folds so many inputs of this size.
    pub fn folding(&self, inputs: u32, bytes: u64) -> Duration {
        at_rate(bytes.saturating_mul(inputs.into()), self.fold) + at_rate(bytes, self.sums)
    }

    /// How many of those that wait one pass takes.
    pub fn many(waiting: u32) -> u32 {
        waiting.min(MANY)
    }

    /// From a leaf to its node's middle, which has no side process: time of a core, and time that passes besides.
    pub fn between_workers(&self, bytes: u64, switches: &Switches) -> (Duration, Duration) {
        let sides = if switches.side_process { at_rate(bytes, self.side) } else { Duration::ZERO };
        match switches.data_plane {
            DataPlane::Pool => (sides, self.hand_over),
            DataPlane::Sockets => (sides + at_rate(bytes, self.socket), Duration::ZERO),
            DataPlane::Broker => (sides + at_rate(bytes, self.broker), Duration::ZERO),
        }
    }

    /// From where a node received an update to the worker. With sockets alone a node's only aggregator received it itself.
    pub fn to_worker(&self, bytes: u64, switches: &Switches) -> (Duration, Duration) {
        let side = if switches.side_process { at_rate(bytes, self.side) } else { Duration::ZERO };
        match switches.data_plane {
            DataPlane::Pool => (side, self.hand_over),
            DataPlane::Sockets if switches.levels == Levels::Flat => (side, Duration::ZERO),
            DataPlane::Sockets => (side + at_rate(bytes, self.socket), Duration::ZERO),
            DataPlane::Broker => (side + at_rate(bytes, self.broker), Duration::ZERO),
        }
    }

    /// The start of a worker.
    pub fn starting(&self, start: Start) -> Duration {
        match start {
            Start::Template => self.warm_start,
            Start::Cold => self.cold_start,
            Start::Always => Duration::ZERO,
        }
    }
}
