//! Simulates aggregation in virtual time. It runs [`decide`](crate::decide) and the rules of reuse, timing,
//! scaling and admission over an event queue, with [`Costs`] instead of real work. The same scenario and seed
//! give the same outcome on every machine.
//!
//! The model has the cores of each node, for which folds, copies and starts of workers compete. It has one
//! link from each node to the others, on which transfers follow one another, and a link for clients if that
//! has a rate. It does not have memory bandwidth shared by cores, packets or failures.

mod arrivals;
mod costs;
mod engine;
mod machine;
mod systems;
mod tasks;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use costs::Costs;
pub use systems::{DataPlane, Levels, Start, Switches, SYSTEMS};

use crate::autoscaler::Knobs;
pub use crate::seconds::Seconds;
use crate::{decide, Client, Config, Load, Node, Plan, Reason, State, Time};

/// The input of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The nodes of the tree.
    pub nodes: Vec<NodeSpec>,
    /// Number of clients; each sends one update in each round.
    pub clients: u32,
    /// Groups, which clients belong to in turn; empty if there are no groups.
    #[serde(default)]
    pub groups: Vec<u32>,
    /// Number of updates that end a round; `None` for all.
    #[serde(default)]
    pub goal: Option<u32>,
    /// Size of an update in bytes.
    pub bytes: u64,
    /// Size in bytes of a node's sums on their way to another node; `None` for that of an update.
    #[serde(default)]
    pub sums_bytes: Option<u64>,
    /// Number of rounds.
    pub rounds: u32,
    /// Time from the opening of a round to its first update.
    #[serde(with = "crate::seconds")]
    pub between: Duration,
    /// Time over which the arrivals of updates are spread, uniformly at random.
    #[serde(with = "crate::seconds")]
    pub spread: Duration,
    /// Seed of the random arrivals.
    pub seed: u64,
    /// Recorded arrival of each client's update, counted from the first one, to replay a run. Clients without
    /// an entry get a random arrival.
    #[serde(default)]
    pub arrivals: Vec<Seconds>,
    /// The control plane's policies. `switches` override them.
    pub config: Config,
    /// The system that is simulated.
    pub switches: Switches,
    /// The autoscaler's settings.
    #[serde(default)]
    pub autoscaler: Knobs,
    /// Costs of work and of transfers.
    #[serde(default)]
    pub costs: Costs,
}

/// A node of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Maximum load that the node can hold at once (MC), in thousandths of an update.
    pub capacity: Load,
    /// Number of cores.
    pub cores: u32,
    /// Bits a second to and from the other nodes; 0 for no limit.
    pub rate: u64,
    /// Bits a second from clients; `None` for no limit.
    #[serde(default)]
    pub ingress: Option<u64>,
    /// The only group that it serves; `None` if it serves all.
    #[serde(default)]
    pub group: Option<u32>,
}

/// The result of a round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Number of the round, from 1.
    pub round: u32,
    /// Number of updates that count.
    pub counted: u32,
    /// Number of inputs that leaves folded. With ranges, an update counts once for each worker.
    pub folded: u32,
    /// Number of nodes that had updates.
    pub nodes_used: u32,
    /// The node of the top; `None` if the top is sharded.
    pub top: Option<u32>,
    /// Time from the first update to the mean: the aggregation completion time (ACT).
    #[serde(rename = "completion_seconds", with = "crate::seconds")]
    pub completion: Duration,
    /// Time from the first update to the last one.
    #[serde(rename = "arrival_seconds", with = "crate::seconds")]
    pub arrival: Duration,
    /// Time from the mean until every node with updates has the new model.
    #[serde(rename = "spread_seconds", with = "crate::seconds")]
    pub spread: Duration,
    /// Number of workers that were started.
    pub aggregators_created: u32,
    /// Number of tasks that an idle worker of another role took over.
    pub reused: u32,
    /// Bytes of sums that nodes sent to each other.
    pub bytes_between: u64,
    /// Number of times that nodes drew admissions.
    pub draws: u32,
    /// Time of cores, by kind of work.
    pub cpu: Cpu,
    /// Sum over all workers of the time that each existed in this round.
    #[serde(with = "crate::seconds")]
    pub worker_seconds: Duration,
    /// Maximum number of bytes of updates and sums that existed at one moment.
    pub peak_bytes: u64,
}

