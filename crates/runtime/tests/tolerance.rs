//! Tests of critical tensors and of tensors' budgets, over real links that lose chunks.
#![allow(clippy::unwrap_used)]

mod common;

use common::{client, part, round, server, transfers, LIMIT};
use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_proto::Verdict;
use thalweg_runtime::{Server, ServerOptions};
use thalweg_wire::{Dtype, Layout};

const LOSSY: [&str; 3] = ["tcp://127.0.0.1:0", "udp://127.0.0.1:0", "ltp://127.0.0.1:0"];

/// Tests use this layout: the weights `w` and the counter `n` come first.
fn layout() -> Layout {
    let tensors = [
        ("w", Dtype::F32, vec![60_000]),
        ("n", Dtype::I64, vec![]),
        ("w.bias", Dtype::F32, vec![30_000]),
        ("v", Dtype::F32, vec![60_000]),
        ("v.bias", Dtype::F32, vec![30_000]),
    ];
    Layout::pack(tensors).unwrap()
}

fn options(repair: Value) -> Value {
    let fault = json!({ "seed": 7, "loss": 0.2 });
    json!({ "chunk": 1344, "layers": { "fault": fault }, "repair": repair })
}

/// The outcomes of two rounds with one client.
fn rounds(address: &str, repair: Value) -> Vec<Value> {
    let (mut server, _) = server(&layout(), address, options(repair));
    let layers = json!({ "layers": options(json!({}))["layers"] });
    let thread = client(&server.address(), "c", layers, 4.0, 1);
    server.wait(1, Some(LIMIT), None);
    let found = (1..=2).map(|number| round(&server, number).unwrap()).collect();
    server.close("done");
    assert_eq!(thread.join().unwrap(), Ok(vec![Verdict::Accepted; 2]));
    found
}

/// The missing fraction of each tensor of the client's update.
fn shares(outcome: &Value) -> Vec<(String, f64)> {
    let losses = transfers(outcome, "c", "up")["losses"].as_array().unwrap();
    losses.iter().map(|l| (l["tensor"].as_str().unwrap().into(), l["share"].as_f64().unwrap())).collect()
}

#[test]
fn named_tensors_come_whole_and_others_within_their_budgets() {
    let repair = json!({ "resend": false, "critical": ["*.bias", "n"], "budgets": { "v": 0.05 } });
    for address in LOSSY {
        for outcome in rounds(address, repair.clone()) {
            let shares = shares(&outcome);
            let names: Vec<&str> = shares.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["w", "v"], "{address}");
            assert!(shares[0].1 > 0.1, "{address}: {shares:?}");
            assert!(shares[1].1 > 0.0 && shares[1].1 <= 0.05, "{address}: {shares:?}");
        }
    }
}

#[test]
fn an_update_that_lost_too_much_of_a_tensor_is_refused_by_its_name() {
    let repair = json!({ "resend": false, "refuse": { "v.*": 0.05 } });
    let (mut server, _) = server(&layout(), "udp://127.0.0.1:0", options(repair));
    let layers = json!({ "layers": options(json!({}))["layers"] });
    let thread = client(&server.address(), "c", layers, 4.0, 1);
    server.wait(1, Some(LIMIT), None);
    let failed = round(&server, 1).unwrap_err().to_string();
    assert!(failed.contains("of the 120000 bytes of \"v.bias\""), "{failed}");
    server.close("done");
    let verdicts = thread.join().unwrap().unwrap();
    assert!(
        matches!(&verdicts[..], [Verdict::Rejected(reason)] if reason.contains("v.bias")),
        "{verdicts:?}"
    );
}

/// Without a layer that loses chunks, tcp loses nothing. The names are still checked, and nothing else
/// differs.
#[test]
fn a_transport_that_loses_nothing_ignores_it() {
    let repair = json!({ "critical": ["w"], "refuse": { "*": 0.0 } });
    let (mut server, _) = server(&layout(), "tcp://127.0.0.1:0", json!({ "repair": repair }));
    let thread = client(&server.address(), "c", json!({}), 4.0, 1);
    server.wait(1, Some(LIMIT), None);
    let outcome = round(&server, 1).unwrap();
    assert_eq!((&outcome["complete"], &part(&outcome, "c")["state"]), (&json!(true), &json!("whole")));
    server.close("done");
    thread.join().unwrap().unwrap();
}

#[test]
fn what_cannot_be_is_refused_before_anybody_can_connect() {
    for (repair, partial, expected) in [
        (json!({ "critical": ["v.bais"] }), "discard", "the nearest: \"v.bias\""),
        (json!({ "budgets": { "v": 1.5 } }), "discard", "a share from 0 to 1"),
        (json!({ "refuse": { "v": 0.5 } }), "keep", "partial keep"),
    ] {
        let options: ServerOptions =
            serde_json::from_value(json!({ "repair": repair, "partial": partial })).unwrap();
        let arena = Arena::new(layout().bytes()).unwrap();
        let refused = Server::start(arena, layout(), "tcp://127.0.0.1:0", options).err().unwrap();
        assert_eq!(refused.kind(), thalweg_runtime::Kind::Options);
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}
