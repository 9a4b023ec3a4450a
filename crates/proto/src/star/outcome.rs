//! The results of a round: the state of each participant, and its transfers.

use serde::Serialize;

use crate::{Span, Time, TransferReport};

/// The state of a client in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The server is sending the global model to the client.
    Receiving,
    /// The client has the global model, and trains.
    Training,
    /// The client's update is ready and waits for a grant.
    Offered,
    /// The client is sending its update.
    Sending,
    /// The update is received, and waits to be selected or folded.
    Staged,
    /// The whole update is in the mean.
    Whole,
    /// Part of the update is in the mean.
    Partial,
    /// The server refused the update.
    Rejected,
    /// The client's link broke, or the server ended it because there was no progress.
    Lost,
    /// The round ended before the update was received.
    Late,
}

impl State {
    /// Number of states.
    pub(crate) const COUNT: usize = Self::Late as usize + 1;
}

/// One client's contribution to a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Participation {
    /// The client's name.
    pub client: String,
    /// The client's state at the end of the round.
    pub state: State,
    /// The update's weight, a number of samples, or less if it was late; 0 if none was offered.
    pub samples: f64,
    /// The client's metrics, a JSON object.
    pub metrics: String,
    /// Fraction of the update that is in the mean, 0 to 1.
    pub coverage: f64,
    /// Why the update is not whole; for a late update, that it counts less.
    pub reason: Option<String>,
    /// How many rounds the update was late.
    pub staleness: u32,
}

/// The results of a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The round's number.
    pub round: u32,
    /// How many clients the round wanted.
    pub expected: u32,
    /// Whether all of these clients' updates are whole.
    pub complete: bool,
    /// Why the round has no mean; `None` if it has one.
    pub failure: Option<String>,
    /// When the round began and ended.
    pub span: Span,
    /// Seconds in which at least one transfer was under way (FedComm, section IV: communication time).
    pub communication_seconds: f64,
    /// Bytes on all links from the server to clients.
    pub bytes_down: u64,
    /// Bytes on all links from clients to the server.
    pub bytes_up: u64,
    /// One entry for each client that took part.
    pub participants: Vec<Participation>,
    /// The transfers of models and updates.
    pub transfers: Vec<TransferReport>,
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
