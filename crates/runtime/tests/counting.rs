//! Tests that the outcome reports exactly what is in the mean, and that no value in the mean is infinite or
//! NaN.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

mod common;

use std::thread::JoinHandle;
use std::time::Instant;

use common::raw::Raw;
use common::{client, fill, floats, layout, part, round, server, LIMIT};
use serde_json::{json, Value};
use thalweg_proto::Verdict;
use thalweg_runtime::Server;
use thalweg_wire::control::Control;
use thalweg_wire::Layout;

const ADDRESSES: [&str; 2] = ["memory://counting:0", "tcp://127.0.0.1:0"];
const PARTIAL: [&str; 2] = ["discard", "keep"];

/// Result of a round with a good client and the client on trial.
struct Trial {
    outcome: Value,
    model: Vec<f32>,
    verdict: Verdict,
}

/// Runs a round with a client that sends `value` with `samples`, and one that sends 3 with weight 1.
fn trial(address: &str, options: &Value, value: f32, samples: u64) -> Trial {
    let layout = layout(50_000);
    let mut all = json!({ "expected": 2, "enough": 1, "chunk": 16384 });
    all.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    let (mut server, model) = server(&layout, address, all);
    let good = client(&server.address(), "good", json!({}), 3.0, 1);
    let tried = client(&server.address(), "tried", json!({}), value, samples);
    assert_eq!(server.wait(2, Some(LIMIT), None), 2);
    let outcome = round(&server, 1).unwrap();
    server.close("done");
    let verdict = |thread: JoinHandle<Result<Vec<Verdict>, String>>| {
        let verdicts = thread.join().unwrap().unwrap();
        assert_eq!(verdicts.len(), 1, "{verdicts:?}");
        verdicts[0].clone()
    };
    assert_eq!(verdict(good), Verdict::Accepted);
    Trial { outcome, model: floats(&model, &layout), verdict: verdict(tried) }
}

/// Checks that the client on trial gets the reason, the outcome has it too, and the mean is the other
/// client's update.
fn is_left_out(trial: &Trial, words: &[&str], what: &str) {
    let Verdict::Rejected(reason) = &trial.verdict else { panic!("{what}: {:?}", trial.verdict) };
    for word in words {
        assert!(reason.contains(word), "{what}: {reason}");
    }
    let tried = part(&trial.outcome, "tried");
    assert_eq!((&tried["state"], &tried["coverage"]), (&json!("rejected"), &json!(0.0)), "{what}");
    assert_eq!(&tried["reason"], reason, "{what}");
    assert_eq!(trial.outcome["complete"], false, "{what}");
    assert!(trial.model.iter().all(|&x| x == 3.0), "{what}: the mean is the other's");
}

#[test]
fn more_samples_than_can_be_a_weight_are_refused_when_they_are_offered() {
    for address in ADDRESSES {
        for partial in PARTIAL {
            let trial = trial(address, &json!({ "partial": partial }), 5.0, (1 << 40) + 1);
            is_left_out(&trial, &["1099511627777 samples", "divide all clients' numbers"], partial);
        }
    }
}

#[test]
fn exact_sums_hold_what_honest_clients_send() {
    for (value, samples) in [(60_000.0, 600), (-1e9, 1 << 20), (0.25, 1 << 40), (1e-9, 1)] {
        for partial in PARTIAL {
            let options = json!({ "precision": "exact", "partial": partial });
            let trial = trial(ADDRESSES[0], &options, value, samples);
            assert_eq!(trial.verdict, Verdict::Accepted, "{value} x {samples}");
            assert_eq!(trial.outcome["complete"], true);
            let weight = samples as f64;
            let mean = ((f64::from(value) * weight + 3.0) / (weight + 1.0)) as f32;
            assert!(trial.model.iter().all(|&x| x == mean), "{value} x {samples}: {}", trial.model[0]);
        }
    }
}

#[test]
fn what_sums_cannot_hold_is_refused_by_the_name_of_its_tensor() {
    for (precision, value, samples) in [
        ("f32", 3e38, 1 << 30),
        ("f32", 1e30, 2),
        ("exact", 3e38, 1 << 30),
        ("exact", 1e30, 1),
        ("exact", 4096.0, 1 << 40),
    ] {
        for partial in PARTIAL {
            let options = json!({ "precision": precision, "partial": partial });
            let trial = trial(ADDRESSES[0], &options, value, samples);
            is_left_out(&trial, &["tensor \"w\", element 0", "over the limit", precision], precision);
        }
    }
}

#[test]
fn what_is_not_finite_is_refused_whatever_the_sums_are_in() {
    for address in ADDRESSES {
        for precision in ["f32", "f64", "exact"] {
            for value in [f32::NAN, f32::NEG_INFINITY] {
                for partial in PARTIAL {
                    let options = json!({ "precision": precision, "partial": partial });
                    let trial = trial(address, &options, value, 600);
                    is_left_out(&trial, &["tensor \"w\", element 0", "diverged"], precision);
                }
            }
        }
    }
}

/// f64 sums of f32 values cannot overflow.
#[test]
fn sums_in_f64_hold_the_largest_values_with_the_largest_weight() {
    let options = json!({ "precision": "f64", "partial": "keep" });
    let trial = trial(ADDRESSES[0], &options, 3e38, 1 << 40);
    assert_eq!((trial.verdict, &trial.outcome["complete"]), (Verdict::Accepted, &json!(true)));
    assert!(trial.model.iter().all(|&x| (2.9e38..=3.0e38).contains(&x)), "{}", trial.model[0]);
}

