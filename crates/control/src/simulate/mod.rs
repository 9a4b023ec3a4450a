//! Aggregation in virtual time: [`decide`](crate::decide) and the rules of reuse, timing, scaling and admission, over an
//! event queue, with [`Costs`] in place of work. The same scenario and seed give the same outcome on every machine.
//!
//! What is modelled: cores of nodes that folds, copies and starts of workers compete for; one link of each node to the
//! others, on which transfers follow each other; a link for clients, if it has a rate. What is not: memory bandwidth that
//! cores share, packets, failures.

mod arrivals;
mod costs;
mod engine;
mod machine;
mod systems;
mod tasks;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use costs::Costs;
pub use systems::{DataPlane, Levels, Start, Switches, SYSTEMS};

use crate::autoscaler::Knobs;
pub use crate::seconds::Seconds;
use crate::{decide, Client, Config, Load, Node, Plan, Reason, State, Time};

/// What is simulated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The nodes.
    pub nodes: Vec<NodeSpec>,
    /// Clients that send an update each round.
    pub clients: u32,
    /// The group of each client in turn; empty if there are no groups.
    #[serde(default)]
    pub groups: Vec<u32>,
    /// Updates that end a round; none for all.
    #[serde(default)]
    pub goal: Option<u32>,
    /// Size of an update.
    pub bytes: u64,
    /// Rounds.
    pub rounds: u32,
    /// From the opening of a round to the first update.
    #[serde(with = "crate::seconds")]
    pub between: Duration,
    /// Time within which clients finish, evenly.
    #[serde(with = "crate::seconds")]
    pub spread: Duration,
    /// Seed of that.
    pub seed: u64,
    /// When each client's update comes, after the first one: those of a run that is played again. Where there is none it
    /// is drawn.
    #[serde(default)]
    pub arrivals: Vec<Seconds>,
    /// The control plane's policies; the switches go over them.
    pub config: Config,
    /// The system.
    pub switches: Switches,
    /// The autoscaler's numbers.
    #[serde(default)]
    pub autoscaler: Knobs,
    /// What things cost.
    #[serde(default)]
    pub costs: Costs,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// The most it can hold at once, MC, in thousandths of an update.
    pub capacity: Load,
    /// Cores.
    pub cores: u32,
    /// Bits a second to and from the other nodes; 0 for no limit.
    pub rate: u64,
    /// Bits a second from clients; none for no limit.
    #[serde(default)]
    pub ingress: Option<u64>,
    /// The group that it serves; none for all.
    #[serde(default)]
    pub group: Option<u32>,
}

/// What came of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The round, from 1.
    pub round: u32,
    /// Updates that count.
    pub counted: u32,
    /// Inputs that were folded by leaves; with ranges each worker folds all.
    pub folded: u32,
    /// Nodes that had updates.
    pub nodes_used: u32,
    /// Node of the top; none if it is sharded.
    pub top: Option<u32>,
    /// From the first update to the mean: the aggregation completion time, ACT.
    #[serde(rename = "completion_seconds", with = "crate::seconds")]
    pub completion: Duration,
    /// From the first update to the last one.
    #[serde(rename = "arrival_seconds", with = "crate::seconds")]
    pub arrival: Duration,
    /// From the mean to when every used node has it.
    #[serde(rename = "spread_seconds", with = "crate::seconds")]
    pub spread: Duration,
    /// Workers that were started.
    pub aggregators_created: u32,
    /// Tasks that an idle worker of a lower level took over.
    pub reused: u32,
    /// Bytes of sums between nodes.
    pub bytes_between: u64,
    /// Times that nodes drew admissions.
    pub draws: u32,
    /// Time of cores.
    pub cpu: Cpu,
    /// Sum of the time that workers existed in this round.
    #[serde(with = "crate::seconds")]
    pub worker_seconds: Duration,
    /// Most bytes of updates and sums that existed at one moment.
    pub peak_bytes: u64,
}

/// Time of cores by what they did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Folding.
    #[serde(with = "crate::seconds")]
    pub fold: Duration,
    /// Copying between processes.
    #[serde(rename = "move", with = "crate::seconds")]
    pub moving: Duration,
    /// Starting workers.
    #[serde(with = "crate::seconds")]
    pub start: Duration,
}

/// Why a scenario cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Impossible {
    /// Something is missing, or more than the bounds.
    #[error("{what}; {hint}")]
    Bounds {
        /// What.
        what: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// No update can be counted.
    #[error("round {round}: only {placed} of {goal} updates have a node ({reasons}); give every group a node that serves it")]
    Placement {
        /// The round.
        round: u32,
        /// Clients that have a node.
        placed: u32,
        /// Updates that are needed.
        goal: u32,
        /// The decision's reasons.
        reasons: String,
    },
}

/// The largest scenario.
const MOST: (usize, u32, u32) = (1_000, 100_000, 10_000);

impl Scenario {
    /// Updates that end a round.
    pub fn goal(&self) -> u32 {
        self.goal.unwrap_or(self.clients)
    }

    /// The state before the first round.
    pub fn state(&self) -> State {
        let node = |spec: &NodeSpec| Node {
            capacity: spec.capacity,
            busy: 0,
            estimate: None,
            workers: 0,
            heard: Time::ZERO,
            group: spec.group,
        };
        let group =
            |client: usize| (!self.groups.is_empty()).then(|| self.groups[client % self.groups.len()]);
        let clients =
            (0..self.clients as usize).map(|client| Client { group: group(client), ..Client::default() });
        State { nodes: self.nodes.iter().map(node).collect(), clients: clients.collect(), planned: None }
    }

    /// The control plane's configuration: the switches over the policies. A flat system has one worker a node.
    pub fn configured(&self) -> Config {
        let config = self.switches.configure(&self.config);
        match self.switches.levels {
            Levels::Tree => config,
            Levels::Flat => Config { workers: 1, inputs: u32::MAX, ..config },
        }
    }

    /// What the control plane would do first, and why.
    pub fn preview(&self) -> Result<(Plan, Reason), Impossible> {
        self.check()?;
        Ok(decide(Time::ZERO, &self.state(), &self.configured()))
    }

    /// Refuses what is out of bounds.
    pub fn check(&self) -> Result<(), Impossible> {
        let refuse = |what, hint| Err(Impossible::Bounds { what, hint });
        if self.nodes.is_empty() || self.nodes.len() > MOST.0 {
            return refuse("there must be 1 to 1,000 nodes", "change [nodes]");
        }
        if self.clients == 0 || self.clients > MOST.1 {
            return refuse("there must be 1 to 100,000 clients", "change job.clients");
        }
        if self.rounds == 0 || self.rounds > MOST.2 {
            return refuse("there must be 1 to 10,000 rounds", "change job.rounds");
        }
        if self.bytes == 0 || self.bytes > 1 << 40 {
            return refuse("an update must have 1 byte to 1 TiB", "take another model");
        }
        if self.goal() == 0 || self.goal() > self.clients {
            return refuse("the goal must be 1 to the number of clients", "change tree.goal");
        }
        Ok(())
    }
}

/// Runs all rounds.
pub fn run(scenario: &Scenario) -> Result<Vec<Outcome>, Impossible> {
    scenario.check()?;
    engine::Engine::new(scenario).rounds()
}
