//! A transport that tolerates loss, both ends ours: LTP as UniFL describes it (section 2.2), which compares with it.
//!
//! Each chunk of a [transfer](Part) is sent once; what was lost is sent again while time permits. Each packet has a
//! number of its own and is acknowledged by it, in any order. Critical chunks are sent until they arrive. The receiver
//! closes a transfer early, by fraction or deadline ([`Rule`]), and what is missing then stays missing. Loss does not
//! slow a sender down: its rate follows what is delivered, and the least round trip.
//!
//! Where asked to, a sender puts repair packets behind the [blocks](Block) of packets whose loss it would hear of when it
//! has nothing else to send any more. A receiver that has as many symbols of a block as it has packets rebuilds the
//! others, with the transport's code, and acknowledges them: that saves the round trips in which they would be sent again.
//!
//! [`Sender`] and [`Receiver`] have no IO and no clock. `handle_*` says what happened, `poll_*` what to do.
//!
//! ```text
//! chunks -> transfer  which is next: critical, first, again       UniFL, section 2.2
//!           repair    what may be rebuilt: repair packets, how many
//!           sending   when, how much, what is lost                BBR, RFC 9002
//!  Packet  <- sender -> Packet ... receiver -> Ack ... sender
//!           arrivals  which numbers have come                     RFC 9000, section 13.2.3
//!           mend      what is kept, and what can be rebuilt of it
//! ```

mod arrivals;
mod mend;
mod receiver;
mod repair;
mod sender;
mod transfer;

pub use mend::Rebuild;
pub use receiver::{Ack, Closed, Receiver, Rule};
pub use repair::{Block, MAX_BLOCK};
pub use sender::{Ended, Packet, Sender, What};
pub use transfer::{Part, Piece, MAX_PIECES};

/// Ranges of packet numbers in one acknowledgement.
pub const MAX_RANGES: usize = 16;
