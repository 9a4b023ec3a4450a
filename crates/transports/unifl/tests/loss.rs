//! Kernel senders over a link that loses packets: what is masked, retransmitted, and refused.
#![allow(clippy::unwrap_used)] // a panic is how tests report
#![cfg(target_os = "linux")]

use std::sync::Arc;

use bytes::Bytes;
use common::sending::{self, layout, runtime, send, Transfer, CHUNK, UPDATE};
use serde_json::json;
use thalweg_layers::{Layer, Seal};
use thalweg_seal::Suite;
use thalweg_transport::{Address, Options, Transport};
use thalweg_unifl::Unifl;
use thalweg_wire::{Allowance, Tolerance, WHOLE};

mod common;
use common::Trust;

#[test]
fn loss_is_masked_and_the_rest_comes_right() {
    let Some((received, source)) = send(0.01, r#"{"budget": 0.05}"#, 1) else { return };
    assert_eq!(received.message, Ok(Bytes::from_static(b"that was all")));
    received.recorder.check(&source);
    let missing = UPDATE - received.recorder.seen().ranges.bytes();
    assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
    for hole in received.recorder.seen().ranges.holes(UPDATE).iter() {
        assert_eq!((hole.start % 8, hole.end % 8), (0, 0), "a value is cut");
    }
    // All bytes are copied into the connection's buffer; the bytes of chunks with holes are copied twice
    // more.
    assert!(
        received.counters.copied > UPDATE && received.counters.round_trip.is_some(),
        "{:?}",
        received.counters
    );
}

#[test]
fn without_a_budget_all_of_it_comes() {
    let Some((received, source)) = send(0.01, r#"{"budget": 0}"#, 1) else { return };
    assert_eq!(received.message, Ok(Bytes::from_static(b"that was all")));
    received.recorder.check(&source);
    assert_eq!(received.recorder.seen().ranges.bytes(), UPDATE);
}

#[test]
fn no_more_is_masked_than_the_budget_has() {
    let Some((received, source)) = send(0.05, r#"{"budget": 0.01}"#, 1) else { return };
    assert_eq!(received.message, Ok(Bytes::from_static(b"that was all")));
    received.recorder.check(&source);
    let missing = UPDATE - received.recorder.seen().ranges.bytes();
    // Up to 7 further bytes are missing at either end of each hole.
    let holes = received.recorder.seen().ranges.holes(UPDATE).count() as u64;
    assert!(missing > 0 && missing <= UPDATE / 100 + 14 * holes, "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn a_trace_says_what_the_receiver_believed() {
    let file = std::env::temp_dir().join(format!("thalweg-unifl-trace-{}", std::process::id()));
    let options = json!({"budget": 0.05, "trace": file}).to_string();
    if send(0.01, &options, 1).is_none() {
        return;
    }
    let lines = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    assert!(
        lines[0]["phase"] == "starting" && last["window"].as_u64() > lines[0]["window"].as_u64(),
        "{last}"
    );
    assert!(last["delivered"].as_u64() > Some(UPDATE / 2) && last["lost"].as_u64() > Some(0), "{last}");
    assert!(last["rtt_min"].as_f64() > Some(0.0) && last["delivery_rate"].as_f64() > Some(0.0), "{last}");
}

#[test]
fn more_than_is_bearable_ends_the_link() {
    let Some((received, _)) = send(0.05, r#"{"refuse": 0.01}"#, 1) else { return };
    assert!(received.message.is_err(), "{:?}", received.message);
}

#[test]
fn critical_tensors_come_whole_while_others_lose() {
    sending::critical_tensors("tun");
}

#[test]
fn of_a_tensor_no_more_is_masked_than_its_budget_has() {
    let layout = layout();
    let allowances = [Allowance { tensor: 5, budget: 10_000, refuse: WHOLE }];
    let tolerance = Tolerance::new(&layout, &allowances).unwrap();
    let most = tolerance.limits()[0].budget;
    let job = Transfer { loss: 0.05, own: r#"{"budget": 0.2}"#.into(), tolerance, ..Transfer::default() };
    let Some((received, source)) = job.run() else { return };
    received.recorder.check(&source);
    let lost: Vec<u64> = (0..16).map(|tensor| received.missing(&layout, tensor)).collect();
    // Up to 7 bytes more are missing at either end of each hole, and no hole is longer than three segments.
    assert!(lost[5] > 0 && lost[5] <= most + 14 * 3, "{} of {most}: {lost:?}", lost[5]);
    assert!(lost[4] > 2 * most && lost[6] > 2 * most, "{lost:?}");
}

#[test]
fn a_tensor_that_loses_too_much_ends_the_link() {
    let allowances = [Allowance { tensor: 5, budget: WHOLE, refuse: 5_000 }];
    let tolerance = Tolerance::new(&layout(), &allowances).unwrap();
    let job = Transfer { loss: 0.05, own: r#"{"budget": 0.2}"#.into(), tolerance, ..Transfer::default() };
    let Some((received, _)) = job.run() else { return };
    assert!(received.message.is_err(), "{:?}", received.message);
}

#[test]
fn each_connection_of_a_link_has_its_holes() {
    let Some((received, source)) = send(0.01, r#"{"budget": 0.05}"#, 3) else { return };
    received.recorder.check(&source);
    let missing = UPDATE - received.recorder.seen().ranges.bytes();
    assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn loss_is_masked_over_ipv6_too() {
    let own = r#"{"budget": 0.05}"#.to_owned();
    let over_ipv6 = Transfer { host: common::SERVER_V6, own, ..Transfer::default() };
    let Some((received, source)) = over_ipv6.run() else { return };
    received.recorder.check(&source);
    let missing = UPDATE - received.recorder.seen().ranges.bytes();
    assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
}

/// A kernel's Cubic sender under TLS, with sealed updates. A lost packet costs all records that it touches.
#[test]
fn sealed_updates_lose_the_records_that_holes_touch() {
    let layer = Seal { record: Some(1432), ..Seal::default() };
    for streams in [1, 3] {
        let own = r#"{"budget": 0.05}"#.to_owned();
        let sent = Transfer { own, streams, layer: Some(layer.clone()), ..Transfer::default() }.run();
        let Some((received, source)) = sent else { return };
        assert_eq!(received.message, Ok(Bytes::from_static(b"that was all")));
        received.recorder.check(&source);
        let seen = received.recorder.seen();
        let (holes, missing) = (seen.ranges.holes(UPDATE), UPDATE - seen.ranges.bytes());
        assert!((UPDATE / 500..UPDATE / 10).contains(&missing), "{missing} of {UPDATE} bytes are missing");
        for hole in holes.iter() {
            let starts = hole.start % u64::from(CHUNK) % 1432;
            let ends = hole.end % u64::from(CHUNK) % 1432;
            assert_eq!((starts, ends), (0, 0), "{hole:?} is not of whole records");
        }
        assert!(seen.stored.iter().all(|(_, outcome)| outcome.is_ok()), "the path changes nothing");
        let lost = received.counters.records_lost.unwrap();
        assert!((missing / 1432..=missing / 1432 + holes.count() as u64).contains(&lost), "{lost} records");
    }
}

#[test]
fn sealed_updates_come_whole_without_a_budget() {
    let own = r#"{"budget": 0}"#.to_owned();
    let sent = Transfer { own, layer: Some(Seal::default()), ..Transfer::default() }.run();
    let Some((received, source)) = sent else { return };
    assert_eq!(received.message, Ok(Bytes::from_static(b"that was all")));
    received.recorder.check(&source);
    assert_eq!(received.recorder.seen().ranges.bytes(), UPDATE);
    assert_eq!(received.counters.records_lost, Some(0));
}

/// Several connections, records that are not whole words, and tensors of which some bytes are lost.
#[test]
fn critical_tensors_come_whole_when_sealed() {
    let layout = layout();
    let critical = [0, 3, 7, 8, 15];
    let allowances = critical.map(|tensor| Allowance { tensor, budget: 0, refuse: WHOLE });
    for (streams, record) in [(1, 1432), (3, 999)] {
        let tolerance = Tolerance::new(&layout, &allowances).unwrap();
        let layer = Some(Seal { record: Some(record), ..Seal::default() });
        let own = r#"{"budget": 0.2}"#.into();
        let Some((received, source)) =
            Transfer { loss: 0.02, own, streams, tolerance, layer, ..Transfer::default() }.run()
        else {
            return;
        };
        received.recorder.check(&source);
        let lost: Vec<u64> = (0..16).map(|tensor| received.missing(&layout, tensor)).collect();
        assert!(critical.iter().all(|&tensor| lost[tensor as usize] == 0), "{lost:?}");
        assert!(lost.iter().filter(|&&bytes| bytes > 0).count() > 8, "{lost:?}");
    }
}

#[test]
fn a_sealed_tensor_that_loses_too_much_ends_the_link() {
    let allowances = [Allowance { tensor: 5, budget: WHOLE, refuse: 5_000 }];
    let tolerance = Tolerance::new(&layout(), &allowances).unwrap();
    let (own, layer) = (r#"{"budget": 0.2}"#.into(), Some(Seal::default()));
    let Some((received, _)) = Transfer { loss: 0.05, own, tolerance, layer, ..Transfer::default() }.run()
    else {
        return;
    };
    assert!(received.message.is_err(), "{:?}", received.message);
}

/// TLS with updates that are not sealed, or sealed by a cipher that does not authenticate.
#[test]
fn under_tls_alone_it_is_plain_tcp_and_says_why() {
    let lab = match common::lab(json!({}), json!({})) {
        Ok(lab) => lab,
        Err(why) => return println!("skipped: {why}"),
    };
    common::go_to(&lab, "b");
    let cbc = Seal { cipher: Suite::AesCbc, ..Seal::default() };
    let transports: [Arc<dyn Transport>; 2] = [Arc::new(Unifl), cbc.wrap(Arc::new(Unifl))];
    runtime().block_on(async {
        let address = Address::parse(&format!("unifl://{}:0", common::SERVER)).unwrap();
        for transport in transports {
            let listener = transport.listen(&address, &Trust::new().listen(false)).await.unwrap();
            let notice = listener.notice().unwrap();
            assert!(notice.contains("TLS needs every byte") && notice.contains("[layers.seal]"), "{notice}");
        }
    });
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
