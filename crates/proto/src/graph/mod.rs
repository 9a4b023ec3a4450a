//! Decentralized averaging on a graph (D-PSGD): each node trains a model of its own, and mixes it with its
//! neighbours' models.
//!
//! Each edge of the graph has one link, which carries models both ways. The node with the lower name dials.
//! Nodes push their models: each chunk's header says where it belongs, and an End says that the sender has
//! sent everything. A node is at one iteration at a time. It drops chunks of earlier iterations as late. It
//! keeps chunks of the next few iterations, so that no neighbour has to wait for a node that is slightly
//! behind. A node that is told the weights of its first iteration in advance also keeps chunks before it
//! begins that iteration.
//!
//! On a full graph with equal weights, nodes do not exchange whole models, but average them by segments
//! (`segments`).
//!
//! ```text
//! begin --> training --ready--> waiting --Mix--> mixing --mixed--> idle
//! ```

mod announced;
mod dialling;
mod exchange;
mod iteration;
mod meeting;
mod node;
mod peer;
mod segments;
mod sharing;
mod terms;
mod timing;
mod weighing;

pub use dialling::DialledNeighbour;
pub use node::Node;
pub use peer::{Exchange, Outcome as ExchangeState, Place as NodePlace};
pub use segments::MEAN;
pub use terms::{Mixing, Neighbour, NodeConfig, NodeStep, Taken, Waiting};
pub use weighing::{Portion, Weighing};
