//! Drives the state machines of `thalweg-proto` over real transports, receives into arenas and folds. This
//! crate alone owns tokio, threads and the wall clock.
//!
//! ```text
//! engine   one tokio runtime for the process; links, outboxes, loans, reading, the clock; drives any machine
//! star     rounds: staging, folding, stand-ins, the mean; a client's arena
//! tasks    tasks and their results
//! tree     a node of an aggregation tree among the other nodes
//! graph    nodes that average with their neighbours
//! forward  other programs' TCP streams over a link
//! ```
#![forbid(unsafe_code)]

#[cfg(test)]
mod border;
mod engine;
mod error;
mod forward;
mod graph;
mod mean;
mod options;
pub mod probe;
mod proxy;
mod registry;
mod relay;
mod star;
mod tasks;
mod tensors;
mod tree;

pub use engine::{check_forwarded_proof, GoOn};
pub use error::{Error, Kind};
pub use forward::{ForwardOptions, Forwarder};
pub use graph::{ExchangeRule, MixingRule, Node, NodeOptions, Upcoming, WaitRule};
pub use options::{
    ClientOptions, DataPlaneRule, Layers, MiddleRule, PartialRule, PrecisionRule, RouteRule, ServerOptions,
    SplitRule, StartRule, TimingRule, WorkerOptions,
};
pub use proxy::Proxy;
pub use registry::{rdma_devices, registry, transport_for, Entry, RdmaDevice, BASELINES};
pub use star::{
    asked, forked, hop, kernel_routes, parts_of, work, Client, ClientEvent, RepairRule, Server, Statement,
    SumsOfRound, Top,
};
pub use tasks::{Judge, NewTask, TaskClient, TaskEvent, TaskReply, TaskServer, TaskServerOptions};
pub use thalweg_layers::{Format, Scheme};
pub use tree::{ExchangeOptions, SumsSource, Tensors, TreeExchange};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even if another thread panicked while holding the lock: every critical section here leaves its data
/// consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory for a model. On Linux, peers on this machine can map it; other peers get a copy.
///
/// # Errors
/// An error if no memory is left.
pub fn shared_arena(bytes: u64) -> Result<thalweg_arena::Arena, thalweg_arena::ArenaError> {
    #[cfg(target_os = "linux")]
    return thalweg_arena::Arena::shared(bytes, thalweg_arena::Access::Read);
    #[cfg(not(target_os = "linux"))]
    thalweg_arena::Arena::new(bytes)
}

/// Fresh random bytes from the system.
///
/// # Errors
/// An error if the system's random source fails.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| Error::new(Kind::System, "draw random bytes", "the system's random source fails"))?;
    Ok(bytes)
}
