//! The configuration: a policy for each decision, and its numbers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a node is chosen for a client (LIFL, section 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The fullest node that still has room. This uses few nodes, so little traffic flows between nodes.
    BestFit,
    /// The emptiest node, like Knative's Least Connection.
    WorstFit,
    /// The first node that has room.
    FirstFit,
}

/// How the workers of a node divide its updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// Each leaf folds whole updates of some clients, and a middle folds the leaves' sums (section 5.2).
    Clients,
    /// Each worker folds its own range of bytes of all updates. There are no intermediate sums.
    Ranges,
}

/// Where the nodes' sums are folded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopPolicy {
    /// At the node that finishes first (section 5.3).
    FirstFinished,
    /// At a node that has no clients (section 6.2).
    Dedicated,
    /// At all nodes: each one folds the sums of all nodes for its share of the bytes.
    Sharded,
}

/// When a worker folds (section 5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// As soon as an input has arrived.
    Eager,
    /// Only after all its inputs have arrived.
    Lazy,
}

/// How the number of workers is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// From the plan of the hierarchy, which follows the estimated length of the queue (section 5.2).
    Hierarchy,
    /// A constant number.
    Fixed,
    /// By a threshold autoscaler that does not know the hierarchy.
    Knative,
}

/// The policies of the control plane, and their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How a node is chosen for a client.
    pub placement: Policy,
    /// Whether clients stay at their node while they fit. If not, all are placed anew for each round.
    pub keep: bool,
    /// How the workers of a node divide its updates.
    pub split: Split,
    /// Where the nodes' sums are folded together.
    pub top: TopPolicy,
    /// When workers fold.
    pub timing: Timing,
    /// How the number of workers is chosen.
    pub scaling: Scaling,
    /// Whether an idle worker takes over work of the next level.
    pub reuse: bool,
    /// Number of updates for each leaf; the paper's I.
    pub inputs: u32,
    /// Maximum number of leaves of a node. With `split = ranges`, the exact number of its workers.
    pub workers: u32,
    /// Weight of the history in the queue's estimate, in thousandths; the paper's alpha.
    pub history: u32,
    /// Time between two plans of the hierarchies.
    #[serde(with = "crate::seconds")]
    pub every: Duration,
    /// Number of plans, the present one included, whose largest need decides: a node has as many leaves as the
    /// largest of its latest plans needed. So leaves start at once, and end only after the load has stayed low.
    /// Load that goes up and down within that many plans changes nothing.
    pub steady: u32,
    /// How long a node may be silent before it counts as lost.
    #[serde(with = "crate::seconds")]
    pub silence: Duration,
}

impl Default for Config {
    /// The paper's values, except for `split`.
    fn default() -> Self {
        Self {
            placement: Policy::BestFit,
            keep: true,
            split: Split::Ranges,
            top: TopPolicy::FirstFinished,
            timing: Timing::Eager,
            scaling: Scaling::Hierarchy,
            reuse: true,
            inputs: 2,
            workers: 1,
            history: 700,
            every: Duration::from_secs(120),
            steady: 3,
            silence: Duration::from_secs(10),
        }
    }
}
