//! Tests with a client that speaks the protocol, but tries to do harm by its name, its farewell, and how
//! often it sends them.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use common::{layout, server, LIMIT};
use serde_json::json;
use thalweg_runtime::{transport_for, Layers, Server};
use thalweg_transport::{Address, Link, NoChunks, Options};
use thalweg_wire::control::{Control, Hello, Holding, Purpose, MAX_REASON, VERSIONS};
use thalweg_wire::text::is_plain;
use thalweg_wire::{Dtype, LayoutHash, TensorSpec};

fn hello(name: &str) -> Control {
    hello_with(name, None)
}

fn hello_with(name: &str, layout: Option<LayoutHash>) -> Control {
    let (name, holding) = (name.into(), Holding::Nothing);
    let (nonce, proof) = ([9; 32], None);
    Control::Hello(Hello {
        version: VERSIONS.1,
        name,
        instance: 1,
        nonce,
        proof,
        layout,
        holding,
        clock: 0,
        purpose: Purpose::Rounds,
    })
}

async fn say(url: &str, messages: &[Control]) -> Arc<dyn Link> {
    let (address, options) = (Address::parse(url).unwrap(), Options::default());
    let transport = transport_for(&address, &options, &Layers::default(), 0).unwrap();
    let link = transport.connect(&address, &options).await.unwrap();
    for message in messages {
        // The server may close the link before all messages are sent.
        let _ = link.send_control(message.encode().unwrap().into()).await;
    }
    link
}

/// Waits for a line of the server's log that matches. Returns all lines up to it.
fn notes_until(server: &Server, wanted: impl Fn(&str) -> bool + Sync) -> Vec<String> {
    let seen: Mutex<Vec<String>> = Mutex::default();
    let go_on = || {
        let mut seen = seen.lock().unwrap();
        seen.extend(server.notes());
        !seen.iter().any(|line| wanted(line))
    };
    server.wait(usize::MAX, Some(LIMIT), Some(&go_on));
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().any(|line| wanted(line)), "{seen:?}");
    seen
}

fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_farewell_of_escapes_and_lines_is_one_plain_line() {
    let (server, _) = server(&layout(100), "tcp://127.0.0.1:0", json!({ "expected": 2 }));
    let reason = "\x1b[2J\r\n2026-01-01T00:00:00 admin: all is well\u{202e}".repeat(10_000);
    let runtime = tokio();
    let _link = runtime.block_on(say(&server.address(), &[hello("evil"), Control::Bye { reason }]));
    let seen = notes_until(&server, |line| line.starts_with("evil left"));
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.iter().all(|line| is_plain(line) && line.len() < MAX_REASON + 64), "{seen:?}");
    let (name, why, gone) = server.departed().remove(0);
    assert!(name == "evil" && gone && is_plain(&why), "{why}");
}

#[test]
fn a_name_that_is_not_plain_gets_into_no_line() {
    let (server, _) = server(&layout(100), "tcp://127.0.0.1:0", json!({ "expected": 2 }));
    let runtime = tokio();
    let _evil = runtime.block_on(say(&server.address(), &[hello("a\n2026-01-01 b joined\x1b[2J")]));
    let _good = runtime.block_on(say(&server.address(), &[hello("good")]));
    let seen = notes_until(&server, |line| line == "good joined");
    // A line may say that a peer was rejected, but may not contain the peer's name.
    assert!(seen.iter().all(|line| is_plain(line) && !line.contains("b joined")), "{seen:?}");
    let others: Vec<&String> =
        seen.iter().filter(|line| !line.starts_with("a peer was turned away")).collect();
    assert_eq!(others, ["good joined"]);
    assert_eq!(server.clients(), ["good"]);
}

#[test]
fn a_client_with_another_layout_is_one_line() {
    let (server, _) = server(&layout(100), "tcp://127.0.0.1:0", json!({ "expected": 2 }));
    let runtime = tokio();
    let other = Some(layout(101).hash());
    let spec = Some(TensorSpec { dtype: Dtype::F32, shape: vec![101] });
    let differs = Control::Differs { tensor: "w".into(), spec };
    for _ in 0..2 {
        let messages = [hello_with("odd", other), differs.clone()];
        let link = runtime.block_on(say(&server.address(), &messages));
        // Until the server has closed it.
        while runtime.block_on(link.receive(&NoChunks)).is_ok() {}
    }
    let silent = runtime.block_on(say(&server.address(), &[hello_with("silent", other)]));
    // The challenge, and the server's layout. It leaves without an answer.
    (0..2).for_each(|_| drop(runtime.block_on(silent.receive(&NoChunks)).unwrap()));
    runtime.block_on(silent.close());
    let mut seen = notes_until(&server, |line| line.starts_with("silent was not let in"));
    let _good = runtime.block_on(say(&server.address(), &[hello("good")]));
    seen.extend(notes_until(&server, |line| line == "good joined"));
    let shapes = "its model differs: w is float32 [100] here and float32 [101] at the client";
    assert!(seen[0].starts_with(&format!("odd was not let in: {shapes}")), "{seen:?}");
    assert!(seen[1].starts_with("silent was not let in: its model has layout"), "{seen:?}");
    assert_eq!(seen[2..], ["good joined"]);
}

#[test]
fn one_that_comes_and_goes_all_the_time_does_not_fill_the_log() {
    let (server, _) = server(&layout(100), "tcp://127.0.0.1:0", json!({ "expected": 2 }));
    let runtime = tokio();
    let mut seen = Vec::new();
    for _ in 0..100 {
        let again = [hello("loud"), Control::Bye { reason: "so long".into() }];
        runtime.block_on(say(&server.address(), &again));
        seen.extend(server.notes());
    }
    let _quiet = runtime.block_on(say(&server.address(), &[hello("quiet")]));
    seen.extend(notes_until(&server, |line| line == "quiet joined"));
    let loud = seen.iter().filter(|line| line.contains("loud")).count();
    assert!((2..40).contains(&loud), "{loud} lines");
}
