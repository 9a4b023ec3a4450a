//! What is configured: a policy for each decision.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How a client gets its node (section 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The fullest node that still has room: few nodes, little traffic between them.
    BestFit,
    /// The emptiest node, as Knative's Least Connection.
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

/// Where the nodes' sums meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopPolicy {
    /// At the node that finishes first (section 5.3).
    FirstFinished,
    /// At a node that has no clients (section 6.2).
    Dedicated,
    /// At all nodes: each is the parent of the others for its share of the bytes.
    Sharded,
}

/// When a worker folds (section 5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// What is there, at once.
    Eager,
    /// Everything, when the last of its inputs is there.
    Lazy,
}

/// What decides how many workers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// The planned hierarchy, from the estimated queue.
    Hierarchy,
    /// Always the same number.
    Fixed,
    /// A threshold autoscaler that knows nothing of the hierarchy.
    Knative,
}

/// All policies and their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How a client gets its node.
    pub placement: Policy,
    /// Whether clients stay at their node while they fit. Without it all are placed anew each time.
    pub keep: bool,
    /// How workers divide updates.
    pub split: Split,
    /// Where sums meet.
    pub top: TopPolicy,
    /// When workers fold.
    pub timing: Timing,
    /// What decides how many workers there are.
    pub scaling: Scaling,
    /// Whether an idle worker takes over the next level's work.
    pub reuse: bool,
    /// Updates for each leaf; the paper's I.
    pub inputs: u32,
    /// Most leaves of a node, or its workers with `split = ranges`, which are that many.
    pub workers: u32,
    /// Weight of history in the estimate of the queue, in thousandths; the paper's alpha.
    pub history: u32,
    /// How often hierarchies are planned anew.
    #[serde(with = "crate::seconds")]
    pub every: Duration,
    /// How long a node may be silent before it counts as lost.
    #[serde(with = "crate::seconds")]
    pub silence: Duration,
}

impl Default for Config {
    /// What the paper uses, but for `split`.
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
            silence: Duration::from_secs(10),
        }
    }
}
