//! Sealed updates over data connections that lose bytes, or whose bytes somebody changes: figures 5 and 6 of
//! UniFL, over a link.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use proptest::prelude::*;
use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorded, Recorder, Router};
use thalweg_layers::{Layer, Seal};
use thalweg_seal::{Cipher, Grid, Suite};
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, Link};
use thalweg_wire::{FrameHeader, Range, Ranges, WireError, HEADER_BYTES};

mod common;
use common::lossy::{Edit, Lossy, Script};
use common::Trust;

const CHUNK: u32 = 4000;
const UPDATE: u64 = 18_004;
const PREFACE: u64 = 16;
const HEADER: u64 = HEADER_BYTES as u64;

/// What has arrived of an update of `UPDATE` bytes in chunks of `CHUNK` bytes.
struct Received {
    recorder: Arc<Recorder>,
    lost: u64,
    message: Result<Bytes, Error>,
}

async fn meet(layer: &Seal, script: Script) -> [Arc<dyn Link>; 2] {
    let (trust, at) = (Trust::new(), Address::parse("tcp://localhost:0").unwrap());
    let listener = layer.wrap(Arc::new(Lossy(script))).listen(&at, &trust.listen(false)).await.unwrap();
    let (address, client, options) = (listener.address(), layer.wrap(Arc::new(Tcp)), trust.connect(None));
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let (client, server) = tokio::join!(client.connect(&address, &options), accept);
    [client.unwrap(), server]
}

/// Sends the update of round 2. If the script needs it, sends that of round 1 first.
async fn send(layer: &Seal, script: Script, rounds: &[u32]) -> Received {
    let [client, server] = meet(layer, script).await;
    assert!(server.capabilities().settled && !server.capabilities().reliable);
    let recorders: Vec<_> = (0..2).map(|_| Arc::new(Recorder::new(UPDATE))).collect();
    let mut pump = Pump::start(&server, &Arc::new(Router(recorders.clone())));
    for &round in rounds {
        client.send_update(&outgoing(&pattern(UPDATE, 3), update_id(round), CHUNK)).await.unwrap();
    }
    let message = match client.send_control(Bytes::from_static(b"end")).await {
        Ok(()) => pump.next().await,
        Err(error) => Err(error),
    };
    Received { recorder: recorders[1].clone(), lost: server.counters().records_lost.unwrap(), message }
}

fn whole(seen: &Recorded) -> bool {
    seen.ranges == Ranges::full(UPDATE)
}

/// The records that the connection's holes touch, as bytes of the update, and how many records they are.
fn touched(layer: &Seal, holes: &Ranges) -> (Ranges, u64) {
    let (mut lost, mut records, mut at) = (Ranges::new(), 0, 0);
    for start in (0..UPDATE).step_by(CHUNK as usize) {
        let length = u64::from(CHUNK).min(UPDATE - start);
        let grid = Grid::new(layer.cipher, length, layer.record()).unwrap();
        let first = at + HEADER + PREFACE;
        for index in 0..grid.records() {
            let (sealed, plain) = (grid.sealed(index), grid.plain(index));
            let sealed = Range::new(first + sealed.start, first + sealed.end);
            if holes.iter().any(|hole| !hole.intersect(sealed).is_empty()) {
                lost.insert(Range::new(start + plain.start, start + plain.end));
                records += 1;
            }
        }
        at = first + grid.sealed_bytes();
    }
    (lost, records)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever the connection loses, exactly the touched records are missing. All other bytes are as they
    /// were sent.
    #[test]
    fn a_hole_loses_the_records_it_touches(
        holes in prop::collection::vec((0..20_000_u64, 0..3000_u64), 0..8),
        chacha in any::<bool>(),
        record in prop::sample::select(vec![64_u32, 256, 1000, 1432, 4000]),
    ) {
        let cipher = if chacha { Cipher::ChaCha20Poly1305 } else { Cipher::Aes256Gcm };
        let layer = Seal { cipher: Suite::Aead(cipher), record: Some(record), ..Seal::default() };
        let holes: Ranges = holes.into_iter().map(|(at, bytes)| Range::new(at, at + bytes)).collect();
        let received = runtime().block_on(send(&layer, Script { holes: holes.clone(), ..Script::default() }, &[2]));
        prop_assert_eq!(received.message.unwrap(), "end");
        let (missing, records) = touched(&layer, &holes);
        let seen = received.recorder.seen();
        prop_assert_eq!(seen.ranges.holes(UPDATE), missing);
        prop_assert_eq!(received.lost, records);
        prop_assert!(seen.stored.iter().all(|(_, outcome)| outcome.is_ok()));
        drop(seen);
        received.recorder.check(&pattern(UPDATE, 3));
    }
}

