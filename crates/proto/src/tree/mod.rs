//! A round of an aggregation tree. [`TreeRound`] is its root: whose part of the round counts, where the sums of
//! the nodes meet, and which clients are drawn. [`AggregatorNode`] is a node: it does what the root asks for,
//! together with the other nodes.
//!
//! Clients are connected to nodes, and each node is a server to its clients and a member of the root's tasks.
//! The root asks nodes for something with a task ([`TreeStep::Ask`]); each node's answer, or the reason why
//! there is none, comes back with [`TreeRound::answered`] or [`TreeRound::unanswered`]. So sessions and
//! transfers are those of `tasks`, which sees to it that each request ends.
//!
//! ```text
//! dedicated       Round -> sums come with the answer; the root merges them, and computes the mean
//! first-finished  Round -> BecomeTop (first node), SendSums and ReceiveSums for each other -> ComputeMean
//! sharded         Round -> FoldPart -> ComputePart -> ConfirmParts, each at all nodes that count
//! middle          Round -> sums come with the answer; the middle merges them, and its parent gets the sums
//! ```
//!
//! If a round counts fewer updates than clients take part, the root also asks each node for the updates that have
//! arrived, and says which of them are folded ([`Admit`](thalweg_wire::tree::Admit)), in the order in which it learns
//! of them. So the first updates count, over all nodes.
//!
//! A node may have nodes below it instead of clients: a middle node. For its parent it is a node whose clients
//! are all clients below it. For the nodes below it is the root of a round that ends with sums instead of a
//! mean. So trees have any depth.
//!
//! The mean is always of whole parts: all updates of a node that count, or none. A node that is lost after its
//! sums have left it still counts. A top that is lost is replaced by a node that is left, from sums that
//! each node keeps until the next round. A round ends with the nodes' parts and a reason for each that does
//! not count, or fails with a reason.

mod acceptance;
mod admitting;
mod draw;
mod gathering;
mod node;
mod round;
mod sharded;

pub use self::draw::Draw;
pub use self::node::{AggregatorNode, AggregatorStep, RequestId};
pub use self::round::{
    Mean, PartOutcome, PartState, Split, TopKind, TreeNode, TreePlan, TreeRound, TreeStep,
};