#[test]
fn a_round_without_any_update_left_fails_by_name_and_the_model_stays() {
    for partial in PARTIAL {
        let layout = layout(1000);
        let (mut server, model) = server(&layout, ADDRESSES[0], json!({ "partial": partial }));
        fill(&model, &layout, 7.0, 1);
        let tried = client(&server.address(), "tried", json!({}), 3e38, 1 << 30);
        server.wait(1, Some(LIMIT), None);
        let error = round(&server, 1).unwrap_err();
        assert_eq!(error.kind(), thalweg_runtime::Kind::Round);
        assert!(error.to_string().contains("tensor \"w\""), "{error}");
        assert!(floats(&model, &layout).iter().all(|&x| x == 7.0), "as it was");
        server.close("done");
        assert!(matches!(&tried.join().unwrap().unwrap()[..], [Verdict::Rejected(_)]));
    }
}

/// An update of this layout whose elements are all `value`.
fn update(layout: &Layout, value: f32) -> Vec<u8> {
    let mut bytes = vec![0; layout.bytes() as usize];
    let range = layout.tensors()[0].range();
    bytes[range.start as usize..range.end as usize]
        .chunks_exact_mut(4)
        .for_each(|element| element.copy_from_slice(&value.to_le_bytes()));
    bytes
}

/// Runs a round with a good client and a raw one, which does `act`. Returns outcome, model and the result of
/// `act`.
fn beside_a_raw_one<T: Send>(
    options: Value,
    act: impl FnOnce(Raw, &Server) -> T + Send,
) -> (Value, Vec<f32>, T) {
    let layout = layout(1000);
    let (mut server, model) = server(&layout, "memory://raw:0", options);
    let address = server.address();
    let good = client(&address, "good", json!({}), 3.0, 1);
    let raw = Raw::join(&address, "raw", 1);
    assert_eq!(server.wait(2, Some(LIMIT), None), 2);
    let (outcome, said) = std::thread::scope(|scope| {
        let acting = scope.spawn(|| act(raw, &server));
        (round(&server, 1).unwrap(), acting.join().unwrap())
    });
    server.close("done");
    assert_eq!(good.join().unwrap(), Ok(vec![Verdict::Accepted]));
    (outcome, floats(&model, &layout), said)
}

#[test]
fn a_nan_that_a_chunk_border_cuts_never_gets_into_the_model() {
    for precision in ["f32", "f64", "exact"] {
        for partial in PARTIAL {
            let options = json!({ "expected": 2, "enough": 1, "precision": precision, "partial": partial });
            let (outcome, model, verdict) = beside_a_raw_one(options, |raw, _| {
                let mut bytes = update(&raw.welcome.layout, 9.0);
                bytes[1000..1004].copy_from_slice(&f32::NAN.to_le_bytes());
                raw.offer(1, 1);
                raw.send(1, &bytes, &[(0, 1001), (1001, bytes.len())]);
                raw.end(1);
                raw.verdict()
            });
            let reason = verdict.unwrap_err();
            assert!(reason.contains("cuts an element of tensor \"w\""), "{reason}");
            assert_eq!(part(&outcome, "raw")["state"], "rejected");
            assert!(model.iter().all(|&x| x == 3.0), "{precision} {partial}: {model:?}");
        }
    }
}

/// Chunks of odd sizes that cut no element are counted like others, even where they overlap.
#[test]
fn chunks_of_any_size_between_elements_count_whole() {
    for partial in PARTIAL {
        let options = json!({ "expected": 2, "enough": 2, "precision": "exact", "partial": partial });
        let (outcome, model, verdict) = beside_a_raw_one(options, |raw, _| {
            let bytes = update(&raw.welcome.layout, 5.0);
            raw.offer(1, 1);
            raw.send(
                1,
                &bytes,
                &[(1004, 4000), (0, 4), (4, 12), (8, 1008), (4000, 4031), (4031, bytes.len())],
            );
            raw.end(1);
            raw.verdict()
        });
        assert_eq!(verdict, Ok(()));
        assert_eq!((&outcome["complete"], &part(&outcome, "raw")["coverage"]), (&json!(true), &json!(1.0)));
        assert!(model.iter().all(|&x| x == 4.0), "{model:?}");
    }
}

/// Half of an update has been folded when its process dies and another process takes its place.
#[test]
fn with_keep_a_process_that_comes_anew_waits_for_the_next_round() {
    let options = json!({ "expected": 2, "enough": 1, "partial": "keep", "grace": 60.0 });
    let (outcome, model, _) = beside_a_raw_one(options, |raw, server| {
        let layout = raw.welcome.layout.clone();
        raw.offer(1, 1);
        raw.send(1, &update(&layout, 5.0), &[(0, 2000)]);
        raw.die();
        let started = Instant::now();
        while server.clients().iter().any(|name| name == "raw") && started.elapsed() < LIMIT {
            std::thread::yield_now(); // until the server has seen the old link end
        }
        let again = Raw::join(&server.address(), "raw", 2);
        again.hear("that it takes no part", |m| *m == Control::Closed { parcel: 1 });
        // If it offers an update nevertheless, nothing of it is accepted.
        again.say(&again.offering(1, 1));
        again.hear("the same", |m| *m == Control::Closed { parcel: 1 });
    });
    let raw = part(&outcome, "raw");
    let coverage = 2000.0 / layout(1000).bytes() as f64;
    assert_eq!((&raw["state"], &raw["coverage"]), (&json!("partial"), &json!(coverage)));
    assert!(raw["reason"].as_str().unwrap().contains("next round"), "{raw}");
    assert_eq!(outcome["complete"], false);
    let (first, rest) = model.split_at(500);
    assert!(first.iter().all(|&x| x == 4.0) && rest.iter().all(|&x| x == 3.0), "one process's half");
}
