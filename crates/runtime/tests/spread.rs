//! Tests of updates that are sent in another order than the model's. The order scatters losses, and changes
//! nothing else.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

mod common;

use std::time::Instant;

use common::{floats, layout, round, server, LIMIT};
use serde_json::{json, Value};
use thalweg_arena::Arena;
use thalweg_runtime::{Client, ClientEvent, ClientOptions, Server, ServerOptions};
use thalweg_wire::Layout;

const ELEMENTS: u64 = 200_000;
const CHUNK: usize = 8192;

/// Element `i` of the update that is sent.
fn sent(i: usize) -> f32 {
    i as f32 + 1.0
}

fn global(i: usize) -> f32 {
    -(i as f32) - 1.0
}

fn put(arena: &Arena, layout: &Layout, value: impl Fn(usize) -> f32) {
    let range = layout.tensors()[0].range();
    let mut bytes = arena.claim(range).unwrap();
    for (i, element) in bytes.chunks_exact_mut(4).enumerate() {
        element.copy_from_slice(&value(i).to_le_bytes());
    }
}

/// A client that sends [`sent`] in each round, and loses this fraction of its chunks.
fn client(address: &str, loss: f64) -> std::thread::JoinHandle<()> {
    let options = json!({ "layers": { "fault": { "seed": 7, "loss": loss } } });
    let options: ClientOptions = serde_json::from_value(options).unwrap();
    let address = address.to_owned();
    std::thread::spawn(move || {
        let client = Client::start(&address, "c", options, None).unwrap();
        let started = Instant::now();
        while let Some(event) = client.next_event(Some(&|| started.elapsed() < LIMIT)) {
            match event {
                ClientEvent::Ready { round, .. } => {
                    let (arena, layout) = client.model().unwrap();
                    put(&arena, &layout, sent);
                    client.submit(round, 1.0, "{}".into()).unwrap();
                }
                ClientEvent::Finished(outcome) => return drop(outcome.unwrap()),
                _ => {}
            }
        }
        panic!("the test hangs");
    })
}

fn options(policy: &str, spread: bool) -> Value {
    let repair = json!({ "policy": policy, "resend": false, "spread": spread });
    json!({ "chunk": CHUNK, "seed": 5, "repair": repair })
}

/// A policy, and the values that stand in under it.
type Case = (&'static str, fn(usize) -> f32);

/// The model after each of `rounds` rounds.
fn models(policy: &str, spread: bool, loss: f64, rounds: u32) -> Vec<Vec<f32>> {
    let layout = layout(ELEMENTS);
    let (mut server, model) = server(&layout, "tcp://127.0.0.1:0", options(policy, spread));
    let thread = client(&server.address(), loss);
    server.wait(1, Some(LIMIT), None);
    let found = (1..=rounds).map(|number| {
        put(&model, &layout, global);
        round(&server, number).unwrap();
        floats(&model, &layout)
    });
    let found = found.collect();
    server.close("done");
    thread.join().unwrap();
    found
}

/// The longest run of elements in a model that did not arrive.
fn longest(model: &[f32]) -> usize {
    let runs = model.iter().enumerate().fold((0, 0), |(longest, now), (i, &x)| {
        let now = if x == sent(i) { 0 } else { now + 1 };
        (now.max(longest), now)
    });
    runs.0
}

#[test]
fn without_loss_it_changes_nothing() {
    for policy in ["renormalise", "last"] {
        for model in models(policy, true, 0.0, 2) {
            assert!(model.iter().enumerate().all(|(i, &x)| x == sent(i)), "{policy}");
        }
    }
}

#[test]
fn elements_come_to_their_places_and_what_stands_in_is_theirs() {
    let cases: [Case; 4] =
        [("renormalise", global), ("keep-local", global), ("last", global), ("zero", |_| 0.0)];
    for (policy, other) in cases {
        let model = models(policy, true, 0.2, 1).remove(0);
        let came = model.iter().enumerate().filter(|&(i, &x)| x == sent(i)).count();
        assert!((100_000..199_000).contains(&came), "{policy}: {came}");
        assert!(model.iter().enumerate().all(|(i, &x)| x == sent(i) || x == other(i)), "{policy}");
    }
}

#[test]
fn what_was_sent_last_stands_in_at_its_place() {
    let models = models("last", true, 0.2, 3);
    let came = |model: &[f32]| model.iter().enumerate().filter(|&(i, &x)| x == sent(i)).count();
    assert!(came(&models[1]) > came(&models[0]));
    assert!(models[2].iter().enumerate().all(|(i, &x)| x == sent(i) || x == global(i)));
}

#[test]
fn chunks_that_are_lost_leave_no_gap_in_the_model() {
    let ordered = models("renormalise", false, 0.05, 1).remove(0);
    let spread = models("renormalise", true, 0.05, 1).remove(0);
    // A chunk has 2048 elements; the order moves elements in units of 16.
    assert!(longest(&ordered) >= CHUNK / 4, "{}", longest(&ordered));
    assert!((1..=64).contains(&longest(&spread)), "{}", longest(&spread));
}

#[test]
fn it_goes_with_holes_only() {
    for (policy, resend) in [("renormalise", true), ("fedcomm-legacy", false)] {
        let mut options = options(policy, true);
        options["repair"]["resend"] = json!(resend);
        let options: ServerOptions = serde_json::from_value(options).unwrap();
        let layout = layout(100);
        let arena = Arena::new(layout.bytes()).unwrap();
        let refused = Server::start(arena, layout, "tcp://127.0.0.1:0", options).err().unwrap();
        assert!(refused.to_string().contains("spread"), "{refused}");
    }
}
