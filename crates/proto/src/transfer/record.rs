//! What is recorded of a parcel's way.

use serde::Serialize;
use thalweg_wire::Ranges;

use crate::Time;

/// From when to when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// Begin.
    pub start: Time,
    /// End.
    pub end: Time,
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.start.as_secs_f64(), self.end.as_secs_f64()).serialize(serializer)
    }
}

/// Which way an update went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the server to a client.
    Down,
    /// From a client to the server.
    Up,
}

/// One update's way. Times are on the server's clock; the other party's are converted by the offset measured
/// when it joined, which is right to half a round trip.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Transfer {
    /// The round.
    pub round: u32,
    /// The client at one end.
    pub client: String,
    /// Which way.
    pub direction: Direction,
    /// Bytes of the update that arrived.
    pub bytes: u64,
    /// Bytes of it that did not come, for which something stands in.
    pub missing: u64,
    /// Which bytes those are, of an update; of a model only the client knows.
    pub holes: Ranges,
    /// Bytes on the link meanwhile in that direction, frames' headers and repeats included.
    pub wire_bytes: u64,
    /// When it was sent.
    pub send: Option<Span>,
    /// When it was received.
    pub receive: Option<Span>,
    /// Segments that the sender retransmitted until the receiver confirmed the transfer. Retransmissions and counts that come
    /// later are in the sender's next transfer.
    pub retransmissions: Option<u64>,
    /// Chunks that came more than once.
    pub duplicates: u64,
    /// Chunks that came damaged.
    pub corrupt: u64,
    /// Bytes of payload copied in user space at the server.
    pub copied: u64,
    /// Sealed records of it that the server gave up: a hole touched them, or they were not authentic. Of updates that
    /// are sealed.
    pub records_lost: Option<u64>,
    /// Times the connection broke and only what was missing was sent again.
    pub resumed: u32,
    /// Whether all of it arrived.
    pub complete: bool,
}

/// What a link has carried of a transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    pub wire: u64,
    pub copied: u64,
    pub records_lost: Option<u64>,
}

impl Transfer {
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

    /// From the first byte sent to the last received, as far as known.
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

/// The sum of two counts, either of which may be unknown.
pub(crate) fn both(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0))),
    }
}
