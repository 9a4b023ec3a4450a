//! Faults of devices, pairs and paths.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Pair, Pump, Recorder};
use thalweg_transport::{Address, ErrorKind, Options, Transport};
use thalweg_verbs::pretend::{Behaviour, Fabric};
use thalweg_verbs::Fault;

mod common;
#[path = "../../tcp/tests/common/trust.rs"]
mod trust;
use common::{factory, options, pair_with, pretend, recorder, send};
use trust::Trust;

/// Writes of the handshake: the first packet of each end. Fault numbers count from there.
const PROBES: u64 = 2;
const UPDATE: u64 = 3 << 20;
const CHUNK: u32 = 256 << 10;

fn plain() -> Options {
    Options::default()
}

/// In the first mode the sender moves the bytes to each chunk's place. In the second the receiver reads. In the
/// next two the update is granted and committed as a whole. In the last the sender moves the bytes into one
/// slot.
const MODES: &[&str] = if cfg!(feature = "baselines") {
    &["window", "pull", "fedrdma-e", "whole", "fedrdma"]
} else {
    &["window", "pull", "fedrdma-e", "whole"]
};

async fn pair_in(mode: &str, behaviour: Behaviour) -> (Pair, Arc<Fabric>) {
    pair_with(&format!(r#"{{"mode": "{mode}"}}"#), behaviour).await
}

/// A pair that breaks, at whichever write, is replaced, and the whole update arrives.
#[tokio::test]
async fn a_pair_that_breaks_is_made_anew() {
    for (fault, mode) in [Fault::Retries, Fault::Flushed]
        .into_iter()
        .flat_map(|fault| MODES.iter().map(move |mode| (fault, mode)))
    {
        for at in PROBES..PROBES + 12 {
            let behaviour =
                Behaviour { seed: at, delay: 0.2, faults: vec![(at, fault)], ..Behaviour::default() };
            let (pair, _) = pair_in(mode, behaviour).await;
            let source = pattern(UPDATE, at);
            let (sent, recorder) = send(&pair, &source, CHUNK).await;
            sent.unwrap();
            assert_eq!(recorder.seen().ranges.bytes(), UPDATE);
            assert!(recorder.seen().stored.iter().all(|(_, outcome)| outcome.is_ok()));
            recorder.check(&source);
        }
    }
}

/// Both ends lose their pairs while an update is being sent. What has arrived is not sent again.
#[tokio::test]
async fn after_a_cut_only_what_is_missing_is_sent() {
    for mode in ["window", "pull"] {
        after_a_cut(mode).await;
    }
}

async fn after_a_cut(mode: &str) {
    let (pair, fabric) = pair_in(mode, Behaviour { delay: 0.5, ..Behaviour::default() }).await;
    let source = pattern(UPDATE, 1);
    let recorder = recorder(UPDATE);
    let _pump = Pump::start(&pair.server, &recorder);
    let update = outgoing(&source, update_id(1), CHUNK);
    let cut = async {
        recorder.until(|seen| seen.stored.len() >= 4).await;
        assert_eq!(fabric.cut(), 4, "two pairs of two ends");
    };
    let (sent, ()) = tokio::join!(pair.client.send_update(&update), cut);
    sent.unwrap();
    recorder.check(&source);
    assert_eq!(recorder.seen().ranges.bytes(), UPDATE);
    let again = pair.client.counters().sent - UPDATE;
    assert!(again < 2 << 20, "{again} bytes more than the update were sent");
}

#[tokio::test]
async fn three_losses_without_progress_end_the_link() {
    for &mode in MODES {
        three_losses(mode).await;
    }
}

async fn three_losses(mode: &str) {
    let faults = (PROBES..PROBES + 3).map(|at| (at, Fault::Retries)).collect();
    let (pair, _) = pair_in(mode, Behaviour { faults, ..Behaviour::default() }).await;
    let source = pattern(UPDATE, 2);
    let (sent, recorder) = send(&pair, &source, CHUNK).await;
    let error = sent.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    // Only the side that moves the bytes knows why the link ended.
    assert!(mode == "pull" || error.to_string().contains("three pairs were lost"), "{error}");
    assert_eq!(recorder.seen().ranges.bytes(), 0);
    assert!(source.claim(source.range()).is_ok(), "the loan outlives the link");
}

#[tokio::test]
async fn an_access_error_ends_the_link_at_once() {
    for &mode in MODES {
        let behaviour = Behaviour { faults: vec![(PROBES, Fault::Access)], ..Behaviour::default() };
        let (pair, _) = pair_in(mode, behaviour).await;
        let (sent, _) = send(&pair, &pattern(UPDATE, 3), CHUNK).await;
        let error = sent.unwrap_err();
        let said = mode == "pull" || error.to_string().contains("access error");
        assert!(error.kind() == ErrorKind::Closed && said, "{error}");
    }
}

/// A send is cancelled while its pair breaks. The loan ends, and the link goes on.
#[tokio::test]
async fn a_send_is_cancelled_while_its_pair_is_made_anew() {
    for (seed, mode) in (0..20).zip(MODES.iter().cycle()) {
        let (pair, fabric) = pair_in(mode, Behaviour { seed, delay: 0.5, ..Behaviour::default() }).await;
        let source = pattern(UPDATE, seed);
        let update = outgoing(&source, update_id(1), CHUNK);
        let cancel = update.cancel().clone();
        let recorder = recorder(UPDATE);
        let mut pump = Pump::start(&pair.server, &recorder);
        let stop = async {
            recorder.until(|seen| seen.stored.len() as u64 > seed % 4).await;
            fabric.cut();
            cancel.cancel();
        };
        let (sent, ()) = tokio::join!(pair.client.send_update(&update), stop);
        assert_eq!(sent.unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(source.claim(source.range()).is_ok(), "the loan goes on");
        pair.client.send_control(Bytes::from_static(b"still here")).await.unwrap();
        assert_eq!(pump.next().await.unwrap(), "still here");
        let bytes = recorder.seen().ranges.bytes();
        assert!(recorder.is_free(std::time::Duration::ZERO), "a place is held");
        recorder.check(&source);
        pump.stop(&pair.client).await;
        let (sent, recorder) = send(&pair, &source, CHUNK).await;
        sent.unwrap();
        recorder.check(&source);
        assert!(bytes <= UPDATE && recorder.seen().ranges.bytes() == UPDATE);
    }
}

/// Bytes go straight from the sender's arena into the places that the sink gave beforehand.
#[tokio::test]
async fn nothing_is_copied_into_places_that_were_given_beforehand() {
    for &mode in MODES {
        let (pair, _) = pair_in(mode, Behaviour::default()).await;
        let (sent, recorder) = send(&pair, &pattern(UPDATE, 4), CHUNK).await;
        sent.unwrap();
        // FedRDMA's first version copies each piece out of its slot, and then the chunk to its place.
        let copies = if mode == "fedrdma" { 2 } else { 0 };
        assert_eq!(pair.client.counters().copied + pair.server.counters().copied, copies * UPDATE);
        assert!(recorder.seen().placed.is_empty());
    }
}

/// One end is enough: then no end opens memory to writes.
#[tokio::test]
async fn if_either_end_wants_to_read_both_do() {
    for (listen, connect) in [("pull", "window"), ("fedrdma-e", "pull")] {
        let mut factory = factory(Behaviour { reads: 1, ..Behaviour::default() }, "{}");
        let own = [listen, connect].map(|mode| options(&format!(r#"{{"mode": "{mode}"}}"#)));
        let [listen, connect] = own;
        factory = factory.options(listen, connect);
        let pair = factory.pair().await;
        let source = pattern(UPDATE, 6);
        let (sent, recorder) = send(&pair, &source, CHUNK).await;
        sent.unwrap();
        recorder.check(&source);
        // Only the update itself is sent, and no commit records.
        assert!(pair.client.counters().sent < UPDATE + (16 << 10));
    }
}

#[cfg(feature = "baselines")]
/// Under the printed rule a chunk may be copied too early. It is still delivered exactly once, and the link
/// goes on.
#[tokio::test]
async fn the_printed_rule_hands_each_chunk_on_once() {
    for seed in 0..5 {
        let own = options(r#"{"mode": "fedrdma-e", "race": true, "piece": 70000}"#);
        let behaviour =
            Behaviour { seed, delay: 0.3, faults: vec![(9 + seed, Fault::Retries)], ..Behaviour::default() };
        let pair = factory(behaviour, "{}").options(own.clone(), own).pair().await;
        let (sent, recorder) = send(&pair, &pattern(UPDATE, seed), CHUNK).await;
        sent.unwrap();
        assert_eq!(recorder.seen().stored.len() as u64, UPDATE / u64::from(CHUNK));
        assert!(recorder.is_free(std::time::Duration::ZERO), "a place is held");
    }
}

/// Checks that a link over such devices is tcp at both ends. Returns both ends' notices.
async fn falls_back(behaviour: Behaviour, listen: Options, connect: Options) -> [String; 2] {
    let (transport, _) = pretend(behaviour);
    let address = Address::parse("rdma://127.0.0.1:0").unwrap();
    let listener = transport.listen(&address, &listen).await.unwrap();
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let connected = async { transport.connect(&address, &connect).await.unwrap() };
    let (client, server) = tokio::join!(connected, accept);
    let recorder = Arc::new(Recorder::new(UPDATE));
    let _pump = Pump::start(&server, &recorder);
    let source = pattern(UPDATE, 5);
    client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    recorder.until(|seen| seen.ranges.bytes() == UPDATE).await;
    assert!(client.capabilities().ordered && server.capabilities().ordered, "this is no tcp");
    [client.notice().unwrap(), server.notice().or(listener.notice()).unwrap()]
}

#[tokio::test]
async fn what_is_missing_makes_a_link_tcp_that_says_why() {
    let locked = Behaviour { locked: 1 << 20, ..Behaviour::default() };
    for said in falls_back(locked, plain(), plain()).await {
        assert!(said.contains("is tcp") && said.contains("ulimit -l unlimited"), "{said}");
    }
    for filtered in 0..PROBES {
        let behaviour = Behaviour { faults: vec![(filtered, Fault::Retries)], ..Behaviour::default() };
        for said in falls_back(behaviour, plain(), plain()).await {
            assert!(said.contains("is tcp") && said.contains("UDP port 4791"), "{said}");
        }
    }
}

#[tokio::test]
async fn under_tls_links_are_tcp_unless_the_fabric_is_trusted() {
    let trust = Trust::new();
    let both = falls_back(Behaviour::default(), trust.listen(false), trust.connect(None)).await;
    for said in both {
        assert!(said.contains("[layers.seal]") && said.contains("trust = \"fabric\""), "{said}");
    }
    // The fabric must be trusted at both ends.
    let own = options(r#"{"trust": "fabric"}"#).own;
    let listen = Options { own: own.clone(), ..trust.listen(false) };
    falls_back(Behaviour::default(), listen.clone(), trust.connect(None)).await;
    let (transport, _) = pretend(Behaviour::default());
    let address = Address::parse("rdma://127.0.0.1:0").unwrap();
    let listener = transport.listen(&address, &listen).await.unwrap();
    assert!(listener.notice().unwrap().contains("in the clear"), "it is not said aloud");
    let connect = Options { own, ..trust.connect(None) };
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let address = listener.address();
    let connected = transport.connect(&address, &connect);
    let (client, server) = tokio::join!(connected, accept);
    for said in [client.unwrap().notice(), server.notice()] {
        assert!(said.unwrap().contains("go over the RDMA device"));
    }
}

#[tokio::test]
async fn what_it_has_not_is_refused() {
    let (transport, _) = pretend(Behaviour::default());
    let address = Address::parse("rdma://127.0.0.1:0").unwrap();
    for own in [r#"{"mode": "fast"}"#, r#"{"piece": 1}"#, r#"{"trust": "everybody"}"#, r#"{"speed": 1}"#] {
        let error = transport.listen(&address, &options(own)).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{own}");
    }
    let error = transport.listen(&address, &Options { streams: 4, ..plain() }).await.err().unwrap();
    assert!(error.to_string().contains("no streams"), "{error}");
}
