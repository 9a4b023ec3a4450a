//! What a decision is made from, and what it is.

use serde::Serialize;

use crate::{Load, Time, UPDATE};

/// A node as the control plane knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The most it can hold at once; the paper's MC.
    pub capacity: Load,
    /// What it holds already of other work: arrival rate times execution time, k * E.
    pub busy: Load,
    /// The smoothed length of its queue, from the last plan; none before the first.
    pub estimate: Option<Load>,
    /// Workers that it has now.
    pub workers: u32,
    /// When it was heard last.
    pub heard: Time,
    /// The group that it serves (Flame's groupBy); none serves all.
    pub group: Option<u32>,
}

/// A client that is selected for the next round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// The node that it sent to last.
    pub home: Option<u32>,
    /// What it adds to a node's load.
    pub load: Load,
    /// The group that it belongs to.
    pub group: Option<u32>,
}

impl Default for Client {
    fn default() -> Self {
        Self { home: None, load: UPDATE, group: None }
    }
}

/// What the control plane knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// All nodes; everything else names them by their place here.
    pub nodes: Vec<Node>,
    /// The clients that are selected.
    pub clients: Vec<Client>,
    /// When hierarchies were planned last.
    pub planned: Option<Time>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The node of each client; none where no node can take it.
    pub homes: Vec<Option<u32>>,
    /// What each node that has clients does.
    pub trees: Vec<NodeTree>,
    /// Where the nodes' sums meet.
    pub top: Top,
    /// Nodes that are lost.
    pub lost: Vec<u32>,
    /// Whether hierarchies are planned anew by this decision.
    pub planned: bool,
    /// When to plan hierarchies next.
    #[serde(with = "crate::seconds")]
    pub next: Time,
}

/// One node's part of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeTree {
    /// The node.
    pub node: u32,
    /// Clients that send to it.
    pub clients: u32,
    /// Their load, and what the node holds of other work.
    pub queue: Load,
    /// The smoothed queue.
    pub estimate: Load,
    /// Leaves, or workers of ranges.
    pub leaves: u32,
    /// Whether a middle folds the leaves' sums.
    pub middle: bool,
    /// Workers to start.
    pub start: u32,
    /// Workers to end.
    pub stop: u32,
}

/// Where the nodes' sums meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Top {
    /// There are no sums.
    Nowhere,
    /// At this node.
    Node {
        /// The node.
        node: u32,
    },
    /// At the node that finishes first.
    FirstFinished,
    /// At each of these, for its share of the bytes, in this order.
    Sharded {
        /// The nodes.
        nodes: Vec<u32>,
    },
}