/// Time of cores, by kind of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Time of cores for folding.
    #[serde(with = "crate::seconds")]
    pub fold: Duration,
    /// Time of cores for copying between processes.
    #[serde(rename = "move", with = "crate::seconds")]
    pub moving: Duration,
    /// Time of cores for starting workers.
    #[serde(with = "crate::seconds")]
    pub start: Duration,
}

/// Why a scenario cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Impossible {
    /// A value is missing or out of bounds.
    Bounds {
        /// What is wrong.
        what: &'static str,
        /// How to fix it.
        hint: &'static str,
    },
    /// Too few updates can be counted, because clients have no node.
    Placement {
        /// Number of the round.
        round: u32,
        /// Number of clients that have a node.
        placed: u32,
        /// Number of updates that the round needs.
        goal: u32,
        /// The reasons of the decision.
        reasons: String,
    },
}

impl Impossible {
    /// What is wrong.
    pub fn cause(&self) -> String {
        match self {
            Self::Bounds { what, .. } => (*what).into(),
            Self::Placement { round, placed, goal, reasons } => {
                format!("round {round}: only {placed} of {goal} updates have a node ({reasons})")
            }
        }
    }

    /// How to fix it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Bounds { hint, .. } => hint,
            Self::Placement { .. } => "give every group a node that serves it",
        }
    }
}

impl std::fmt::Display for Impossible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.cause(), self.hint())
    }
}

impl std::error::Error for Impossible {}

/// Maximum number of nodes, clients and rounds of a scenario.
const MOST: (usize, u32, u32) = (1_000, 100_000, 10_000);

impl Scenario {
    /// Number of updates that end a round.
    pub fn goal(&self) -> u32 {
        self.goal.unwrap_or(self.clients)
    }

    /// The control plane's state before the first round.
    pub fn state(&self) -> State {
        let node = |spec: &NodeSpec| Node {
            capacity: spec.capacity,
            busy: 0,
            estimate: None,
            needs: Vec::new(),
            workers: 0,
            last_message: Time::ZERO,
            group: spec.group,
        };
        let group =
            |client: usize| (!self.groups.is_empty()).then(|| self.groups[client % self.groups.len()]);
        let clients =
            (0..self.clients as usize).map(|client| Client { group: group(client), ..Client::default() });
        State { nodes: self.nodes.iter().map(node).collect(), clients: clients.collect(), planned: None }
    }

    /// The control plane's configuration, with the switches applied. A flat system has one worker at each
    /// node.
    pub fn configured(&self) -> Config {
        let config = self.switches.configure(&self.config);
        match self.switches.levels {
            Levels::Tree => config,
            Levels::Flat => Config { workers: 1, inputs: u32::MAX, ..config },
        }
    }

    /// The control plane's first decision, and its reasons.
    pub fn preview(&self) -> Result<(Plan, Reason), Impossible> {
        self.check()?;
        Ok(decide(Time::ZERO, &self.state(), &self.configured()))
    }

    /// Checks the scenario's bounds.
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
        if self.sums_bytes.is_some_and(|bytes| bytes == 0 || bytes > 1 << 43) {
            return refuse("sums must have 1 byte to 8 TiB", "take another model");
        }
        if self.goal() == 0 || self.goal() > self.clients {
            return refuse("the goal must be 1 to the number of clients", "change tree.goal");
        }
        Ok(())
    }
}

/// Simulates all rounds. Returns the outcome of each.
pub fn run(scenario: &Scenario) -> Result<Vec<Outcome>, Impossible> {
    scenario.check()?;
    engine::Engine::new(scenario).rounds()
}
