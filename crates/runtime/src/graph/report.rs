//! The report of a node about an iteration (docs/reference/outcome.md), as the JSON that Python gets.
//!
//! `python/thalweg/outcome/core.py` has a class of the same name and fields for each struct.
//! `tests/border/iteration.json` is an example that both languages check.

use serde::Serialize;
use thalweg_proto::{Exchange, ExchangeState, Mixing, Time};

use super::node::Node;
use super::options::WaitRule;
use crate::lock;

/// The report of an iteration. Times are seconds of the node's clock.
#[derive(Serialize)]
pub(super) struct IterationReport<'a> {
    round: u32,
    next: u32,
    skipped: u32,
    wait: WaitRule,
    timed_out: bool,
    by_segments: bool,
    limit_seconds: Option<f64>,
    heard: Vec<&'a str>,
    whole: Vec<&'a str>,
    connected: Vec<String>,
    bytes_used: u64,
    bytes_expected: u64,
    chunks_used: u64,
    chunks_expected: u64,
    own_weight: f64,
    fresh: bool,
    begin_at: f64,
    ready_at: f64,
    mixed_at: f64,
    wait_seconds: f64,
    mix_seconds: f64,
    bytes_sent: u64,
    bytes_received: u64,
    late_chunks: u64,
    early_dropped: u64,
    bad_chunks: u64,
    exchanges: Vec<NeighbourExchange<'a>>,
}

/// What the node received of a neighbour's model.
#[derive(Serialize)]
struct NeighbourExchange<'a> {
    peer: &'a str,
    weight: f64,
    state: ExchangeState,
    bytes: u64,
    expected: u64,
    chunks: u64,
    duplicates: u64,
    corrupt: u64,
    late_chunks: u64,
    first_seconds: Option<f64>,
    last_seconds: Option<f64>,
    newest: u32,
}

impl<'a> NeighbourExchange<'a> {
    /// `ready` is when the node began to send, from which times count.
    fn new(exchange: &'a Exchange, ready: f64) -> Self {
        Self {
            peer: &exchange.peer,
            weight: exchange.weight,
            state: exchange.outcome,
            bytes: exchange.bytes,
            expected: exchange.expected,
            chunks: exchange.chunks,
            duplicates: exchange.duplicates,
            corrupt: exchange.corrupt,
            late_chunks: exchange.late,
            first_seconds: exchange.span.map(|(first, _)| first.as_secs_f64() - ready),
            last_seconds: exchange.span.map(|(_, last)| last.as_secs_f64() - ready),
            newest: exchange.newest,
        }
    }
}

impl Node {
    pub(super) fn report<'a>(
        &self,
        mixing: &Mixing,
        exchanges: &'a [Exchange],
        (early, bad): (u64, u64),
        own_weight: f64,
        over: Time,
    ) -> IterationReport<'a> {
        let traffic = self.traffic();
        let mixed = self.shared.now();
        let mut under = lock(&self.under);
        let before = std::mem::replace(&mut under.traffic, traffic);
        let names = |which: &dyn Fn(&Exchange) -> bool| -> Vec<&'a str> {
            exchanges.iter().filter(|e| which(e)).map(|e| e.peer.as_str()).collect()
        };
        let sum = |of: &dyn Fn(&Exchange) -> u64| exchanges.iter().map(of).sum::<u64>();
        let ready = under.ready.as_secs_f64();
        IterationReport {
            round: mixing.round,
            next: mixing.round.saturating_add(1),
            skipped: mixing.round - under.requested.min(mixing.round),
            wait: self.options.wait,
            timed_out: mixing.timed_out,
            by_segments: mixing.by_segments,
            limit_seconds: mixing.limit.map(|limit| limit.as_secs_f64()),
            heard: names(&|e| e.bytes > 0),
            whole: names(&|e| e.outcome == ExchangeState::Whole),
            connected: self.connected(),
            bytes_used: sum(&|e| e.bytes),
            bytes_expected: sum(&|e| e.expected),
            chunks_used: sum(&|e| e.chunks),
            chunks_expected: sum(&|e| e.chunks_expected),
            own_weight,
            fresh: mixing.fresh,
            begin_at: under.begun.as_secs_f64(),
            ready_at: ready,
            mixed_at: mixed.as_secs_f64(),
            wait_seconds: over.saturating_sub(under.ready).as_secs_f64(),
            mix_seconds: mixed.saturating_sub(over).as_secs_f64(),
            bytes_sent: traffic.0.saturating_sub(before.0),
            bytes_received: traffic.1.saturating_sub(before.1),
            late_chunks: sum(&|e| e.late),
            early_dropped: early,
            bad_chunks: bad,
            exchanges: exchanges.iter().map(|one| NeighbourExchange::new(one, ready)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::border;

    fn exchange(span: Option<(Time, Time)>) -> Exchange {
        Exchange {
            peer: "node-2".into(),
            weight: 0.5,
            bytes: 8,
            expected: 16,
            chunks_expected: 2,
            chunks: 1,
            duplicates: 3,
            corrupt: 4,
            late: 5,
            span,
            newest: 7,
            outcome: ExchangeState::Part,
        }
    }

    fn report(exchange: &Exchange, limit_seconds: Option<f64>) -> IterationReport<'_> {
        IterationReport {
            round: 6,
            next: 7,
            skipped: 1,
            wait: WaitRule::FirstChunk,
            timed_out: true,
            by_segments: true,
            limit_seconds,
            heard: vec![&exchange.peer],
            whole: vec![&exchange.peer],
            connected: vec![exchange.peer.clone()],
            bytes_used: 8,
            bytes_expected: 16,
            chunks_used: 1,
            chunks_expected: 2,
            own_weight: 0.5,
            fresh: false,
            begin_at: 1.5,
            ready_at: 2.5,
            mixed_at: 3.5,
            wait_seconds: 0.5,
            mix_seconds: 0.5,
            bytes_sent: 100,
            bytes_received: 50,
            late_chunks: 5,
            early_dropped: 9,
            bad_chunks: 10,
            exchanges: vec![NeighbourExchange::new(exchange, 2.5)],
        }
    }

    #[test]
    fn the_example_has_each_field() {
        let known = exchange(Some((Time::from_millis(2250), Time::from_millis(3000))));
        let none = exchange(None);
        let (filled, unknown) = (report(&known, Some(1.5)), report(&none, None));
        border::check("iteration", &json!({ "filled": filled, "unknown": unknown }));
    }
}
