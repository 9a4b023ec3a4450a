//! LTP, a loss-tolerant transport with which UniFL compares itself. Both ends are ours. It follows the
//! description in the UniFL paper (section 2.2).
//!
//! The sender sends each [chunk](ChunkId) of a transfer once, and retransmits lost chunks while time permits.
//! Each packet has its own number, and the receiver acknowledges packets by number, in any order. The sender
//! retransmits critical chunks until they arrive. The receiver closes a transfer early, by fraction or
//! deadline ([`Rule`]). Chunks that are missing then stay missing. Loss does not slow a sender down: its rate
//! follows the delivery rate and the minimum RTT.
//!
//! With forward error correction (FEC), the sender adds repair packets to some [blocks](Block) of packets.
//! These are blocks whose losses it would detect only after it has nothing else to send. If a receiver has as
//! many symbols of a block as the block has packets, it rebuilds the missing packets. The transport does the
//! coding. The receiver acknowledges rebuilt packets. That saves the round trips of retransmissions.
//!
//! [`Sender`] and [`Receiver`] have no IO and no clock. `handle_*` methods process an event, and `poll_*`
//! methods return what the caller has to do.
//!
//! ```text
//! chunks -> transfer  which is next: critical, new, lost          UniFL, section 2.2
//!           repair    blocks and their repair packets (FEC)
//!           sending   rate, window, loss detection                BBR, RFC 9002
//!  Packet  <- sender -> Packet ... receiver -> Ack ... sender
//!           arrivals  which packet numbers have arrived           RFC 9000, section 13.2.3
//!           rebuilder symbols that are kept, blocks to rebuild
//! ```

mod arrivals;
mod rebuilder;
mod receiver;
mod repair;
mod sender;
mod transfer;

pub use rebuilder::Rebuild;
pub use receiver::{Ack, Closed, Receiver, Rule};
pub use repair::{Block, MAX_BLOCK};
pub use sender::{Ended, Packet, Sender, What};
pub use transfer::{ChunkId, Piece, MAX_PIECES};

/// Maximum number of ranges of packet numbers in an ACK.
pub const MAX_RANGES: usize = 128;
