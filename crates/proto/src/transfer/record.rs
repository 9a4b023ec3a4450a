//! The report of each transfer, for a run's record.

use serde::Serialize;
use thalweg_wire::Ranges;

use crate::Time;

/// An interval of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// When it began.
    pub start: Time,
    /// When it ended.
    pub end: Time,
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.start.as_secs_f64(), self.end.as_secs_f64()).serialize(serializer)
    }
}

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the server to a client.
    Down,
    /// From a client to the server.
    Up,
}

/// The report of one transfer. Times are on the server's clock. Times of the client are converted by the
/// offset that was measured when it joined, which is accurate to half a round trip.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TransferReport {
    /// The number of the round, or of the task.
    pub round: u32,
    /// The client's name.
    pub client: String,
    /// The direction.
    pub direction: Direction,
    /// Bytes of the parcel that arrived.
    pub bytes: u64,
    /// Bytes that did not arrive, for which stand-ins are used.
    pub missing: u64,
    /// The ranges of the missing bytes, for an update. Empty for a model, whose holes only the client knows.
    pub holes: Ranges,
    /// Bytes on the link in that direction during the transfer, with frame headers and repeated bytes.
    pub wire_bytes: u64,
    /// When its first and its last byte were sent.
    pub send: Option<Span>,
    /// When its first and its last byte arrived.
    pub receive: Option<Span>,
    /// Segments that the sender retransmitted until the receiver confirmed the transfer; `None` if unknown.
    /// Later retransmissions and counts belong to the sender's next transfer.
    pub retransmissions: Option<u64>,
    /// Chunks that arrived more than once.
    pub duplicates: u64,
    /// Chunks that arrived damaged.
    pub corrupt: u64,
    /// Bytes of payload copied in user space at the server.
    pub copied: u64,
    /// Sealed records of the parcel that the server gave up, because a hole touched them or they were not
    /// authentic. `None` if updates are not sealed, or the direction is down.
    pub records_lost: Option<u64>,
    /// How many times the connection broke and only the missing ranges were sent again.
    pub resumed: u32,
    /// Whether the whole parcel arrived.
    pub complete: bool,
}

/// A link's counters during a transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    /// Bytes on the link.
    pub wire: u64,
    /// Bytes of payload copied in user space.
    pub copied: u64,
    /// Sealed records that were given up; `None` if unknown.
    pub records_lost: Option<u64>,
}

impl TransferReport {
    pub(crate) fn new(round: u32, client: &str, direction: Direction) -> Self {
        Self {
            round,
            client: client.into(),
            direction,
            bytes: 0,
            missing: 0,
            holes: Ranges::new(),
            wire_bytes: 0,
            send: None,
            receive: None,
            retransmissions: None,
            duplicates: 0,
            corrupt: 0,
            copied: 0,
            records_lost: None,
            resumed: 0,
            complete: false,
        }
    }

    pub(crate) fn carry(&mut self, carried: Carried) {
        self.wire_bytes += carried.wire;
        self.copied += carried.copied;
        self.records_lost = both(self.records_lost, carried.records_lost);
    }

    pub(crate) fn retransmitted(&mut self, again: Option<u64>) {
        self.retransmissions = both(self.retransmissions, again);
    }

    /// From the first byte sent to the last byte received, as far as these are known.
    pub fn span(&self) -> Option<Span> {
        let known = [self.send, self.receive];
        let start = known.iter().flatten().map(|s| s.start).min()?;
        let end = known.iter().flatten().map(|s| s.end).max()?;
        Some(Span { start, end })
    }

    pub(crate) fn extend_send(&mut self, span: Span) {
        let old = self.send.unwrap_or(span);
        self.send = Some(Span { start: old.start.min(span.start), end: old.end.max(span.end) });
    }
}

/// The sum of two counts, each of which may be unknown. An unknown count adds 0; `None` if both are unknown.
pub(crate) fn both(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0))),
    }
}
