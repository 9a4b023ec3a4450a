//! The eBPF back end: the kernel's TCP with programs in front, and kernel senders over a link that loses
//! packets.
#![allow(clippy::unwrap_used)] // a panic is how tests report
#![cfg(target_os = "linux")]

use bytes::Bytes;
use common::sending::{self, runtime, Received, Transfer, UPDATE};
use thalweg_arena::Arena;
use thalweg_transport::{Address, Options, Transport};
use thalweg_unifl::Unifl;

mod common;

/// Runs a transfer with this back end and these options. `None` if this machine cannot do that.
fn send(own: &str, transfer: Transfer) -> Option<(Received, Arena)> {
    Transfer { own: format!(r#"{{"backend": "ebpf", {own}}}"#), ..transfer }.run()
}

fn missing(received: &Received) -> u64 {
    UPDATE - received.recorder.seen().ranges.bytes()
}

#[test]
fn loss_is_masked_and_the_rest_comes_right() {
    for congestion in ["cubic", "reno"] {
        let transfer = Transfer { congestion, ..Transfer::default() };
        let Some((received, source)) = send(r#""budget": 0.05"#, transfer) else { return };
        assert_eq!(received.message, Ok(Bytes::from_static(b"that was all")));
        received.recorder.check(&source);
        let missing = missing(&received);
        assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
        for hole in received.recorder.seen().ranges.holes(UPDATE).iter() {
            assert_eq!((hole.start % 8, hole.end % 8), (0, 0), "a value is cut");
        }
        // Only parts of chunks with holes were copied.
        assert!(
            received.counters.copied > 0 && received.counters.round_trip.is_some(),
            "{:?}",
            received.counters
        );
    }
}

#[test]
fn without_a_budget_all_of_it_comes() {
    let Some((received, source)) = send(r#""budget": 0"#, Transfer::default()) else { return };
    assert_eq!(received.message, Ok(Bytes::from_static(b"that was all")));
    received.recorder.check(&source);
    assert_eq!(missing(&received), 0);
}

#[test]
fn no_more_is_masked_than_the_budget_has() {
    let transfer = Transfer { loss: 0.05, ..Transfer::default() };
    let Some((received, source)) = send(r#""budget": 0.01"#, transfer) else { return };
    assert_eq!(received.message, Ok(Bytes::from_static(b"that was all")));
    received.recorder.check(&source);
    // Up to 7 further bytes are missing at either end of each hole.
    let holes = received.recorder.seen().ranges.holes(UPDATE).count() as u64;
    let missing = missing(&received);
    assert!(missing > 0 && missing <= UPDATE / 100 + 14 * holes, "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn more_than_is_bearable_ends_the_link() {
    let transfer = Transfer { loss: 0.05, ..Transfer::default() };
    let Some((received, _)) = send(r#""refuse": 0.01"#, transfer) else { return };
    assert!(received.message.is_err(), "{:?}", received.message);
}

#[test]
fn critical_tensors_come_whole_while_others_lose() {
    sending::critical_tensors("ebpf");
}

/// The link loses 4 %. The sender retransmits each lost segment with a header. It also retransmits the losses
/// behind that segment until the next header has arrived.
#[test]
fn a_lost_header_costs_little_more_than_its_own_segment() {
    let transfer = Transfer { loss: 0.04, ..Transfer::default() };
    let Some((received, source)) = send(r#""budget": 0.2"#, transfer) else { return };
    received.recorder.check(&source);
    let missing = missing(&received);
    assert!(missing > UPDATE * 28 / 1000, "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn each_connection_of_a_link_has_its_holes() {
    let transfer = Transfer { streams: 3, ..Transfer::default() };
    let Some((received, source)) = send(r#""budget": 0.05"#, transfer) else { return };
    received.recorder.check(&source);
    let missing = missing(&received);
    assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn loss_is_masked_over_ipv6_too() {
    let transfer = Transfer { host: common::SERVER_V6, ..Transfer::default() };
    let Some((received, source)) = send(r#""budget": 0.05"#, transfer) else { return };
    received.recorder.check(&source);
    let missing = missing(&received);
    assert!((UPDATE / 1000..UPDATE / 20).contains(&missing), "{missing} of {UPDATE} bytes are missing");
}

#[test]
fn at_the_loopback_it_is_plain_tcp_and_says_so() {
    let own = serde_json::from_str(r#"{"backend": "ebpf"}"#).unwrap();
    let options = Options { own, ..Options::default() };
    let address = Address::parse("unifl://127.0.0.1:0").unwrap();
    let listener = runtime().block_on(Unifl.listen(&address, &options)).unwrap();
    let notice = listener.notice().unwrap();
    assert!(notice.ends_with("is served as plain tcp: the loopback loses nothing"), "{notice}");
}
