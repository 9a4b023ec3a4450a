//! Rounds of federated averaging on the engine: a server that folds updates, and a client with a model in its
//! arena.

mod client;
mod client_sink;
mod counters;
mod down;
mod feedback;
mod reduce;
mod repair;
mod report;
mod server;
mod server_sink;
mod staging;
mod top;
mod update_filler;
#[cfg(target_os = "linux")]
mod workers;

pub use self::client::{Client, ClientEvent};
pub use self::repair::RepairRule;
pub(crate) use self::report::{written, Transfer};
pub use self::server::Server;
pub use self::top::{parts_of, Statement, SumsOfRound, Top};
#[cfg(target_os = "linux")]
pub use self::workers::{asked, forked, hop, kernel_routes, work};

/// Not supported on this system. On Linux, it runs a worker for a node, in a process of its own.
///
/// # Errors
/// Always fails: workers share memory in a way that only Linux has.
#[cfg(not(target_os = "linux"))]
pub fn work() -> Result<(), crate::Error> {
    Err(server::no_workers())
}

/// Not supported on this system. On Linux, it checks whether the kernel can route notes.
///
/// # Errors
/// Always fails, with the same error as [`work`].
#[cfg(not(target_os = "linux"))]
pub fn kernel_routes() -> Result<(), crate::Error> {
    Err(server::no_workers())
}

/// Not supported on this system. On Linux, it forwards messages, in a process of its own.
///
/// # Errors
/// Always fails, with the same error as [`work`].
#[cfg(not(target_os = "linux"))]
pub fn hop(_most: u64) -> Result<(), crate::Error> {
    Err(server::no_workers())
}

/// Not supported on this system. On Linux, a template process waits in it for a node's request.
///
/// # Errors
/// Always fails, with the same error as [`work`].
#[cfg(not(target_os = "linux"))]
pub fn asked() -> Result<Option<i32>, crate::Error> {
    Err(server::no_workers())
}

/// Not supported on this system. On Linux, it tells a node about the worker that was forked for it.
///
/// # Errors
/// Always fails, with the same error as [`work`].
#[cfg(not(target_os = "linux"))]
pub fn forked(_process: u32) -> Result<(), crate::Error> {
    Err(server::no_workers())
}
