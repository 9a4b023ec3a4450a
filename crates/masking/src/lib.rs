//! A TCP receiver that masks loss, for unmodified senders (UniFL, section 3).
//!
//! The receiver acknowledges a hole in the stream as if its bytes had come, and reports it to the
//! application. So the sender's congestion control, whichever it is, sees no loss and keeps its rate. Bytes
//! that must not be missing are retransmitted as in any TCP; the echo of an old timestamp then makes the
//! sender undo the reduction of its window (Eifel, RFC 3522). The receiver decides how much is in flight, by
//! the window that it advertises.
//!
//! `docs/explanation/masking.md` explains all of it: the states of a flow, each constant, the words. The code
//! is frozen: bugs are fixed, but no heuristics are added.
//!
//! An [`Endpoint`] has no IO and no clock. IP packets go in through [`Endpoint::handle_packet`] and come out
//! of [`Endpoint::poll_packet`]. Time passes in [`Endpoint::handle_timeout`], which is due at
//! [`Endpoint::poll_timeout`].
//!
//! ```text
//! packet -> segment -> flow/input   does it belong here, and is it recent?      RFC 9293, 5961, 7323
//!                      flow/data    its bytes: into the stream, to the application
//!                      stream       gaps: waiting, held, masked (by `policy`)     RFC 2018
//!                      reordering   how long a gap waits                         RFC 8985
//!                      rate/*       how large the window is
//!           packet  <- flow/output  acknowledgements, window; data to the client  `outgoing`: RFC 2018, 6298, 8985
//! ```
//!
//! The receiver never acknowledges bytes beyond the highest one that it has seen. That would be an optimistic
//! acknowledgement (Savage et al. 1999), which firewalls drop and senders defend against. One forged segment
//! masks at most [`Policy::largest`] bytes. With timestamps it masks nothing unless it echoes our clock.

#![forbid(unsafe_code)]

mod address;
mod checksum;
mod config;
mod emit;
mod endpoint;
mod event;
mod flow;
mod options;
mod outgoing;
mod policy;
mod rate;
mod recovery;
mod reordering;
mod segment;
mod sequence;
mod siphash;
mod stamps;
mod stream;
#[cfg(test)]
mod vectors;

pub use address::{Address, Peer, Tuple};
pub use config::{Config, Ecn, Reorder, Undo};
pub use endpoint::{Endpoint, Turn};
pub use event::{Agreed, Counters, Ended, Event, FlowId, Stats, What};
pub use policy::{Budget, Excess, Policy};
pub use rate::{Control, Delay, DelaySettings, Group, GroupRate, Paper, PaperSettings, Rate, Sample};
pub use segment::{Checksum, Offload};
pub use stamps::clock_unit;

/// Time since some fixed moment, on a monotonic clock. The caller says what time it is.
pub type Time = std::time::Duration;
