//! A transport that tolerates loss, with both ends ours: LTP, with which UniFL compares itself, as UniFL
//! describes it (section 2.2).
//!
//! Each chunk of a [transfer](Part) is sent once; lost chunks are retransmitted while time permits. Each
//! packet has its own number and is acknowledged by it, in any order. Critical chunks are retransmitted until
//! they arrive. The receiver closes a transfer early, by fraction or deadline ([`Rule`]); what is missing
//! then stays missing. Loss does not slow a sender down: its rate follows the delivery rate and the minimum
//! RTT.
//!
//! With forward error correction, a sender adds repair packets to [blocks](Block) of packets whose loss it
//! would learn of only after it has nothing else to send. A receiver that has as many symbols of a block as
//! the block has packets rebuilds the missing packets, with the code of the transport, and acknowledges them.
//! That saves the round trips of retransmissions.
//!
//! [`Sender`] and [`Receiver`] have no IO and no clock. `handle_*` takes what happened, `poll_*` returns what
//! to do.
//!
//! ```text
//! chunks -> transfer  which is next: critical, new, lost          UniFL, section 2.2
//!           repair    blocks and their repair packets (FEC)
//!           sending   rate, window, loss detection                BBR, RFC 9002
//!  Packet  <- sender -> Packet ... receiver -> Ack ... sender
//!           arrivals  which packet numbers have come              RFC 9000, section 13.2.3
//!           mend      symbols that are kept, blocks to rebuild
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

/// Most ranges of packet numbers in an acknowledgement.
pub const MAX_RANGES: usize = 128;
