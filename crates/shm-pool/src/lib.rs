//! A node's pool: memory that the node writes and its workers read (LIFL section 4.1 and appendix A).
//!
//! The node claims a [`Slot`], receives an update into it from any transport, and seals it: it is an [`Object`] then, which
//! nobody changes until the node drops it. A worker is told the object's [`Name`] and reads it where it lies
//! ([`Reader`]); only the name travels.
//!
//! | what | how |
//! |---|---|
//! | immutable | the kernel refuses every write but the node's: the memory is sealed (`F_SEAL_FUTURE_WRITE`) after the node has mapped it, and the node writes to a slot only between claim and seal |
//! | no lock, no counter in shared memory | the node alone allocates, and keeps its lists in private memory: a worker that is killed leaves nothing locked |
//! | no name in the file system | workers get the descriptor from the node; the memory goes with the last process that maps it |
//! | a name that is out of date is noticed | it says slot, generation and key; generation and key lie at the slot's head, and must match |
//! | never more memory than at first | all of it is taken when the pool is made; a full pool gives [`Full`] |
//!
//! A slot is a head and a body. The head, in whole pages, little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0..16 | key, random |
//! | 16..24 | generation: how often the slot was claimed |
//! | 24..32 | number of ranges |
//! | 16 a range | first byte of the body that came, one past the last; rising and disjoint |
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod head;
mod plan;
mod pool;
mod reader;

pub use plan::{Class, Plan};
pub use pool::{Full, Object, Pool, PoolError, Slot};
pub use reader::{ReadError, Reader, View};

/// What an object is called: 16 random bytes.
pub type Key = [u8; 16];

/// Where an object lies, and what proves that it still does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// Number of the slot.
    pub slot: u32,
    /// How often the slot had been claimed.
    pub generation: u64,
    /// The key.
    pub key: Key,
}
