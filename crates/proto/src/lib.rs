//! Sessions, transfers and the policies that are built on them, as state machines without IO.
//!
//! Nothing here opens a socket, spawns a task or reads a clock. The caller passes the time as `now`, reports
//! events by calling methods, and fetches what it must do with `poll_action`. The same code runs live, in
//! tests with a virtual clock and network, and under a fuzzer.
//!
//! ```text
//! session    one link: handshake, proof, versions, liveness, pings, clocks, counters
//! transfer   one parcel on one link, in either direction: offer, grant, chunks, holes, resend, End, resume
//! star       federated averaging in rounds; uses session and transfer
//! tasks      tasks for named members, and their results; uses session and transfer
//! graph      nodes that average with their neighbours, without a server; uses session and transfer
//! tree       rounds of an aggregation tree, at its root and its nodes; its messages are heads of tasks
//! forward    TCP streams of other programs over one link
//! ```
#![forbid(unsafe_code)]

mod forward;
mod graph;
mod kind;
mod session;
mod star;
mod tasks;
mod transfer;
mod tree;

pub use forward::{Batch, Fetched, ForwardConfig, ForwardEvent, Mux};
pub use graph::{
    DialledNeighbour, Exchange, ExchangeState, Mixing, Neighbour, Node, NodeConfig, NodePlace, NodeStep,
    Portion, Taken, Waiting, Weighing, MEAN,
};
pub use kind::Kind;
pub use session::{
    other_purpose, Action, Admission, ClientAction, ClientConfig, ClientMachine, Failure, LinkId, Liveness,
    ServerMachine, SessionConfig, Traffic,
};
pub use star::{
    Choice, Client, Credits, Ending, Fanout, Gather, Homes, Outcome, Partial, Participation, Place, Round,
    RoundAction, RoundPlan, RoundStep, Selection, Server, ServerConfig, State, Stored, Verdict, Version,
};
pub use tasks::{
    Answer, Reply, ReplyState, TaskAction, TaskClient, TaskConfig, TaskPlace, TaskPlan, TaskServer, TaskStep,
    TaskVerdict,
};
pub use transfer::{ChunkReceiver, Direction, Fit, Reassembly, Span, TransferReport};
pub use tree::{
    AggregatorNode, AggregatorStep, Draw, Mean, PartOutcome, PartState, RequestId, Split, TopKind, TreeNode,
    TreePlan, TreeRound, TreeStep,
};

/// Time since the state machine was made, on a monotonic clock.
pub type Time = std::time::Duration;

/// Converts a time to whole microseconds, the unit of times in control messages.
pub fn micros(time: Time) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
