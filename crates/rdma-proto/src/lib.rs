//! Decides which piece of which part a one-sided RDMA write or read moves next, and when. It does no IO and
//! reads no clock: `now` is an argument.
//!
//! One party offers parts, chunks or whole updates, and the other grants memory for each. The party that moves
//! the bytes cuts each granted part into pieces, one work request each. FedRDMA calls these pieces "chunks" (section 3.1). Here
//! a chunk is a frame's payload, and a piece is what one work request moves.
//!
//! ```text
//! cut      how long pieces are, and FedRDMA's cut (tables 2 and 3)
//! window   bytes in flight, and when the next piece leaves (thalweg-sending, with pieces for packets)
//! mover    takes grants and completions, returns work requests; recovers from a lost pair
//! slots    the ring of commit records at the receiver; credits for the receiver's grants
//! ```
#![forbid(unsafe_code)]

mod cut;
mod mover;
mod slots;
mod window;

pub use cut::{count, cut, Cut, HEADER, LINK_ENABLED, MOST_PIECE};
pub use mover::{Config, Grant, Job, Mover, Outcome, Task, Verdict};
pub use slots::{Credits, Slots};
pub use window::Flight;

/// Time since a fixed moment, on a monotonic clock.
pub type Time = std::time::Duration;
