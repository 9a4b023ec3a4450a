//! Events, statistics and counters for the application.

use thalweg_wire::Range;

use super::{Excess, Tuple};

/// Names a flow of an endpoint. An id is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    pub(super) place: u32,
    pub(super) age: u32,
}

/// An event of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'p> {
    /// Which flow.
    pub flow: FlowId,
    /// The event.
    pub what: What<'p>,
}

/// What happened to a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What<'p> {
    /// The handshake is finished.
    Connected(Agreed),
    /// Bytes of the stream have come for the first time, in any order.
    Bytes {
        /// Stream offset of the first byte.
        offset: u64,
        /// The bytes, in the packet just handed in. Copy them to their place.
        bytes: &'p [u8],
        /// Whether they fill a hole that was reported before. If the application can still use them, call
        /// [`super::Endpoint::filled`].
        late: bool,
    },
    /// These bytes are masked. The sender will hardly send them again.
    Hole(Range),
    /// The sender has closed its side; the stream has this length. All of it has come or is a hole.
    Finished(u64),
    /// The flow is over; the last event of each flow.
    Ended(Ended),
}

/// What a handshake agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Both ends.
    pub tuple: Tuple,
    /// Payload bytes of the largest segment to the peer.
    pub segment: u16,
    /// Timestamps (RFC 7323). Without them a sender cannot undo a reduction, and forged segments cannot be
    /// recognised.
    pub timestamps: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Window scale (RFC 7323); without it a window is at most 64 KiB.
    pub scale: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

/// Why a flow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Both sides have closed it.
    Closed,
    /// The peer reset it.
    Reset,
    /// The application reset it.
    Aborted,
    /// The peer was silent for too long.
    Silent,
    /// More was lost than the flow may lose.
    Lossy(Excess),
}

/// An event as it is queued: byte positions in the packet instead of the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Happening {
    Bytes { offset: u64, start: usize, end: usize, late: bool },
    Other(What<'static>),
}

/// Statistics of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Bytes that have come, each counted once.
    pub delivered: u64,
    /// Bytes that are masked and have not come.
    pub missing: u64,
    /// Bytes of held holes that came by retransmission.
    pub repaired: u64,
    /// Bytes that came late and filled masked holes.
    pub late: u64,
    /// Bytes that came more than once.
    pub duplicate: u64,
    /// One past the highest byte that has come.
    pub highest: u64,
    /// One past the last byte acknowledged.
    pub acknowledged: u64,
    /// Bytes that the rate controller allows in flight.
    pub window: u64,
    /// Delivery rate in bytes a second, as the rate controller knows it; 0 if it does not.
    pub rate: f64,
    /// Whether the sender seems to be in slow start.
    pub ramping: bool,
    /// Right edge of the window, as advertised.
    pub right_edge: u64,
    /// Bytes to the client that are not acknowledged.
    pub unacknowledged: u64,
    /// The shortest round trip.
    pub rtt: Option<crate::Time>,
    /// Open gaps, and masked holes that are remembered.
    pub tables: (usize, usize),
}

/// Packets without effect, by reason, and table bounds that were reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed in.
    pub packets: u64,
    /// Not TCP over IP, a fragment, or cut short.
    pub senseless: u64,
    /// Wrong checksum.
    pub checksum: u64,
    /// Segments beyond a gap that echo a timestamp which we never sent.
    pub forged: u64,
    /// Segments from an earlier time (PAWS, RFC 7323 section 5).
    pub outdated: u64,
    /// Segments of no connection that are no SYN to a port that we listen on.
    pub stray: u64,
    /// Unfinished handshakes that were evicted.
    pub evicted: u64,
    /// SYNs without an answer because all flows were in use.
    pub crowded: u64,
    /// Segments dropped because they would have opened too many gaps.
    pub gaps: u64,
}
