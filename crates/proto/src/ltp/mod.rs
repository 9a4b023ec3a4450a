//! A transport that tolerates loss, both ends ours: LTP as UniFL describes it (section 2.2), which compares with it.
//!
//! Each chunk of a [transfer](Part) is sent once; what was lost is sent again while time permits. Each packet has a
//! number of its own and is acknowledged by it, in any order. Critical chunks are sent until they arrive. The receiver
//! closes a transfer early, by fraction or deadline ([`Rule`]), and what is missing then stays missing. Loss does not
//! slow a sender down: its rate follows what is delivered, and the least round trip.
//!
//! [`Sender`] and [`Receiver`] have no IO and no clock. `handle_*` says what happened, `poll_*` what to do.
//!
//! ```text
//! chunks -> transfer  which is next: critical, first, again       UniFL, section 2.2
//!           pace      when                                        a token bucket
//!           rate      how much                                    BBR, draft-cardwell-iccrg-bbr-congestion-control
//!  Packet  <- sender -> Packet ... receiver -> Ack ... sender
//!           loss      what is lost, and the round trip            RFC 9002, sections 5 and 6
//!           delivery  the rate at which packets arrive            draft-cheng-iccrg-delivery-rate-estimation
//!           arrivals  which numbers have come                     RFC 9000, section 13.2.3
//! ```

mod arrivals;
mod delivery;
mod loss;
mod pace;
mod rate;
mod receiver;
mod sender;
mod transfer;

pub use receiver::{Ack, Closed, Receiver, Rule};
pub use sender::{Ended, Packet, Sender, What};
pub use transfer::{Part, Piece, MAX_PIECES};

/// Ranges of packet numbers in one acknowledgement.
pub const MAX_RANGES: usize = 16;
