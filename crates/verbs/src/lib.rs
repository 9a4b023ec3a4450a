//! The part of RDMA verbs that thalweg needs: reliable queue pairs, one-sided writes and reads, and memory
//! that the peer may access for a while.
//!
//! [`system`] opens libibverbs at run time, when the program asks for it. So neither building nor loading
//! needs the library, its headers or a device. [`pretend`] is a device without hardware, for tests.
//!
//! Memory is safe by ownership. A pair owns everything that a device may read or write: bytes until their
//! completion, claims until the peer's key is invalid or the pair is destroyed.

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
