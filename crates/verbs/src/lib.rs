//! RDMA verbs, as far as thalweg needs them: reliable pairs, one-sided writes and reads, and memory that the peer may reach
//! for a while.
//!
//! [`system`] opens libibverbs when the program asks for it: nothing here needs the library, its headers or a device to
//! build or to load. [`pretend`] is a device without hardware, for tests.
//!
//! Memory is safe by ownership. Whatever a device may read or write, the pair owns: bytes until their completion, claims
//! until the peer's key is invalid or the pair is gone.

mod abi;
mod channel;
mod device;
mod domain;
mod open;
#[cfg(feature = "pretend")]
pub mod pretend;
mod queue;
mod regions;
pub mod system;

pub use device::{Device, Done, Endpoint, Error, Fault, Limits, Memory, Pair, Remote, Work, ENDPOINT_BYTES};
