//! Rounds of federated averaging over the engine: a server that folds, and a client with a model in its arena.

mod client;
mod client_sink;
mod mending;
mod reduce;
mod repair;
mod report;
mod server;
mod server_sink;
mod staging;
mod top;
#[cfg(target_os = "linux")]
mod workers;

pub use self::client::{Client, ClientEvent};
pub use self::repair::RepairRule;
pub(crate) use self::report::transfer_json;
pub use self::server::Server;
pub use self::top::{parts_of, SumsOfRound, Top};
#[cfg(target_os = "linux")]
pub use self::workers::work;

/// Works for a node in a process of its own.
///
/// # Errors
/// Always: workers share memory as Linux alone does.
#[cfg(not(target_os = "linux"))]
pub fn work() -> Result<(), crate::Error> {
    Err(server::no_workers())
}
