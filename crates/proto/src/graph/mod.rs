//! Decentralized averaging on a graph: each node trains a model of its own and mixes it with its neighbours' (D-PSGD).
//!
//! There is one link an edge, which carries models both ways; the lower name dials. Models are pushed: chunks describe
//! themselves, and an End says that no more come. A node is at one iteration at a time. Chunks of earlier ones are late;
//! those of the next few are kept, so that nobody waits for a node that is a little behind. A node that knows its first
//! weights when it meets its neighbours keeps chunks from then on, before its first iteration.
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
mod sharing;
mod terms;
mod timing;
mod weighing;

pub use node::Node;
pub use peer::{Exchange, Outcome as ExchangeState, Place as NodePlace};
pub use terms::{Mixing, Neighbour, NodeAction, NodeConfig, NodeStep, Taken, Waiting};
pub use weighing::{Portion, Weighing};
