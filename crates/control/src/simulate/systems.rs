//! The systems that are compared. They differ in switches, and have the same costs of folds and links.

use serde::{Deserialize, Serialize};

use crate::{Config, Policy, Scaling, Timing};

/// How updates get from process to process on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataPlane {
    /// In shared memory; a note has the object's name.
    Pool,
    /// Over sockets.
    Sockets,
    /// Over sockets, through a message broker.
    Broker,
}

/// How workers are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// A template process forks them.
    Template,
    /// Each starts as a new process.
    Cold,
    /// They run from the beginning.
    Always,
}

/// The switches of one system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switches {
    /// How updates get from process to process.
    pub data_plane: DataPlane,
    /// Whether a side process passes on what a worker receives and sends.
    pub side_process: bool,
    /// Whether a node has several leaves and a middle, or one aggregator.
    pub levels: Levels,
    /// How the number of workers is chosen.
    pub scaling: Scaling,
    /// How a node is chosen for a client.
    pub placement: Policy,
    /// When workers fold.
    pub timing: Timing,
    /// Whether idle workers take over work of the next level.
    pub reuse: bool,
    /// How workers are started.
    pub start: Start,
}

/// The aggregators of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Levels {
    /// Leaves and a middle, or workers that fold ranges.
    Tree,
    /// One aggregator.
    Flat,
}

/// Names of all systems.
pub const SYSTEMS: [&str; 7] = ["lifl", "sf", "sl", "sl-h", "sf-mono", "sf-micro", "sl-b"];

impl Switches {
    /// The switches of a system by name; `None` if there is no such system. Where the paper does not say how
    /// a baseline is set, the baseline gets the better setting.
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

    /// The control plane's configuration, with these switches applied.
    pub fn configure(&self, config: &Config) -> Config {
        Config {
            scaling: self.scaling,
            placement: self.placement,
            timing: self.timing,
            reuse: self.reuse,
            ..config.clone()
        }
    }

    /// Number of copies of an update in memory while it waits to be folded (LIFL, appendix F).
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