/// Figure 6: the stream continues after the hole.
#[tokio::test]
async fn a_lost_segment_costs_two_records() {
    let layer = Seal { record: Some(1000), ..Seal::default() };
    let at = HEADER + PREFACE + 500;
    let holes: Ranges = [Range::new(at, at + 1448)].into_iter().collect();
    let received = send(&layer, Script { holes, ..Script::default() }, &[2]).await;
    assert_eq!(received.message.unwrap(), "end");
    assert_eq!(received.recorder.seen().ranges.holes(UPDATE), [Range::new(0, 2000)].into_iter().collect());
    assert_eq!(received.lost, 2);
}

/// A cipher that does not authenticate allows no losses. So the chunks of `aes-cbc` stay inside TLS.
#[tokio::test]
async fn a_cipher_that_does_not_authenticate_is_not_in_the_clear() {
    let layer = Seal { cipher: Suite::AesCbc, ..Seal::default() };
    let script = Script { holes: Ranges::full(UPDATE), ..Script::default() };
    let [client, server] = meet(&layer, script.clone()).await;
    assert!(!client.capabilities().settled && client.capabilities().ordered);
    assert!(script.hellos.lock().unwrap().is_empty(), "there is no data connection");
    drop(server);
}

/// The header of the frame with another place or length, as an attacker on the path can write it. The
/// checksum of a header is not secret.
fn forge(frame: &[u8], change: impl Fn(&mut FrameHeader)) -> Vec<u8> {
    let mut header = FrameHeader::decode(frame).unwrap();
    change(&mut header);
    [&header.encode()[..], &frame[HEADER_BYTES..]].concat()
}

/// The same payload, with the checksum of its current bytes.
fn summed(mut frame: Vec<u8>) -> Vec<u8> {
    let sum = thalweg_wire::checksum(&frame[HEADER_BYTES..]);
    frame = forge(&frame, |header| header.payload_checksum = sum);
    frame
}

