//! Decides when and how much a sender sends, for senders that retransmit but do not slow down for loss. This
//! crate has no IO and no clock.
//!
//! [`ltp`] has both ends of the transport `ltp`. `thalweg-masking` uses the same parts for its data to the
//! client, and the transport `udp` uses them for its cwnd.
//!
//! ```text
//! pace      when the next packet leaves            a token bucket
//! rate      congestion window and pacing rate      BBR, draft-cardwell-iccrg-bbr-congestion-control
//! loss      loss detection and RTT                 RFC 9002, sections 5 and 6
//! belief    the estimates of all of them, for a trace
//! delivery  delivery rate                          draft-cheng-iccrg-delivery-rate-estimation
//! ```

#![forbid(unsafe_code)]

mod belief;
mod delivery;
mod loss;
pub mod ltp;
mod pace;
mod rate;

pub use belief::{Belief, Waits};
pub use delivery::{Delivery, Measured, Stamp};
pub use loss::Trips;
pub use pace::Pacer;
pub use rate::{AckSample, Rate};

/// Time since some fixed moment, on a monotonic clock. The caller passes the current time.
pub type Time = std::time::Duration;
