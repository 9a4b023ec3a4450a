//! A round's outcome as the JSON that Python gets. Times are seconds on the server's clock.
//!
//! `python/thalweg/outcome/core.py` has a class of the same name and fields for each struct. `tests/border/outcome.json`
//! is an example that both languages check.

use serde::Serialize;
use serde_json::{json, Value};
use thalweg_proto as proto;
use thalweg_proto::{Direction, Participation, Span, State, Time, TransferReport};
use thalweg_wire::control::StandIn;
use thalweg_wire::Layout;

use super::reduce::Worked;

/// A round's outcome.
#[derive(Serialize)]
pub(crate) struct Outcome<'a> {
    round: u32,
    expected: u32,
    complete: bool,
    start: f64,
    seconds: f64,
    communication_seconds: f64,
    bytes_down: u64,
    bytes_up: u64,
    participants: Vec<Participant<'a>>,
    transfers: Vec<Transfer<'a>>,
    congestion_control: Option<String>,
    fold: Fold,
}

/// The outcome of a round that ends with sums. `failure` is the reason if there are none.
#[derive(Serialize)]
pub(crate) struct SumsOutcome<'a> {
    #[serde(flatten)]
    pub outcome: Outcome<'a>,
    pub failure: Option<String>,
}

/// A client in a round. `metrics` is any JSON that the client sent.
#[derive(Serialize)]
struct Participant<'a> {
    client: &'a str,
    state: State,
    samples: Value,
    metrics: Value,
    coverage: f64,
    reason: Option<&'a str>,
}

/// One transfer of a model, an update, a task or a result.
#[derive(Serialize)]
pub(crate) struct Transfer<'a> {
    round: u32,
    client: &'a str,
    direction: Direction,
    bytes: u64,
    missing: u64,
    losses: Vec<Loss<'a>>,
    repair: Option<StandIn>,
    wire_bytes: u64,
    send_start: Option<f64>,
    send_end: Option<f64>,
    receive_start: Option<f64>,
    receive_end: Option<f64>,
    retransmissions: Option<u64>,
    duplicates: u64,
    corrupt: u64,
    copied: u64,
    records_lost: Option<u64>,
    resumed: u32,
    complete: bool,
}

/// How many bytes of a tensor did not arrive, and which share of it that is.
#[derive(Serialize)]
struct Loss<'a> {
    tensor: &'a str,
    missing: u64,
    share: f64,
}

