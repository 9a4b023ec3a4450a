//! Which piece of which chunk a one-sided write or read (RDMA) moves next, and when. Without IO or clock: `now` is an
//! argument.
//!
//! A party offers chunks, the other grants memory for each, and whoever moves the bytes cuts what is granted into
//! pieces, one work request each. FedRDMA calls these chunks (section 3.1); here a chunk is a frame's payload, and a piece
//! what a device is asked to move at once.
//!
//! ```text
//! cut      how long pieces are, and FedRDMA's cut (tables 2 and 3)
//! window   how many bytes may be in flight, and when the next piece leaves   thalweg-sending, with pieces for packets
//! mover    grants in, work out, completions in; recovery from a lost pair
//! slots    the ring of commit records at the receiver; credits for what it grants
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

/// Time since some fixed moment, on a monotonic clock.
pub type Time = std::time::Duration;
