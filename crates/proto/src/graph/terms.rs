//! What a node is told, and what it asks of its driver.

use std::sync::Arc;

use thalweg_wire::control::Alike;
use thalweg_wire::{Layout, Range};

use super::weighing::Weighing;
use crate::session::{Action, LinkId};
use crate::Time;

/// For what of its neighbours' models a node waits, once its own is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// For all of them, whole; what is lost is asked for again.
    All,
    /// For nothing: the node mixes with what has arrived.
    None,
    /// For the first bytes of each, but no longer than this.
    FirstChunk(Time),
    /// Until each model is whole or its sender has ended it, but no longer than this. With `None` the limit follows from
    /// the measured lags of the neighbours.
    Deadline(Option<Time>),
}

/// What does not change while a node lives.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Its name, unique in the graph.
    pub name: String,
    /// Random, once a process.
    pub instance: u64,
    /// The job's number, in every chunk.
    pub job: u64,
    /// The layout of all models.
    pub layout: Arc<Layout>,
    /// Bytes of payload in a chunk.
    pub chunk: u32,
    /// Least time without progress that ends a link.
    pub liveness: Time,
    /// What is waited for.
    pub waiting: Waiting,
    /// When weights are known.
    pub weighing: Weighing,
    /// How many iterations beyond the current one the node accepts chunks of.
    pub ahead: u32,
    /// The share of its model that a node sends in an iteration, more than 0, in turn; 1 is all of it. All nodes must have
    /// the same.
    pub share: f64,
    /// The number of the last iteration, the same at all nodes, if it is known.
    pub rounds: Option<u32>,
    /// What all nodes must have alike.
    pub alike: Alike,
}

/// The waiting of an iteration is over: the driver mixes the sums into the own model, then calls [`Node::mixed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mixing {
    /// The iteration.
    pub round: u32,
    /// The node has come back with an old model. It was not sent, and has weight 0 where a neighbour's bytes arrived.
    pub fresh: bool,
    /// A deadline ended the waiting.
    pub timed_out: bool,
    /// How long was to be waited at most.
    pub limit: Option<Time>,
}

/// What a node asks of its driver, besides messages and models to be sent.
#[derive(Debug)]
pub enum NodeStep {
    /// Mix.
    Mix(Mixing),
    /// Drop the sums of earlier iterations.
    Forget {
        /// The first iteration that is still needed.
        below: u32,
    },
    /// A neighbour is there.
    Met {
        /// Its name.
        peer: String,
    },
    /// A neighbour's link has ended.
    Left {
        /// Its name.
        peer: String,
        /// Why.
        reason: String,
    },
    /// Somebody was not let in.
    Refused {
        /// What name it gave.
        peer: String,
        /// Why.
        reason: String,
        /// It is a neighbour whose layout, plan, graph or initial model differs, so a new attempt will fail as well.
        grave: bool,
    },
}

/// What the accepted links of a node ask of its driver.
pub type NodeAction = Action<NodeStep>;

/// Who sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// Whoever is at the other end of a link that was accepted.
    Link(LinkId),
    /// A neighbour that is dialled, by its place ([`Node::meet`]).
    Dialled(usize),
}

/// The new bytes of a chunk, which the driver adds to the sums of the chunk's iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// Whose it is, by place.
    pub peer: usize,
    /// The iteration.
    pub round: u32,
    /// The sender's weight.
    pub weight: f64,
    /// What to add.
    pub fresh: Vec<Range>,
}