/// How the updates of a round were added up. Sums leave `uncovered_bytes` open.
#[derive(Serialize)]
pub(crate) struct Fold {
    pub uncovered_bytes: Option<u64>,
    pub completion_seconds: Option<f64>,
    pub finish_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// The work of workers in a round, and how many pieces of it were left out.
#[derive(Serialize)]
pub(crate) struct Timeline {
    did: Vec<WorkSpan>,
    left_out: u64,
}

/// One piece of a worker's work.
#[derive(Serialize)]
struct WorkSpan {
    worker: usize,
    what: &'static str,
    start: f64,
    end: f64,
    updates: u64,
}

impl<'a> Outcome<'a> {
    /// The outcome. `seconds` is the time of the whole round, and `congestion` the server's congestion
    /// control. `stand_in` says what replaced missing values, and `layout` tells of which tensors.
    pub fn new(
        outcome: &'a proto::Outcome,
        seconds: f64,
        fold: Fold,
        congestion: Option<String>,
        stand_in: StandIn,
        layout: &'a Layout,
    ) -> Self {
        Self {
            round: outcome.round,
            expected: outcome.expected,
            complete: outcome.complete,
            start: outcome.span.start.as_secs_f64(),
            seconds,
            communication_seconds: outcome.communication_seconds,
            bytes_down: outcome.bytes_down,
            bytes_up: outcome.bytes_up,
            participants: outcome.participants.iter().map(Participant::new).collect(),
            transfers: outcome.transfers.iter().map(|one| Transfer::new(one, stand_in, layout)).collect(),
            congestion_control: congestion,
            fold,
        }
    }
}

impl Timeline {
    /// The work of the workers, and as its last entry the work of the node itself (worker 0) since `since`.
    pub fn new(worked: &Worked, now: Time, (what, since): (&'static str, Time)) -> Self {
        let now = now.as_secs_f64();
        let did = worked.did.iter().map(|one| WorkSpan {
            worker: one.worker,
            what: one.what,
            start: now - one.start,
            end: now - one.end,
            updates: one.updates,
        });
        let own = WorkSpan { worker: 0, what, start: since.as_secs_f64(), end: now, updates: 0 };
        Self { did: did.chain([own]).collect(), left_out: worked.left_out }
    }
}

impl<'a> Participant<'a> {
    fn new(part: &'a Participation) -> Self {
        // Only the length of metrics is limited (`thalweg_wire::text::MAX_METRICS`); nothing else about them
        // is checked.
        let metrics =
            serde_json::from_str(&part.metrics).unwrap_or_else(|_| Value::String(part.metrics.clone()));
        Self {
            client: &part.client,
            state: part.state,
            samples: number(part.samples),
            metrics,
            coverage: part.coverage,
            reason: part.reason.as_deref(),
        }
    }
}

impl<'a> Transfer<'a> {
    /// A transfer of a parcel with this layout. `stand_in` says what replaced its missing values.
    pub fn new(transfer: &'a TransferReport, stand_in: StandIn, layout: &'a Layout) -> Self {
        let start = |span: Option<Span>| span.map(|s| s.start.as_secs_f64());
        let end = |span: Option<Span>| span.map(|s| s.end.as_secs_f64());
        let losses = layout.losses(&transfer.holes).into_iter().map(|(tensor, missing)| {
            let share = missing as f64 / tensor.range().len() as f64;
            Loss { tensor: &tensor.name, missing, share }
        });
        Self {
            round: transfer.round,
            client: &transfer.client,
            direction: transfer.direction,
            bytes: transfer.bytes,
            missing: transfer.missing,
            losses: losses.collect(),
            repair: (transfer.missing > 0).then_some(stand_in),
            wire_bytes: transfer.wire_bytes,
            send_start: start(transfer.send),
            send_end: end(transfer.send),
            receive_start: start(transfer.receive),
            receive_end: end(transfer.receive),
            retransmissions: transfer.retransmissions,
            duplicates: transfer.duplicates,
            corrupt: transfer.corrupt,
            copied: transfer.copied,
            records_lost: transfer.records_lost,
            resumed: transfer.resumed,
            complete: transfer.complete,
        }
    }
}

/// The JSON of a report. These structs have no map or key that JSON cannot hold, so this does not fail.
pub(crate) fn written(report: &impl Serialize) -> String {
    serde_json::to_string(report).unwrap_or_default()
}

/// A weight. A whole number, as for samples, has no fraction in the JSON.
fn number(weight: f64) -> Value {
    if weight.fract() == 0.0 && weight.abs() < 9e15 {
        json!(weight as i64)
    } else {
        json!(weight)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use thalweg_wire::{Dtype, Range, Ranges};

    use super::super::reduce::Did;
    use super::*;
    use crate::border;

    fn span() -> Option<Span> {
        Some(Span { start: Time::from_millis(1500), end: Time::from_millis(2500) })
    }

    fn transfer(direction: Direction) -> TransferReport {
        TransferReport {
            round: 1,
            client: "client-1".into(),
            direction,
            bytes: 16,
            missing: 0,
            holes: Ranges::new(),
            wire_bytes: 100,
            send: None,
            receive: None,
            retransmissions: None,
            duplicates: 0,
            corrupt: 0,
            copied: 0,
            records_lost: None,
            resumed: 0,
            complete: true,
        }
    }

    fn outcome(participants: Vec<Participation>, transfers: Vec<TransferReport>) -> proto::Outcome {
        proto::Outcome {
            round: 1,
            expected: 1,
            complete: false,
            failure: None,
            span: Span { start: Time::from_millis(500), end: Time::from_millis(4500) },
            communication_seconds: 2.5,
            bytes_down: 100,
            bytes_up: 100,
            participants,
            transfers,
        }
    }

    #[test]
    fn the_example_has_each_field() {
        let layout = Layout::pack([("weight", Dtype::F32, vec![4])]).unwrap();
        let part = Participation {
            client: "client-1".into(),
            state: State::Partial,
            samples: 10.0,
            metrics: r#"{"metrics":{"loss":0.5}}"#.into(),
            coverage: 0.5,
            reason: Some("half of it did not come".into()),
            staleness: 0,
        };
        let way = TransferReport {
            missing: 8,
            holes: Ranges::from(vec![Range::new(0, 8)]),
            send: span(),
            receive: span(),
            retransmissions: Some(2),
            records_lost: Some(1),
            ..transfer(Direction::Up)
        };
        let worked = Worked {
            did: vec![Did { worker: 1, what: "fold", start: 1.0, end: 0.5, updates: 3 }],
            left_out: 2,
        };
        let timeline = Timeline::new(&worked, Time::from_millis(4500), ("mean", Time::from_millis(4250)));
        let fold = Fold {
            uncovered_bytes: Some(8),
            completion_seconds: Some(1.5),
            finish_seconds: 0.5,
            timeline: Some(timeline),
        };
        let filled = outcome(vec![part.clone()], vec![way]);
        let filled = Outcome::new(&filled, 4.0, fold, Some("cubic".into()), StandIn::Zero, &layout);
        let filled = SumsOutcome { outcome: filled, failure: Some("no client was there".into()) };

        let unknown = Participation { samples: 0.5, reason: None, ..part };
        let unknown = outcome(vec![unknown], vec![transfer(Direction::Down)]);
        let fold =
            Fold { uncovered_bytes: None, completion_seconds: None, finish_seconds: 0.5, timeline: None };
        let unknown = Outcome::new(&unknown, 4.0, fold, None, StandIn::Zero, &layout);
        let unknown = SumsOutcome { outcome: unknown, failure: None };
        border::check("outcome", &json!({ "filled": filled, "unknown": unknown }));
    }
}
