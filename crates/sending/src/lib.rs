//! How a sender decides when and how much to send, if it repairs loss but does not slow down for it. Without IO or clock.
//!
//! [`ltp`] has both ends of the `ltp` transport. `thalweg-masking` uses the same parts on its way back to a client.
//!
//! ```text
//! pace      when                                   a token bucket
//! rate      how much may be under way              BBR, draft-cardwell-iccrg-bbr-congestion-control
//! loss      what is lost, and the round trip       RFC 9002, sections 5 and 6
//! delivery  the rate at which packets arrive       draft-cheng-iccrg-delivery-rate-estimation
//! ```

#![forbid(unsafe_code)]

mod delivery;
mod loss;
pub mod ltp;
mod pace;
mod rate;

pub use delivery::{Delivery, Measured, Stamp};
pub use loss::Trips;
pub use pace::Pacer;
pub use rate::{Heard, Rate};

/// Time since some fixed moment, on a monotonic clock. The caller says what time it is.
pub type Time = std::time::Duration;
