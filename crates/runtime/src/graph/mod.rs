//! A node of a graph: its neighbours' models are added up as they come, and mixed into its own.
//!
//! One machine ([`thalweg_proto::Node`]) has all links; each is driven by the engine's `Hub`, if it was accepted, or by a
//! `Dialer` of its own. [`doors`] is what of the machine each of them sees.

mod beginning;
mod doors;
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
pub use options::{MixingRule, NodeOptions, WaitRule};
