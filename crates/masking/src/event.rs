//! What the application sees.

use thalweg_wire::Range;

use super::{Excess, Tuple};

/// A flow of an endpoint; never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    pub(super) place: u32,
    pub(super) age: u32,
}

/// Something that happened to a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'p> {
    /// Which flow.
    pub flow: FlowId,
    /// What.
    pub what: What<'p>,
}

/// What happened to a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What<'p> {
    /// The handshake is finished.
    Connected(Agreed),
    /// Bytes of the stream have come, for the first time, in any order.
    Bytes {
        /// Offset in the stream of the first.
        offset: u64,
        /// In the packet just handed in; to be copied into place once.
        bytes: &'p [u8],
        /// Whether they fill a hole that was reported. If they are of use still, [`super::Endpoint::filled`] is to hear.
        late: bool,
    },
    /// These bytes are masked: the sender will hardly send them again.
    Hole(Range),
    /// The sender has ended its stream, which is so long; all of it has come or is a hole.
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
    /// Timestamps (RFC 7323). Without them a sender's reduction is not undone, and forged segments are not told.
    pub timestamps: bool,
    /// Selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Window scale (RFC 7323); without it a window is at most 64 KiB.
    pub scale: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

/// Why a flow is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Both sides have ended it.
    Closed,
    /// The peer has reset it.
    Reset,
    /// The application has reset it.
    Aborted,
    /// The peer was silent for too long.
    Silent,
    /// More was lost than it may lose.
    Lossy(Excess),
}

/// The same without the packet: where in it the bytes are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Happening {
    Bytes { offset: u64, start: usize, end: usize, late: bool },
    Other(What<'static>),
}

/// Numbers of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Bytes that have come, each counted once.
    pub delivered: u64,
    /// Bytes masked and not come.
    pub missing: u64,
    /// Bytes of held holes that came.
    pub repaired: u64,
    /// Bytes that filled reported holes.
    pub late: u64,
    /// Bytes that came more than once.
    pub duplicate: u64,
    /// One past the highest byte that has come.
    pub highest: u64,
    /// One past the last byte acknowledged.
    pub acknowledged: u64,
    /// Bytes the controller lets be under way.
    pub window: u64,
    /// Right edge of the window as advertised.
    pub edge: u64,
    /// Bytes on the way back that are not acknowledged.
    pub unacknowledged: u64,
    /// The shortest round trip.
    pub rtt: Option<crate::Time>,
    /// Gaps that are open, and masked holes that are remembered.
    pub tables: (usize, usize),
}

/// Packets that changed nothing, by reason, and bounds that were met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed in.
    pub packets: u64,
    /// No TCP over IP, fragments, cut short.
    pub senseless: u64,
    /// A checksum was wrong.
    pub checksum: u64,
    /// Beyond a gap, with an echo that we never sent.
    pub forged: u64,
    /// From an earlier time (PAWS).
    pub outdated: u64,
    /// Of no connection and no SYN to a port that is listened on.
    pub stray: u64,
    /// Unfinished handshakes that made place for others.
    pub evicted: u64,
    /// SYNs without an answer, since all flows were taken.
    pub crowded: u64,
    /// Segments that would have opened too many gaps.
    pub gaps: u64,
}