async fn meddled(edit: impl Fn(Vec<u8>) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Received {
    let layer = Seal { record: Some(1000), ..Seal::default() };
    let edit: Arc<Edit> = Arc::new(edit);
    send(&layer, Script { edit, ..Script::default() }, &[1, 2]).await
}

fn round(frame: &[u8]) -> u32 {
    FrameHeader::decode(frame).unwrap().chunk.round
}

/// Checks that only losses resulted: the receiver accepted no byte that was not sent.
fn harmless(received: &Received) {
    received.recorder.check(&pattern(UPDATE, 3));
    let seen = received.recorder.seen();
    let bad = seen.stored.iter().filter_map(|(_, outcome)| outcome.as_ref().err());
    for error in bad {
        assert!(matches!(error, WireError::Sealed(_) | WireError::PayloadChecksum { .. }), "{error}");
    }
}

#[tokio::test]
async fn nobody_meddles_and_all_is_there() {
    let received = meddled(|frame| vec![frame]).await;
    assert!(received.message.is_ok() && whole(&received.recorder.seen()) && received.lost == 0);
}

#[tokio::test]
async fn bits_turned_over_lose_their_chunk() {
    // In the number, the length, the checksum, a record and a tag.
    for at in [0, 9, 13, 20, 1020] {
        let received = meddled(move |mut frame| {
            if round(&frame) == 2 {
                frame[HEADER_BYTES + at] ^= 1;
            }
            vec![summed(frame)]
        })
        .await;
        assert_eq!(received.message.as_ref().unwrap(), "end");
        harmless(&received);
        assert!(received.recorder.seen().ranges.is_empty(), "byte {at}");
    }
}

#[tokio::test]
async fn a_forged_header_is_no_worse_than_a_loss() {
    let changes: [fn(&mut FrameHeader); 5] = [
        |header| header.chunk.offset = (header.chunk.offset + u64::from(CHUNK)) % UPDATE,
        |header| header.chunk.sender += 1,
        |header| header.chunk.job += 1,
        |header| header.chunk.layout.0 ^= 1,
        |header| header.chunk.offset = u64::MAX - 5,
    ];
    for change in changes {
        let received =
            meddled(move |frame| vec![if round(&frame) == 2 { forge(&frame, change) } else { frame }]).await;
        assert_eq!(received.message.as_ref().unwrap(), "end");
        harmless(&received);
        assert!(received.recorder.seen().ranges.is_empty());
    }
}

/// An attacker who changes a length makes the next header unreadable, so the link ends.
#[tokio::test]
async fn a_forged_length_ends_the_link() {
    for change in [-1, 1, 100] {
        let received = meddled(move |frame| {
            let forged = forge(&frame, |header| {
                header.chunk.length = header.chunk.length.saturating_add_signed(change)
            });
            vec![if round(&frame) == 2 { forged } else { frame }]
        })
        .await;
        received.message.as_ref().unwrap_err();
        harmless(&received);
    }
}

/// The first chunk arrives again in the place of the second.
#[tokio::test]
async fn what_is_sent_again_is_dropped() {
    let first: Mutex<Vec<u8>> = Mutex::default();
    let received = meddled(move |frame| {
        let mut first = first.lock().unwrap();
        match FrameHeader::decode(&frame).unwrap().chunk.offset {
            0 => first.clone_from(&frame),
            offset if offset == u64::from(CHUNK) => return vec![first.clone()],
            _ => {}
        }
        vec![frame]
    })
    .await;
    harmless(&received);
    let second = Range::new(CHUNK.into(), 2 * u64::from(CHUNK));
    let seen = received.recorder.seen();
    assert_eq!(seen.ranges.holes(UPDATE), [second].into_iter().collect());
    assert_eq!(seen.stored.len() as u64, UPDATE / u64::from(CHUNK), "one is dropped");
}

/// Chunks of round 1 claim to be of round 2, and vice versa.
#[tokio::test]
async fn another_rounds_records_are_refused() {
    let received = meddled(|frame| {
        let other = 3 - round(&frame);
        vec![forge(&frame, |header| header.chunk.round = other)]
    })
    .await;
    assert_eq!(received.message.as_ref().unwrap(), "end");
    harmless(&received);
    assert!(received.recorder.seen().ranges.is_empty());
}

/// Chunks of another client's connection, with this client's place in their headers.
#[tokio::test]
async fn another_clients_records_are_refused() {
    let theirs: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let kept = theirs.clone();
    meddled(move |frame| {
        kept.lock().unwrap().push(frame.clone());
        vec![frame]
    })
    .await;
    let received = meddled(move |_| vec![theirs.lock().unwrap().remove(0)]).await;
    assert_eq!(received.message.as_ref().unwrap(), "end");
    harmless(&received);
    assert!(received.recorder.seen().ranges.is_empty());
}

/// Records that are combined from two chunks, and records that are swapped within one.
#[tokio::test]
async fn a_record_at_another_place_is_refused() {
    let received = meddled(|mut frame| {
        let first = HEADER_BYTES + PREFACE as usize;
        if frame.len() > first + 2 * 1016 {
            let (one, two) = frame[first..first + 2 * 1016].split_at_mut(1016);
            one.swap_with_slice(two);
        }
        vec![summed(frame)]
    })
    .await;
    harmless(&received);
    assert!(received.recorder.seen().ranges.is_empty());
}

#[tokio::test]
async fn whats_on_the_wire_is_not_what_was_sent() {
    let (wire, source): (Arc<Mutex<Vec<u8>>>, _) = (Arc::default(), pattern(UPDATE, 3));
    let captured = wire.clone();
    meddled(move |frame| {
        captured.lock().unwrap().extend_from_slice(&frame);
        vec![frame]
    })
    .await;
    let (wire, plain) = (wire.lock().unwrap(), source.lend(source.range()).unwrap());
    assert!(wire.len() as u64 > 2 * UPDATE);
    for at in (0..UPDATE as usize - 16).step_by(999) {
        assert!(!wire.windows(16).any(|bytes| *bytes == plain[at..at + 16]));
    }
}
