//! The report of a node about an iteration (docs/reference/outcome.md).

use serde_json::{json, Value};
use thalweg_proto::{Exchange, ExchangeState, Mixing, Time};

use super::node::Node;
use super::options::WaitRule;
use crate::lock;

impl Node {
    pub(super) fn report(
        &self,
        mixing: &Mixing,
        exchanges: &[Exchange],
        (early, bad): (u64, u64),
        own_weight: f64,
        over: Time,
    ) -> Value {
        let traffic = self.traffic();
        let mixed = self.shared.now();
        let mut under = lock(&self.under);
        let before = std::mem::replace(&mut under.traffic, traffic);
        let names = |which: &dyn Fn(&Exchange) -> bool| -> Vec<&str> {
            exchanges.iter().filter(|e| which(e)).map(|e| e.peer.as_str()).collect()
        };
        let sum = |of: &dyn Fn(&Exchange) -> u64| exchanges.iter().map(of).sum::<u64>();
        let ready = under.ready.as_secs_f64();
        let of_neighbour = |e: &Exchange| {
            let state = match e.outcome {
                ExchangeState::Whole => "whole",
                ExchangeState::Part => "part",
                ExchangeState::Nothing => "nothing",
                ExchangeState::Away => "away",
            };
            json!({
                "peer": e.peer, "weight": e.weight, "bytes": e.bytes, "expected": e.expected, "chunks": e.chunks,
                "duplicates": e.duplicates, "corrupt": e.corrupt, "late_chunks": e.late,
                "first_seconds": e.span.map(|(first, _)| first.as_secs_f64() - ready),
                "last_seconds": e.span.map(|(_, last)| last.as_secs_f64() - ready),
                "newest": e.newest, "state": state,
            })
        };
        json!({
            "round": mixing.round,
            "next": mixing.round.saturating_add(1),
            "skipped": mixing.round - under.requested.min(mixing.round),
            "wait": match self.options.wait {
                WaitRule::All => "all",
                WaitRule::None => "none",
                WaitRule::FirstChunk => "first-chunk",
                WaitRule::Deadline => "deadline",
            },
            "timed_out": mixing.timed_out,
            "limit_seconds": mixing.limit.map(|limit| limit.as_secs_f64()),
            "heard": names(&|e| e.bytes > 0),
            "whole": names(&|e| e.outcome == ExchangeState::Whole),
            "connected": self.connected(),
            "bytes_used": sum(&|e| e.bytes),
            "bytes_expected": sum(&|e| e.expected),
            "chunks_used": sum(&|e| e.chunks),
            "chunks_expected": sum(&|e| e.chunks_expected),
            "own_weight": own_weight,
            "fresh": mixing.fresh,
            "begin_at": under.begun.as_secs_f64(),
            "ready_at": ready,
            "mixed_at": mixed.as_secs_f64(),
            "wait_seconds": over.saturating_sub(under.ready).as_secs_f64(),
            "mix_seconds": mixed.saturating_sub(over).as_secs_f64(),
            "bytes_sent": traffic.0.saturating_sub(before.0),
            "bytes_received": traffic.1.saturating_sub(before.1),
            "late_chunks": sum(&|e| e.late),
            "early_dropped": early,
            "bad_chunks": bad,
            "exchanges": exchanges.iter().map(of_neighbour).collect::<Vec<_>>(),
        })
    }
}
