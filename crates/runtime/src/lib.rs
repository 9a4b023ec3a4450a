//! The only owner of tokio, threads and the wall clock: drives the state machines of `thalweg-proto` over
//! real transports, receives into arenas and folds.
//!
//! ```text
//!   link reader tasks --- messages, chunks --->  machine (one mutex)  --- actions --->  driver task
//!        |                                                                                 |
//!        +-- chunk -> staging or fold                    outbox per link, group sends, folds, timers
//! ```
#![forbid(unsafe_code)]

mod admission;
mod client;
mod client_sink;
mod descriptors;
mod error;
mod holding;
mod notes;
mod options;
mod outbox;
pub mod probe;
mod proxy;
mod registry;
mod repair;
mod report;
mod server;
mod server_sink;
mod staging;
mod tensors;
mod turned_away;

pub use client::{Client, ClientEvent};
pub use error::Error;
pub use options::{ClientOptions, Layers, PartialRule, PrecisionRule, ServerOptions};
pub use proxy::Proxy;
pub use registry::{registry, transport_for, Entry};
pub use repair::RepairRule;
pub use server::Server;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic elsewhere: every critical section here leaves its data whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fresh random bytes from the system.
///
/// # Errors
/// If the system has none to give.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| Error::new("system", "draw random bytes", "the system's random source fails"))?;
    Ok(bytes)
}
