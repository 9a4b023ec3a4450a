//! A TCP receiver that masks loss, for unmodified senders (UniFL, section 3).
//!
//! The receiver acknowledges a hole in the stream as if its bytes had arrived, and reports the hole to the
//! application. So the sender's congestion control, whichever it is, sees no loss and keeps its rate. The
//! sender retransmits bytes that must not be missing, as in any TCP. The receiver then echoes an old
//! timestamp, so that the sender undoes the reduction of its window (Eifel, RFC 3522). The receiver decides
//! how much is in flight, by the window that it advertises.
//!
//! `docs/explanation/masking.md` explains the states of a flow, each constant, and the words. The code is
//! frozen: bugs are fixed, but no heuristics are added.
//!
//! An [`Endpoint`] has no IO and no clock. The caller passes incoming IP packets to
//! [`Endpoint::handle_packet`] and gets outgoing ones from [`Endpoint::poll_packet`]. The caller runs timers
//! by [`Endpoint::handle_timeout`], when [`Endpoint::poll_timeout`] says so.
//!
//! ```text
//! packet -> segment -> flow/input   does it belong here, and is it recent?      RFC 9293, 5961, 7323
//!                      flow/data    its bytes: into the stream, to the application
//!                      stream       gaps: waiting, held, masked (by `policy`)     RFC 2018
//!                      reordering   how long a gap waits                         RFC 8985
//!                      rate/*       how large the window is
//!           packet  <- flow/output  ACKs, window, data to the client (`outgoing`)     RFC 2018, 6298, 8985
//! ```
//!
//! The receiver never acknowledges bytes beyond the highest byte that has arrived. That would be an
//! optimistic ACK (Savage et al. 1999), which firewalls drop and senders defend against. One forged segment
//! masks at most [`Policy::largest`] bytes. If the flow has timestamps, a forged segment masks nothing unless
//! it echoes our clock.

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
pub use rate::{Control, Delay, DelaySettings, Group, GroupRate, Rate, Sample};
#[cfg(feature = "baselines")]
pub use rate::{Paper, PaperSettings};
pub use segment::{Checksum, Offload};
pub use stamps::clock_unit;

/// Time since some fixed moment, on a monotonic clock. The caller passes the current time.
pub type Time = std::time::Duration;
