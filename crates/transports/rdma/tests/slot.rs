//! FedRDMA's first version, in which each piece has a note: a receiver that does not read its notes.
#![cfg(feature = "baselines")]
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_conformance::{outgoing, pattern, update_id, Pair, Pump, Recorder};
use thalweg_transport::{ErrorKind, Outgoing, Result, SendReport};
use thalweg_verbs::pretend::{Behaviour, Fabric};

mod common;
use common::{pair_with, recorder};

/// Bytes of an update, which is one chunk and 768 pieces.
const UPDATE: u64 = 3 << 20;
const OWN: &str = r#"{"mode": "fedrdma", "piece": 4096, "link_enable": 0}"#;
/// Notes that a receiver's device has room for.
const NOTES: usize = 256;
/// Writes of the handshake: the first packet of each end.
const PROBES: usize = 2;

type Sending<'a> = Pin<Box<dyn Future<Output = Result<SendReport>> + Send + 'a>>;
type Receiving<'a> = Pin<Box<dyn Future<Output = Result<Bytes>> + Send + 'a>>;

async fn pair(seed: u64) -> (Pair, Arc<Fabric>) {
    pair_with(OWN, Behaviour { seed, delay: 0.2, ..Behaviour::default() }).await
}

fn update(source: &Arena) -> Outgoing {
    outgoing(source, update_id(1), UPDATE as u32)
}

/// The peer grants memory for the update and then receives no more. Returns when the sender waits for it.
async fn stall(send: &mut Sending<'_>, receive: &mut Receiving<'_>, recorder: &Recorder, fabric: &Fabric) {
    tokio::select! {
        biased;
        sent = &mut *send => panic!("{sent:?}"),
        message = &mut *receive => panic!("{message:?}"),
        () = recorder.until(|seen| !seen.prepared.is_empty()) => {}
    }
    while fabric.writes().len() < PROBES + NOTES {
        tokio::task::yield_now().await;
    }
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fabric.writes().len(), PROBES + NOTES, "there is no room for the note of a piece");
}

#[tokio::test]
async fn a_send_is_cancelled_while_its_notes_are_not_read() {
    for seed in 0..4 {
        let (pair, fabric) = pair(seed).await;
        let (source, recorder) = (pattern(UPDATE, seed), recorder(UPDATE));
        let update = update(&source);
        let mut send: Sending = pair.client.send_update(&update);
        let mut receive: Receiving = pair.server.receive(&*recorder);
        stall(&mut send, &mut receive, &recorder, &fabric).await;
        update.cancel().cancel();
        assert_eq!(send.await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(source.claim(source.range()).is_ok(), "the loan goes on");
        let control = pair.client.send_control(Bytes::from_static(b"still here"));
        let (sent, received) = tokio::join!(control, receive);
        sent.unwrap();
        assert_eq!(received.unwrap(), "still here");
        assert!(recorder.is_free(Duration::ZERO), "a place is held");
        whole_update_arrives(&pair, seed + 10).await;
    }
}

/// Sends an update to a peer that receives.
async fn whole_update_arrives(pair: &Pair, seed: u64) {
    let (source, recorder) = (pattern(UPDATE, seed), recorder(UPDATE));
    let _pump = Pump::start(&pair.server, &recorder);
    pair.client.send_update(&update(&source)).await.unwrap();
    recorder.check(&source);
    assert_eq!(recorder.seen().ranges.bytes(), UPDATE);
}

/// Notes of a lost pair take no room of the next one, whether they were read or not.
#[tokio::test]
async fn a_new_pair_has_room_for_all_notes() {
    for seed in 0..4 {
        let (pair, fabric) = pair(seed).await;
        let (source, recorder) = (pattern(UPDATE, seed), recorder(UPDATE));
        let update = update(&source);
        let mut send: Sending = pair.client.send_update(&update);
        let mut receive: Receiving = pair.server.receive(&*recorder);
        stall(&mut send, &mut receive, &recorder, &fabric).await;
        fabric.cut();
        tokio::select! {
            biased;
            message = receive => panic!("{message:?}"),
            sent = send => drop(sent.unwrap()),
        }
        recorder.check(&source);
        assert_eq!(recorder.seen().ranges.bytes(), UPDATE);
    }
}
