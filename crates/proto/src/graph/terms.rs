//! The configuration of a node, and the requests that it makes to its driver.

use std::sync::Arc;

use thalweg_wire::control::Alike;
use thalweg_wire::{Layout, Range};

use super::weighing::Weighing;
use crate::session::LinkId;
use crate::Time;

/// How much of its neighbours' models a node waits for, once its own is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// For all models, whole. The node asks again for what was lost.
    All,
    /// For nothing: the node mixes with what has arrived.
    None,
    /// For the first bytes of each model, but no longer than this.
    FirstChunk(Time),
    /// Until each model is whole or its sender has ended it, but no longer than this. With `None`, the limit
    /// follows from the measured lags of the neighbours.
    Deadline(Option<Time>),
}

/// The settings of a node, which never change.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The node's name, unique in the graph.
    pub name: String,
    /// A random number, drawn once per process.
    pub instance: u64,
    /// The job's number, which every chunk carries.
    pub job: u64,
    /// The layout of all models.
    pub layout: Arc<Layout>,
    /// Payload bytes of a chunk.
    pub chunk: u32,
    /// A link without progress for this long, or longer on a slow link, counts as broken.
    pub liveness: Time,
    /// How much of its neighbours' models the node waits for.
    pub waiting: Waiting,
    /// When the weight of a chunk is known.
    pub weighing: Weighing,
    /// Number of iterations after the current one of which the node accepts chunks.
    pub ahead: u32,
    /// The fraction of its model that a node sends in an iteration, more than 0; consecutive iterations send
    /// consecutive parts. 1 is the whole model. All nodes must have the same fraction.
    pub share: f64,
    /// Average by segments where graph, weights and the other settings allow it, and where a node then sends
    /// at least this many bytes less in an iteration. `None`: exchange whole models always.
    pub segments: Option<u64>,
    /// The number of the last iteration, the same at all nodes; `None` if it is unknown.
    pub rounds: Option<u32>,
    /// Digests that must be equal at all nodes.
    pub alike: Alike,
}

/// Tells the driver that the waiting of an iteration is over. The driver mixes the sums into the node's own
/// model, then calls [`Node::mixed`](super::Node::mixed).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixing {
    /// The iteration's number.
    pub round: u32,
    /// The node has come back with an old model. It did not send this model, and gives it weight 0 where a
    /// neighbour's bytes arrived.
    pub fresh: bool,
    /// A deadline ended the waiting.
    pub timed_out: bool,
    /// The iteration was averaged by segments: the mean of all models is there, and is to become the node's
    /// own model.
    pub by_segments: bool,
    /// The longest time that the node was to wait; `None`: no limit.
    pub limit: Option<Time>,
}

/// A request of a node to its driver, besides sending messages and models.
#[derive(Debug)]
pub enum NodeStep {
    /// Mix the sums into the node's own model.
    Mix(Mixing),
    /// Drop the sums of earlier iterations.
    Forget {
        /// The first iteration that is still needed.
        below: u32,
    },
    /// A neighbour's link is up and its handshake is over.
    Met {
        /// The neighbour's name.
        peer: String,
    },
    /// A neighbour's link has ended.
    Left {
        /// The neighbour's name.
        peer: String,
        /// Why the link ended.
        reason: String,
    },
    /// A peer was not let in.
    Refused {
        /// The name in the peer's Hello.
        peer: String,
        /// Why it was refused.
        reason: String,
        /// The peer is a neighbour whose layout, plan, graph or initial model differs, so a new attempt will
        /// fail as well.
        grave: bool,
    },
}

/// The sender of a message or chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// The neighbour at the other end of this accepted link.
    Link(LinkId),
    /// The neighbour with this index, which this node dials ([`Node::meet`](super::Node::meet)).
    Dialled(usize),
}

/// The new bytes of a chunk, which the driver adds to the sums of the chunk's iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// The sender's index.
    pub peer: usize,
    /// The iteration's number.
    pub round: u32,
    /// The weight by which the bytes are multiplied.
    pub weight: f64,
    /// The bytes are a mean already, and are not added to any sums. The driver keeps them, and calls
    /// [`Node::mean_kept`](super::Node::mean_kept) and not `folded`.
    pub mean: bool,
    /// The ranges to add.
    pub fresh: Vec<Range>,
}
