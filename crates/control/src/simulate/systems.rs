//! The systems that are compared, as switches over the same fold and links.

use serde::{Deserialize, Serialize};

use crate::{Config, Policy, Scaling, Timing};

/// How updates get from process to process on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataPlane {
    /// They lie in shared memory; a note says where.
    Pool,
    /// Over sockets.
    Sockets,
    /// Over sockets through a message broker.
    Broker,
}

/// How workers come to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Forked from a template process.
    Template,
    /// Started as a new process.
    Cold,
    /// They are always there.
    Always,
}

/// One system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switches {
    /// How updates get from process to process.
    pub data_plane: DataPlane,
    /// Whether a side process mediates what a worker receives and sends.
    pub side_process: bool,
    /// Whether a node has several leaves and a middle, or one aggregator.
    pub levels: Levels,
    /// What decides how many workers there are.
    pub scaling: Scaling,
    /// How clients get their node.
    pub placement: Policy,
    /// When workers fold.
    pub timing: Timing,
    /// Whether idle workers take over the next level's work.
    pub reuse: bool,
    /// How workers come to be.
    pub start: Start,
}

/// The aggregators of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Levels {
    /// Leaves and a middle, or workers of ranges.
    Tree,
    /// One.
    Flat,
}

/// Names of all systems.
pub const SYSTEMS: [&str; 7] = ["lifl", "sf", "sl", "sl-h", "sf-mono", "sf-micro", "sl-b"];

impl Switches {
    /// The switches of a system by name. Where the paper says nothing of a baseline, it gets the better setting.
    pub fn of(system: &str) -> Option<Self> {
        let lifl = Self {
            data_plane: DataPlane::Pool,
            side_process: false,
            levels: Levels::Tree,
            scaling: Scaling::Hierarchy,
            placement: Policy::BestFit,
            timing: Timing::Eager,
            reuse: true,
            start: Start::Template,
        };
        let serverful = Self {
            data_plane: DataPlane::Sockets,
            scaling: Scaling::Fixed,
            placement: Policy::WorstFit,
            reuse: false,
            start: Start::Always,
            ..lifl
        };
        let serverless = Self {
            data_plane: DataPlane::Broker,
            side_process: true,
            scaling: Scaling::Knative,
            timing: Timing::Lazy,
            start: Start::Cold,
            ..serverful
        };
        Some(match system {
            "lifl" => lifl,
            "sf" => serverful,
            "sl" => serverless,
            "sl-h" => Self { data_plane: DataPlane::Pool, side_process: false, ..serverless },
            "sf-mono" => Self { levels: Levels::Flat, ..serverful },
            "sf-micro" => Self { levels: Levels::Flat, data_plane: DataPlane::Broker, ..serverful },
            "sl-b" => Self { levels: Levels::Flat, ..serverless },
            _ => return None,
        })
    }

    /// The configuration of the control plane with these switches.
    pub fn configure(&self, config: &Config) -> Config {
        Config {
            scaling: self.scaling,
            placement: self.placement,
            timing: self.timing,
            reuse: self.reuse,
            ..config.clone()
        }
    }

    /// How often an update lies in memory while it waits (appendix F).
    pub fn copies(&self) -> u64 {
        let queued = if self.data_plane == DataPlane::Broker { 2 } else { 1 };
        queued + u64::from(self.side_process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_system_and_no_two_are_the_same() {
        let all = SYSTEMS.map(|name| Switches::of(name).unwrap());
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{}", SYSTEMS[at]);
        }
        assert_eq!(Switches::of("fl"), None);
    }

    #[test]
    fn a_basic_serverless_queue_holds_an_update_three_times() {
        let copies = |name| Switches::of(name).unwrap().copies();
        assert_eq!(["lifl", "sf-mono", "sf-micro", "sl-b"].map(copies), [1, 1, 2, 3]);
    }
}
