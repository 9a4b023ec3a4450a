//! What a sender goes by that repairs loss but does not slow down for it: `ltp`'s, and `unifl`'s on its way back.
//!
//! ```text
//! pace      when                                   a token bucket
//! rate      how much may be under way              BBR, draft-cardwell-iccrg-bbr-congestion-control
//! loss      what is lost, and the round trip       RFC 9002, sections 5 and 6
//! delivery  the rate at which packets arrive       draft-cheng-iccrg-delivery-rate-estimation
//! ```

mod delivery;
mod loss;
mod pace;
mod rate;

pub(crate) use delivery::{Delivery, Stamp};
pub(crate) use loss::Trips;
pub(crate) use pace::Pacer;
pub(crate) use rate::{Heard, Rate};
