//! Tests of losses that are not sent again: the mean, and the outcome's report.
#![allow(clippy::unwrap_used)]

mod common;

use common::{client, fill, floats, layout, part, round, server, transfers, LIMIT};
use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_proto::Verdict;
use thalweg_runtime::{Server, ServerOptions};

const ELEMENTS: u64 = 200_000;
const POLICIES: &[&str] = &[
    "renormalise",
    "keep-local",
    "zero",
    "last",
    "rescale",
    #[cfg(feature = "baselines")]
    "fedcomm-legacy",
];

fn options(policy: &str) -> Value {
    let fault = json!({ "seed": 7, "loss": 0.2 });
    json!({
        "chunk": 8192, "layers": { "fault": fault }, "repair": { "policy": policy, "resend": false },
    })
}

/// Runs rounds with one client that sends fours. The global model starts with ones.
fn rounds(address: &str, policy: &str, count: u32, mut check: impl FnMut(u32, &Value, &[f32])) {
    let layout = layout(ELEMENTS);
    let (mut server, model) = server(&layout, address, options(policy));
    fill(&model, &layout, 1.0, 0);
    let layers = json!({ "layers": options(policy)["layers"] });
    let thread = client(&server.address(), "c", layers, 4.0, 1);
    server.wait(1, Some(LIMIT), None);
    for number in 1..=count {
        let outcome = round(&server, number).unwrap();
        check(number, &outcome, &floats(&model, &layout));
    }
    server.close("done");
    assert_eq!(thread.join().unwrap(), Ok(vec![Verdict::Accepted; count as usize]));
}

/// How many elements of the update arrived according to the outcome, and how many of the model are `value`.
fn came_and_are(outcome: &Value, model: &[f32], value: f32) -> (u64, u64) {
    let came = transfers(outcome, "c", "up")["bytes"].as_u64().unwrap() / 4;
    (came, model.iter().filter(|&&x| x == value).count() as u64)
}

#[test]
fn the_outcome_says_what_is_missing_and_what_stood_in() {
    for address in ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"] {
        for &policy in POLICIES {
            rounds(address, policy, 2, |_, outcome, _| {
                let bytes = layout(ELEMENTS).bytes();
                assert_eq!(
                    (&outcome["complete"], &part(outcome, "c")["state"]),
                    (&json!(false), &json!("partial"))
                );
                for direction in ["up", "down"] {
                    let way = transfers(outcome, "c", direction);
                    let (came, missing) = (way["bytes"].as_u64().unwrap(), way["missing"].as_u64().unwrap());
                    assert!(missing > bytes / 20 && came > bytes / 2 && came + missing == bytes, "{way}");
                    assert_eq!((&way["repair"], &way["complete"]), (&json!(policy), &json!(false)), "{way}");
                    assert!(
                        way["wire_bytes"].as_u64().unwrap() < bytes + bytes / 10,
                        "nothing is sent again: {way}"
                    );
                }
            });
        }
    }
}

#[test]
fn the_mean_has_what_stands_in() {
    for (policy, other) in [
        ("renormalise", 1.0),
        ("keep-local", 1.0),
        ("zero", 0.0),
        #[cfg(feature = "baselines")]
        ("fedcomm-legacy", 0.0),
    ] {
        rounds("tcp://127.0.0.1:0", policy, 1, |_, outcome, model| {
            let (came, fours) = came_and_are(outcome, model, 4.0);
            assert!(came.abs_diff(fours) <= 2, "{policy}: {came} came, {fours} are there"); // the counter's bytes
            assert!(model.iter().all(|&x| x == 4.0 || x == other), "{policy}");
            if policy == "fedcomm-legacy" {
                assert!(model[..fours as usize].iter().all(|&x| x == 4.0), "all slips to the front");
            }
        });
    }
}

#[test]
fn rescaling_keeps_the_mean_change() {
    rounds("tcp://127.0.0.1:0", "rescale", 1, |_, outcome, model| {
        let (_, ones) = came_and_are(outcome, model, 1.0);
        let mean = model.iter().map(|&x| f64::from(x)).sum::<f64>() / model.len() as f64;
        assert!(ones > 0 && (mean - 4.0).abs() < 1e-3, "{mean}");
    });
}

#[test]
fn the_last_update_stands_in_once_there_is_one() {
    let mut first = 0;
    rounds("tcp://127.0.0.1:0", "last", 3, |number, outcome, model| {
        let (came, fours) = came_and_are(outcome, model, 4.0);
        if number == 1 {
            first = fours;
            assert!(came.abs_diff(fours) <= 2 && model.iter().all(|&x| x == 4.0 || x == 1.0));
        } else {
            assert!(fours > first.max(came), "{number}: {fours} of {came} and of earlier ones");
            first = fours;
        }
    });
}

#[test]
fn what_is_folded_on_arrival_is_not_mended() {
    let layout = layout(100);
    for policy in &POLICIES[1..] {
        let mut options = options(policy);
        options["partial"] = json!("keep");
        let options: ServerOptions = serde_json::from_value(options).unwrap();
        let arena = Arena::new(layout.bytes()).unwrap();
        let refused = Server::start(arena, layout.clone(), "tcp://127.0.0.1:0", options).err().unwrap();
        assert!(refused.to_string().contains("renormalise"), "{refused}");
    }
}

/// Each choice that only builds with baselines have is refused where a server is started.
#[cfg(not(feature = "baselines"))]
#[test]
fn baselines_are_refused_where_the_build_has_none() {
    let workers = |key: &str, value: Value| {
        let mut workers = json!({ "count": 1, "split": "ranges", "command": ["true"] });
        workers[key] = value;
        json!({ "workers": workers })
    };
    let seal = json!({ "layers": { "seal": { "cipher": "aes-cbc" } } });
    let own = |key: &str, value: Value| json!({ "transport": { "own": { key: value } } });
    for (scheme, choice, options) in [
        ("tcp", "fedcomm-legacy", options("fedcomm-legacy")),
        ("tcp", "tree.data_plane = \"sockets\"", workers("data_plane", json!("sockets"))),
        ("tcp", "tree.data_plane = \"broker\"", workers("data_plane", json!("broker"))),
        ("tcp", "tree.side_process = true", workers("side_process", json!(true))),
        ("tcp", "aes-cbc", seal),
        ("rdma", "mode = \"fedrdma\"", own("mode", json!("fedrdma"))),
        ("unifl", "control = \"paper\"", own("control", json!("paper"))),
    ] {
        let options: ServerOptions = serde_json::from_value(options).unwrap();
        let layout = layout(100);
        let arena = Arena::new(layout.bytes()).unwrap();
        let refused =
            Server::start(arena, layout, &format!("{scheme}://127.0.0.1:0"), options).err().unwrap();
        assert_eq!(refused.kind(), thalweg_runtime::Kind::Unsupported, "{refused}");
        let said = refused.to_string();
        assert!(said.contains(choice) && said.contains("no baselines"), "{said}");
        assert!(said.contains("make setup BASELINES=1"), "{said}");
    }
}
