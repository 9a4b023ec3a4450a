//! The receiving side of TCP that masks loss, for senders that know nothing of it (UniFL, section 3).
//!
//! A hole in the stream is acknowledged as if it had come, and reported: the sender's congestion control, whatever it is,
//! sees no loss and keeps its rate. What must not be lost is repaired as ever, and the echo of an old timestamp makes the
//! sender undo its reduction. How much a sender has under way is decided here, by the window.
//!
//! An [`Endpoint`] has no IO and no clock. IP packets go in through [`Endpoint::handle_packet`], come out of
//! [`Endpoint::poll_packet`]; time passes through [`Endpoint::handle_timeout`] at [`Endpoint::poll_timeout`].
//!
//! ```text
//! packet -> segment -> flow/input   is it of this connection, and of now?      RFC 9293, 5961, 7323
//!                      flow/data    into the stream, to the application
//!                      stream       gaps: waiting, held, masked                RFC 2018, policy: which
//!                      reordering  how long gaps wait                        RFC 8985
//!                      rate/*       how large the window is
//!           packet  <- flow/output  acknowledgements, window, the way back     outgoing: RFC 2018, 6298, 8985
//! ```
//!
//! Never acknowledged is what lies beyond the highest byte seen: that would be an optimistic acknowledgement (Savage et
//! al. 1999), which firewalls drop and senders defend against. A forged segment masks at most
//! [`Policy::largest`] bytes, and none without an echo of our own clock where timestamps are agreed on.

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

pub use address::{Address, Peer, Tuple};
pub use config::{Config, Ecn, Reorder, Undo};
pub use endpoint::{Endpoint, Turn};
pub use event::{Agreed, Counters, Ended, Event, FlowId, Stats, What};
pub use policy::{Budget, Excess, Policy};
pub use rate::{Control, Delay, DelaySettings, Group, Paper, PaperSettings, Rate, Sample, Share};
pub use segment::{Checksum, Offload};
pub use stamps::clock_unit;

/// Time since some fixed moment, on a monotonic clock. The caller says what time it is.
pub type Time = std::time::Duration;
