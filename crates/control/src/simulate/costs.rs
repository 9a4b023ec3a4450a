//! Costs of folding, copying and starting workers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::systems::{DataPlane, Levels, Start, Switches};

/// Maximum number of updates that one pass over the sums folds.
const MANY: u32 = 8;

/// Costs on one machine; rates are in bytes a second. The defaults were measured on two cores (decision
/// 0046). A plan should have those of the machine that it is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Rate of reading updates while they are folded.
    pub fold: u64,
    /// Rate of reading and writing the sums, once for a pass of up to eight updates.
    pub sums: u64,
    /// Time to hand an object over by a note.
    #[serde(with = "crate::seconds")]
    pub hand_over: Duration,
    /// Rate of copying from one process to another over a socket.
    pub socket: u64,
    /// Rate of copying from one process to another through a broker.
    pub broker: u64,
    /// Rate of copying through one side process.
    pub side: u64,
    /// Time to fork a worker from its template.
    #[serde(with = "crate::seconds")]
    pub warm_start: Duration,
    /// Time to start a worker as a new process.
    #[serde(with = "crate::seconds")]
    pub cold_start: Duration,
    /// Time before that in which its container starts, which takes no core.
    #[serde(with = "crate::seconds")]
    pub container_start: Duration,
    /// Rate of making the model from the sums at the end of a round; 0 takes no time.
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
            container_start: Duration::ZERO,
            finish: 0,
        }
    }
}

/// Time for `bytes` at `rate` bytes a second, rounded down to nanoseconds. A rate of zero takes no time.
pub fn at_rate(bytes: u64, rate: u64) -> Duration {
    let nanos = (u128::from(bytes) * 1_000_000_000).checked_div(u128::from(rate)).unwrap_or(0);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Costs {
    /// Time of one pass that folds this many inputs of this size.
    pub fn folding(&self, inputs: u32, bytes: u64) -> Duration {
        at_rate(bytes.saturating_mul(inputs.into()), self.fold) + at_rate(bytes, self.sums)
    }

    /// Number of the waiting inputs that one pass folds.
    pub fn many(waiting: u32) -> u32 {
        waiting.min(MANY)
    }

    /// Cost of sending a leaf's sums to the node's middle, which has no side process: time of a core, and
    /// delay without a core.
    pub fn between_workers(&self, bytes: u64, switches: &Switches) -> (Duration, Duration) {
        let sides = if switches.side_process { at_rate(bytes, self.side) } else { Duration::ZERO };
        match switches.data_plane {
            DataPlane::Pool => (sides, self.hand_over),
            DataPlane::Sockets => (sides + at_rate(bytes, self.socket), Duration::ZERO),
            DataPlane::Broker => (sides + at_rate(bytes, self.broker), Duration::ZERO),
        }
    }

    /// Cost of bringing a received update to its worker: time of a core, and delay without a core. In a flat
    /// system with sockets the only aggregator receives updates itself.
    pub fn to_worker(&self, bytes: u64, switches: &Switches) -> (Duration, Duration) {
        let side = if switches.side_process { at_rate(bytes, self.side) } else { Duration::ZERO };
        match switches.data_plane {
            DataPlane::Pool => (side, self.hand_over),
            DataPlane::Sockets if switches.levels == Levels::Flat => (side, Duration::ZERO),
            DataPlane::Sockets => (side + at_rate(bytes, self.socket), Duration::ZERO),
            DataPlane::Broker => (side + at_rate(bytes, self.broker), Duration::ZERO),
        }
    }

    /// Time to start a worker.
    pub fn starting(&self, start: Start) -> Duration {
        match start {
            Start::Template => self.warm_start,
            Start::Cold => self.cold_start,
            Start::Always => Duration::ZERO,
        }
    }
}
