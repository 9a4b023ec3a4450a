//! A round's outcome as the JSON that Python gets. Times are seconds on the server's clock.

use serde_json::{json, Value};
use thalweg_proto::{Outcome, Participation, Span, Time, TransferReport};
use thalweg_wire::control::StandIn;
use thalweg_wire::Layout;

use super::reduce::Worked;

/// The outcome as JSON. `seconds` is the time of the whole round, `fold` the fold's own report, and
/// `congestion` the server's congestion control. `stand_in` says what replaced missing values, and `layout`
/// tells of which tensors.
pub(crate) fn outcome_json(
    outcome: &Outcome,
    seconds: f64,
    fold: Value,
    congestion: Option<String>,
    stand_in: StandIn,
    layout: &Layout,
) -> Value {
    json!({
        "round": outcome.round,
        "expected": outcome.expected,
        "complete": outcome.complete,
        "start": outcome.span.start.as_secs_f64(),
        "seconds": seconds,
        "communication_seconds": outcome.communication_seconds,
        "bytes_down": outcome.bytes_down,
        "bytes_up": outcome.bytes_up,
        "participants": outcome.participants.iter().map(participant).collect::<Vec<_>>(),
        "transfers": outcome.transfers.iter().map(|t| transfer_json(t, stand_in, layout)).collect::<Vec<_>>(),
        "congestion_control": congestion,
        "fold": fold,
    })
}

/// The timeline of a round: the work of the workers, and as its last entry the work of the node itself
/// (worker 0) since `since`. Times are seconds on the server's clock.
pub(crate) fn timeline_json(worked: &Worked, now: Time, (what, since): (&str, Time)) -> Value {
    let now = now.as_secs_f64();
    let did = worked.did.iter().map(|one| {
        json!({
            "worker": one.worker,
            "what": one.what,
            "start": now - one.start,
            "end": now - one.end,
            "updates": one.updates,
        })
    });
    let own = json!({ "worker": 0, "what": what, "start": since.as_secs_f64(), "end": now, "updates": 0 });
    json!({ "did": did.chain([own]).collect::<Vec<_>>(), "left_out": worked.left_out })
}

fn participant(part: &Participation) -> Value {
    // Only the length of metrics is limited (`thalweg_wire::text::MAX_METRICS`); nothing else about them is
    // checked.
    let metrics = serde_json::from_str(&part.metrics).unwrap_or_else(|_| Value::String(part.metrics.clone()));
    json!({
        "client": part.client,
        "state": part.state,
        "samples": number(part.samples),
        "metrics": metrics,
        "coverage": part.coverage,
        "reason": part.reason,
    })
}

/// A weight. A whole number, as for samples, has no fraction in the JSON.
fn number(weight: f64) -> Value {
    if weight.fract() == 0.0 && weight.abs() < 9e15 {
        json!(weight as i64)
    } else {
        json!(weight)
    }
}

/// A transfer as JSON.
pub(crate) fn transfer_json(transfer: &TransferReport, stand_in: StandIn, layout: &Layout) -> Value {
    let start = |span: Option<Span>| span.map(|s| s.start.as_secs_f64());
    let end = |span: Option<Span>| span.map(|s| s.end.as_secs_f64());
    let losses = layout.losses(&transfer.holes).into_iter().map(|(tensor, missing)| {
        let share = missing as f64 / tensor.range().len() as f64;
        json!({ "tensor": tensor.name, "missing": missing, "share": share })
    });
    json!({
        "round": transfer.round,
        "client": transfer.client,
        "direction": transfer.direction,
        "bytes": transfer.bytes,
        "missing": transfer.missing,
        "losses": losses.collect::<Vec<_>>(),
        "repair": (transfer.missing > 0).then_some(stand_in),
        "wire_bytes": transfer.wire_bytes,
        "send_start": start(transfer.send),
        "send_end": end(transfer.send),
        "receive_start": start(transfer.receive),
        "receive_end": end(transfer.receive),
        "retransmissions": transfer.retransmissions,
        "duplicates": transfer.duplicates,
        "corrupt": transfer.corrupt,
        "copied": transfer.copied,
        "records_lost": transfer.records_lost,
        "resumed": transfer.resumed,
        "complete": transfer.complete,
    })
}
