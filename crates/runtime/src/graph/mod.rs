//! A node of a graph. It adds up its neighbours' models as they arrive, and mixes them into its own.
//!
//! One state machine ([`thalweg_proto::Node`]) handles all links of a node. The engine's `Hub` drives the
//! links that the node accepts, and one `Dialer` each drives a link that it dials. [`doors`] adapts the
//! machine to both.

mod beginning;
mod doors;
mod means;
mod mixing;
mod node;
mod options;
mod report;
mod sink;
mod staging;
#[cfg(test)]
pub(crate) mod stalled;

pub use beginning::Upcoming;
pub use node::Node;
pub use options::{ExchangeRule, MixingRule, NodeOptions, WaitRule};
