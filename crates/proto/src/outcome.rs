//! What a round leaves behind.

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

/// How a client's part in a round stands, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The global model is on its way to it.
    Receiving,
    /// It has the global model.
    Training,
    /// Its update is ready and waits for a place.
    Offered,
    /// Its update is on its way.
    Sending,
    /// Its update is in and waits to be folded.
    Staged,
    /// Its update counts, whole.
    Whole,
    /// Part of its update counts.
    Partial,
    /// Its update was refused.
    Rejected,
    /// Its link broke, or it made no progress.
    Lost,
    /// The round ended first.
    Late,
}

/// One client's part in a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Participation {
    /// Its name.
    pub client: String,
    /// How it ended.
    pub state: State,
    /// Weight of its update; 0 if it never offered one.
    pub samples: u64,
    /// JSON object of its metrics.
    pub metrics: String,
    /// Fraction of its update that entered the mean, 0 to 1.
    pub coverage: f64,
    /// Why it is not whole.
    pub reason: Option<String>,
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
    /// Segments retransmitted by the sender.
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
        self.records_lost = match (self.records_lost, carried.records_lost) {
            (None, None) => None,
            (before, more) => Some(before.unwrap_or(0) + more.unwrap_or(0)),
        };
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

/// How a round ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The round.
    pub round: u32,
    /// Clients expected.
    pub expected: u32,
    /// Whether all of them are whole.
    pub complete: bool,
    /// Why the round yields no mean, if it does not.
    pub failure: Option<String>,
    /// When it began and ended.
    pub span: Span,
    /// Seconds in which at least one update was under way (FedComm section IV: communication time).
    pub communication_seconds: f64,
    /// Bytes on all links towards clients, and from them.
    pub bytes_down: u64,
    /// Bytes on all links from clients.
    pub bytes_up: u64,
    /// Everybody's part.
    pub participants: Vec<Participation>,
    /// Every update's way.
    pub transfers: Vec<Transfer>,
}

/// Seconds covered by at least one of the spans.
pub(crate) fn union_seconds(spans: impl IntoIterator<Item = Span>) -> f64 {
    let mut spans: Vec<Span> = spans.into_iter().filter(|s| s.end > s.start).collect();
    spans.sort_by_key(|s| s.start);
    let mut covered = Time::ZERO;
    let mut reached = Time::ZERO;
    for span in spans {
        covered += span.end.saturating_sub(span.start.max(reached));
        reached = reached.max(span.end);
    }
    covered.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn union_counts_overlaps_once() {
        let span = |a, b| Span { start: Time::from_secs(a), end: Time::from_secs(b) };
        assert_eq!(union_seconds([span(5, 7), span(0, 2), span(1, 3), span(6, 6), span(1, 2)]), 5.0);
        assert_eq!(union_seconds([]), 0.0);
    }
}
