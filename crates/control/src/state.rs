//! Input and output of a decision: the state of nodes and clients, and the plan.

use serde::Serialize;

use crate::{Load, Time, UPDATE};

/// A node as the control plane knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Maximum load that the node can hold at once; the paper's MC.
    pub capacity: Load,
    /// Load that it already has from other work: arrival rate times execution time, k * E.
    pub busy: Load,
    /// The smoothed length of its queue, from the last plan; `None` before the first.
    pub estimate: Option<Load>,
    /// Number of leaves that each of the latest plans needed, the oldest first; see [`Config::steady`].
    ///
    /// [`Config::steady`]: crate::Config::steady
    pub needs: Vec<u32>,
    /// Number of workers that it has now.
    pub workers: u32,
    /// When its last message arrived.
    pub last_message: Time,
    /// The only group that it serves (Flame's groupBy); `None` if it serves all.
    pub group: Option<u32>,
}

/// A client that is selected for the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The node that it sent to last; `None` if it is new.
    pub home: Option<u32>,
    /// The load that it adds to a node.
    pub load: Load,
    /// The group that it belongs to; `None` if it has none.
    pub group: Option<u32>,
}

impl Default for Client {
    fn default() -> Self {
        Self { home: None, load: UPDATE, group: None }
    }
}

/// The control plane's knowledge of nodes and clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// All nodes. Everything else refers to a node by its index here.
    pub nodes: Vec<Node>,
    /// The clients that are selected for the round.
    pub clients: Vec<Client>,
    /// When hierarchies were last planned.
    pub planned: Option<Time>,
}

/// The result of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The node of each client, in the order of `State::clients`; `None` if no node can take it.
    pub homes: Vec<Option<u32>>,
    /// The part of the tree at each node that has clients or has workers to end.
    pub trees: Vec<NodeTree>,
    /// Where the nodes' sums are folded together.
    pub top: Top,
    /// Nodes that count as lost.
    pub lost: Vec<u32>,
    /// Whether this decision planned the hierarchies anew.
    pub planned: bool,
    /// When to plan hierarchies next.
    #[serde(with = "crate::seconds")]
    pub next: Time,
}

/// One node's part of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeTree {
    /// Index of the node.
    pub node: u32,
    /// Number of clients that send to it.
    pub clients: u32,
    /// Load of these clients, plus the node's load from other work.
    pub queue: Load,
    /// The smoothed length of its queue.
    pub estimate: Load,
    /// Number of leaves, or of workers that fold ranges.
    pub leaves: u32,
    /// Number of leaves that each of the latest plans needed, this one included: the node's next
    /// [`Node::needs`].
    #[serde(skip)]
    pub needs: Vec<u32>,
    /// Whether a middle folds the leaves' sums.
    pub middle: bool,
    /// Number of workers to start.
    pub start: u32,
    /// Number of workers to end.
    pub stop: u32,
}

/// Where the nodes' sums are folded together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Top {
    /// Nowhere: there are no sums.
    Nowhere,
    /// At this node.
    Node {
        /// Index of the node.
        node: u32,
    },
    /// At the node that finishes first.
    FirstFinished,
    /// At each of these nodes, for its share of the bytes, in this order.
    Sharded {
        /// Indices of the nodes.
        nodes: Vec<u32>,
    },
}
