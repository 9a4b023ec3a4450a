//! Kernel senders over a link that loses packets: what is masked, what is repaired, what is refused.
#![allow(clippy::unwrap_used)] // a panic is how tests report
#![cfg(target_os = "linux")]

use std::sync::mpsc;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use thalweg_arena::Arena;
use thalweg_conformance::{outgoing, pattern, update_id, Recorder};
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Counters, ErrorKind, Options, Sink, Transport};
use thalweg_unifl::Unifl;

mod common;

const UPDATE: u64 = 8 << 20;
const CHUNK: u32 = 64 << 10;

/// What came at the server.
struct Came {
    recorder: Recorder,
    message: Result<Bytes, ErrorKind>,
    counters: Counters,
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A client on one host sends an update and a message to a server on the other, over a link that loses `loss` of the
/// packets to the server. `None` where there are no such networks.
fn send(loss: f64, own: &str, streams: u8) -> Option<(Came, Arena)> {
    send_to(common::SERVER, loss, own, streams)
}

fn send_to(host: &'static str, loss: f64, own: &str, streams: u8) -> Option<(Came, Arena)> {
    let way = |loss: f64| json!({"rate": 100_000_000, "delay": 0.005, "loss": loss});
    let lab = match common::lab(way(loss), way(0.0)) {
        Ok(lab) => Arc::new(lab),
        Err(why) => {
            println!("skipped: {why}");
            return None;
        }
    };
    let options = Options { own: serde_json::from_str(own).unwrap(), ..Options::default() };
    let (ready, told) = mpsc::channel();
    let theirs = lab.clone();
    let server = std::thread::spawn(move || {
        common::go_to(&theirs, "b");
        if host == common::SERVER_V6 {
            common::forward_ipv6();
        }
        runtime().block_on(async {
            let address = Address::parse(&format!("unifl://{host}:0")).unwrap();
            let listener = Unifl.listen(&address, &options).await.unwrap();
            assert_eq!(listener.notice(), None);
            ready.send(listener.address()).unwrap();
            let link = listener.accept().await.unwrap().await.unwrap();
            assert!(!link.capabilities().reliable);
            let recorder = Recorder::new(UPDATE);
            let message = link.receive(&recorder as &dyn Sink).await.map_err(|e| e.kind());
            let _ = link.send_control(Bytes::from_static(b"thanks")).await;
            // Until the client has gone.
            let _ = link.receive(&recorder).await;
            Came { recorder, message, counters: link.counters() }
        })
    });
    let to = Address { scheme: "tcp".into(), ..told.recv().unwrap() };
    let client = std::thread::spawn(move || {
        common::go_to(&lab, "a");
        runtime().block_on(async {
            let options = Options { congestion: Some("cubic".into()), streams, ..Options::default() };
            let link = Tcp.connect(&to, &options).await.unwrap();
            let source = pattern(UPDATE, 3);
            let sent = link.send_update(&outgoing(&source, update_id(1), CHUNK)).await;
            if sent.is_ok() && link.send_control(Bytes::from_static(b"that was all")).await.is_ok() {
                let _ = link.receive(&Recorder::new(0)).await;
            }
            link.close().await;
            source
        })
    });
    let source = client.join().unwrap();
    Some((server.join().unwrap(), source))
}

#[test]
fn loss_is_masked_and_the_rest_comes_right() {
    let Some((came, source)) = send(0.01, r#"{"budget": 0.05}"#, 1) else { return };
    assert_eq!(came.message, Ok(Bytes::from_static(b"that was all")));
    came.recorder.check(&source);
    let missing = UPDATE - came.recorder.seen().ranges.bytes();
    assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
    for hole in came.recorder.seen().ranges.holes(UPDATE).iter() {
        assert_eq!((hole.start % 8, hole.end % 8), (0, 0), "a value is cut");
    }
    // Into the connection's buffer, and what was of chunks with holes twice more.
    assert!(came.counters.copied > UPDATE && came.counters.round_trip.is_some(), "{:?}", came.counters);
}

#[test]
fn without_a_budget_all_of_it_comes() {
    let Some((came, source)) = send(0.01, r#"{"budget": 0}"#, 1) else { return };
    assert_eq!(came.message, Ok(Bytes::from_static(b"that was all")));
    came.recorder.check(&source);
    assert_eq!(came.recorder.seen().ranges.bytes(), UPDATE);
}

#[test]
fn no_more_is_masked_than_the_budget_has() {
    let Some((came, source)) = send(0.05, r#"{"budget": 0.01}"#, 1) else { return };
    assert_eq!(came.message, Ok(Bytes::from_static(b"that was all")));
    came.recorder.check(&source);
    let missing = UPDATE - came.recorder.seen().ranges.bytes();
    // With each hole go up to 7 bytes at either end.
    let holes = came.recorder.seen().ranges.holes(UPDATE).count() as u64;
    assert!(missing > 0 && missing <= UPDATE / 100 + 14 * holes, "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn more_than_is_bearable_ends_the_link() {
    let Some((came, _)) = send(0.05, r#"{"refuse": 0.01}"#, 1) else { return };
    assert!(came.message.is_err(), "{:?}", came.message);
}

#[test]
fn each_connection_of_a_link_has_its_holes() {
    let Some((came, source)) = send(0.01, r#"{"budget": 0.05}"#, 3) else { return };
    came.recorder.check(&source);
    let missing = UPDATE - came.recorder.seen().ranges.bytes();
    assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn loss_is_masked_over_ipv6_too() {
    let own = r#"{"budget": 0.05}"#;
    let Some((came, source)) = send_to(common::SERVER_V6, 0.01, own, 1) else { return };
    came.recorder.check(&source);
    let missing = UPDATE - came.recorder.seen().ranges.bytes();
    assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn where_ipv6_is_not_forwarded_it_says_what_to_set() {
    let lab = match common::lab(json!({}), json!({})) {
        Ok(lab) => lab,
        Err(why) => return println!("skipped: {why}"),
    };
    common::go_to(&lab, "b");
    runtime().block_on(async {
        let address = Address::parse(&format!("unifl://{}:0", common::SERVER_V6)).unwrap();
        let listener = Unifl.listen(&address, &Options::default()).await.unwrap();
        let notice = listener.notice().unwrap();
        assert!(notice.contains("plain tcp") && notice.contains("all.forwarding = 1"), "{notice}");
    });
}
