//! What a round leaves behind.

use serde::Serialize;

use crate::{Span, Time, Transfer};

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

impl State {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::Late as usize + 1;
}

/// One client's part in a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Participation {
    /// Its name.
    pub client: String,
    /// How it ended.
    pub state: State,
    /// Weight of its update; 0 if it never offered one.
    pub samples: f64,
    /// JSON object of its metrics.
    pub metrics: String,
    /// Fraction of its update that entered the mean, 0 to 1.
    pub coverage: f64,
    /// Why it is not whole.
    pub reason: Option<String>,
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
