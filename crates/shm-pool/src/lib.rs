//! The pool of a node: shared memory that the node writes and its workers read (LIFL, section 4.1 and
//! appendix A).
//!
//! The node claims a [`Slot`], receives an update into it from any transport, and seals it. The slot is then
//! an [`Object`], which nobody changes until the node drops it. A worker gets only the object's [`Name`] and
//! reads the object in place by a [`Reader`].
//!
//! - Objects are immutable. The node seals the memory after it has mapped it (`F_SEAL_FUTURE_WRITE`), so the
//!   kernel refuses all other writes. The node writes to a slot only between claim and seal.
//! - Shared memory has no lock and no counter. Only the node allocates, and it keeps its lists in private
//!   memory. So a worker that is killed leaves nothing locked.
//! - The memory has no name in the file system. Workers get the descriptor from the node, and the memory is
//!   freed with the last process that maps it.
//! - An outdated name is detected. A name has slot, generation and key. The last two are also in the slot's
//!   head and must match.
//! - The pool does not grow. All memory is allocated when the pool is made, and a full pool returns [`Full`].
//!
//! A slot is a head and a body. The head, in whole pages, little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0..16 | key, random |
//! | 16..24 | generation: how many times the slot was claimed |
//! | 24..32 | number of ranges |
//! | 16 each | a range that was received: its first byte, and the one after its last; rising and disjoint |
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod head;
mod plan;
mod pool;
mod reader;

pub use plan::{Class, Plan};
pub use pool::{Full, Object, Pool, PoolError, Slot};
pub use reader::{ReadError, Reader, View};

/// Random bytes that identify an object.
pub type Key = [u8; 16];

/// Identifies an object: where it lies, and how a reader detects that it was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Name {
    /// Number of the slot.
    pub slot: u32,
    /// How many times the slot had been claimed.
    pub generation: u64,
    /// Key of the object.
    pub key: Key,
}
