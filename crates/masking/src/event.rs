//! Events, statistics and counters for the application.

use thalweg_wire::Range;

use super::{Excess, Tuple};

/// Identifies a flow of an endpoint. An endpoint never uses an id again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    pub(super) place: u32,
    pub(super) age: u32,
}

/// An event of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'p> {
    /// The flow of the event.
    pub flow: FlowId,
    /// The event itself.
    pub what: What<'p>,
}

/// What happened to a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What<'p> {
    /// The handshake is finished.
    Connected(Agreed),
    /// Bytes of the stream have arrived for the first time, in any order.
    Bytes {
        /// Stream offset of the first byte.
        offset: u64,
        /// The bytes. They borrow from the packet that was just handed in, so copy them.
        bytes: &'p [u8],
        /// Whether the bytes fill a hole that was already reported. If the application can still use them, it
        /// calls [`super::Endpoint::filled`].
        late: bool,
    },
    /// The receiver has masked these bytes. The sender will probably not send them again.
    Hole(Range),
    /// The sender has closed its side, and this is the length of the stream. Each byte has arrived or is a
    /// hole.
    Finished(u64),
    /// The flow is over. This is its last event.
    Ended(Ended),
}

/// The features on which the handshake agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Both ends.
    pub tuple: Tuple,
    /// Maximum number of payload bytes in a segment to the peer.
    pub segment: u16,
    /// Timestamps (RFC 7323). Without them the sender cannot undo a reduction, and the receiver cannot
    /// recognise forged segments.
    pub timestamps: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Window scale (RFC 7323). Without it the window is at most 64 KiB.
    pub scale: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

/// Why a flow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Both sides have closed it.
    Closed,
    /// The peer has reset it.
    Reset,
    /// The application has reset it.
    Aborted,
    /// The peer sent nothing for too long, or did not acknowledge.
    Silent,
    /// More bytes were lost than a budget of the flow allows.
    Lossy(Excess),
}

/// An event in the queue. It has byte positions in the packet instead of the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Happening {
    Bytes { offset: u64, start: usize, end: usize, late: bool },
    Other(What<'static>),
}

/// Statistics of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Bytes that have arrived, each counted once.
    pub delivered: u64,
    /// Masked bytes that have not arrived.
    pub missing: u64,
    /// Bytes of held holes that have arrived.
    pub repaired: u64,
    /// Bytes that arrived late and filled masked holes.
    pub late: u64,
    /// Bytes that arrived more than once.
    pub duplicate: u64,
    /// One past the highest byte that has arrived.
    pub highest: u64,
    /// One past the last byte that may be acknowledged.
    pub acknowledged: u64,
    /// Window of the rate controller: bytes that it allows beyond the highest byte that has arrived.
    pub window: u64,
    /// Delivery rate in bytes a second; 0 if the rate controller does not know it.
    pub rate: f64,
    /// Whether the sender seems to be in slow start.
    pub ramping: bool,
    /// Right edge of the window, as advertised.
    pub right_edge: u64,
    /// Bytes that the application has sent and the client has not acknowledged.
    pub unacknowledged: u64,
    /// Minimum RTT.
    pub rtt: Option<crate::Time>,
    /// Number of open gaps, and of masked holes that are remembered.
    pub tables: (usize, usize),
}

/// Counts of packets that were dropped, by reason, and of table bounds that were reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed in.
    pub packets: u64,
    /// Packets that are not TCP over IP, are a fragment, or are cut short.
    pub senseless: u64,
    /// Packets with a wrong checksum.
    pub checksum: u64,
    /// Segments beyond a gap that do not echo a recent timestamp of ours.
    pub forged: u64,
    /// Segments from an earlier time (PAWS, RFC 7323 section 5).
    pub outdated: u64,
    /// Segments that belong to no connection, except a SYN to a port that we listen on.
    pub stray: u64,
    /// Unfinished handshakes that a new one replaced.
    pub evicted: u64,
    /// SYNs that got no answer because all flows were in use.
    pub crowded: u64,
    /// Segments dropped because they would have opened too many gaps.
    pub gaps: u64,
}
