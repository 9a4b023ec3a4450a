//! The chunks on a link have the fates that its script decides.
#![allow(clippy::unwrap_used)] // in helpers of tests too

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Factory, Pair, Pump, Recorder};
use thalweg_layers::{Fate, Fault, Layer, Script, Step};
use thalweg_transport::memory::Memory;
use thalweg_transport::{Cancel, ErrorKind, Outgoing};
use thalweg_wire::HEADER_BYTES;
use tokio::time::Instant;

const CHUNK: u32 = 1_000;
const CHUNKS: usize = 500;
const BYTES: u64 = CHUNK as u64 * CHUNKS as u64;

async fn pair(fault: &Fault, name: &str) -> Pair {
    fault.check().unwrap();
    Factory::new(fault.wrap(Arc::new(Memory)), &format!("memory://fault-{name}:0")).pair().await
}

/// Sends an update from the client, which is link 0. Waits until everything has arrived.
async fn send(pair: &Pair) -> Arc<Recorder> {
    let source = pattern(BYTES, 1);
    let recorder = Arc::new(Recorder::new(BYTES));
    let mut pump = Pump::start(&pair.server, &recorder);
    let report = pair.client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    assert_eq!((report.chunks, report.payload), (CHUNKS as u64, BYTES), "what is lost was sent too");
    pair.client.send_control(Bytes::from_static(b"end")).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "end");
    recorder.check(&source);
    recorder
}

fn script(fault: &Fault, keep: impl Fn(&Step) -> bool) -> Vec<u64> {
    let steps = Script::new(fault, 0).update(CHUNKS);
    steps.iter().filter(|step| keep(step)).map(|step| step.chunk as u64 * u64::from(CHUNK)).collect()
}

#[tokio::test]
async fn the_script_is_what_arrives() {
    let fault = Fault { seed: 21, loss: 0.1, reorder: 0.1, duplicate: 0.0, ..Fault::default() };
    let pair = pair(&fault, "script").await;
    let recorder = send(&pair).await;
    let offsets: Vec<u64> = recorder.seen().placed.iter().map(|chunk| chunk.offset).collect();
    assert_eq!(offsets, script(&fault, |step| step.fate != Fate::Lost));
    assert!((400..490).contains(&offsets.len()), "{}", offsets.len());
    let (sent, received) = (pair.client.counters().sent, pair.server.counters().received);
    let lost = (CHUNKS - offsets.len()) as u64;
    assert_eq!(sent - received, lost * (u64::from(CHUNK) + HEADER_BYTES as u64));
}

#[tokio::test]
async fn a_damaged_chunk_fails_its_checksum() {
    let fault = Fault { seed: 22, corrupt: 0.1, ..Fault::default() };
    let recorder = send(&pair(&fault, "damage").await).await;
    let seen = recorder.seen();
    let damaged = seen.stored.iter().filter(|(_, outcome)| outcome.is_err());
    let damaged: Vec<u64> = damaged.map(|(chunk, _)| chunk.offset).collect();
    assert_eq!(damaged, script(&fault, |step| step.fate == Fate::Damaged));
    assert!(damaged.len() > 30, "{}", damaged.len());
    assert_eq!(seen.stored.len(), CHUNKS);
}

#[tokio::test]
async fn a_repeated_chunk_comes_twice() {
    let fault = Fault { seed: 23, duplicate: 0.1, ..Fault::default() };
    let recorder = send(&pair(&fault, "repeat").await).await;
    let repeated = script(&fault, |step| step.fate == Fate::Repeated).len();
    assert!(repeated > 30, "{repeated}");
    assert_eq!(recorder.seen().refused, repeated as u64);
    assert_eq!(recorder.seen().ranges.bytes(), BYTES);
}

#[tokio::test]
async fn asking_again_for_what_is_missing_gets_all() {
    let fault = Fault { seed: 24, loss: 0.4, corrupt: 0.1, ..Fault::default() };
    let pair = pair(&fault, "again").await;
    let source = pattern(BYTES, 2);
    let recorder = Arc::new(Recorder::new(BYTES));
    let mut pump = Pump::start(&pair.server, &recorder);
    let mut passes = 0;
    while recorder.seen().ranges.bytes() < BYTES {
        let (lent, holes) = (source.lend(source.range()).unwrap(), recorder.seen().ranges.holes(BYTES));
        let update = Outgoing::new(update_id(1), lent, &holes, CHUNK, Cancel::default());
        pair.client.send_update(&update).await.unwrap();
        pair.client.send_control(Bytes::new()).await.unwrap();
        pump.next().await.unwrap();
        passes += 1;
    }
    recorder.check(&source);
    assert!((4..40).contains(&passes), "{passes} passes");
}

#[tokio::test]
async fn the_link_is_cut_after_so_many_bytes() {
    let limit = 50 * (u64::from(CHUNK) + HEADER_BYTES as u64) + 10;
    let fault = Fault { seed: 25, cut_after: Some(limit), ..Fault::default() };
    let pair = pair(&fault, "cut").await;
    let source = pattern(BYTES, 3);
    let recorder = Arc::new(Recorder::new(BYTES));
    let mut pump = Pump::start(&pair.server, &recorder);
    let error = pair.client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.to_string().contains("the fault layer cuts the link"), "{error}");
    assert_eq!(pump.next().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(recorder.seen().ranges.bytes(), 50 * u64::from(CHUNK));
    let late = pair.client.send_control(Bytes::new()).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn chunks_are_under_way_for_the_delay() {
    let fault = Fault { seed: 26, delay_ms: 300.0, jitter_ms: 100.0, ..Fault::default() };
    let pair = pair(&fault, "delay").await;
    let start = Instant::now();
    let recorder = send(&pair).await;
    // 256 chunks leave at once, and the others as soon as there is room. So all 500 arrive within two delays.
    let (least, most) = (Duration::from_millis(399), Duration::from_millis(802));
    assert!((least..=most).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(recorder.seen().ranges.bytes(), BYTES);
    let received = recorder.seen().placed.iter().map(|chunk| chunk.offset).collect::<Vec<_>>();
    assert!(!received.is_sorted(), "jitter reorders");
}

#[tokio::test(start_paused = true)]
async fn cancel_and_close_wake_a_sender_that_delays() {
    let fault = Fault { delay_ms: 1e6, ..Fault::default() };
    let pair = pair(&fault, "wake").await;
    let (source, start) = (pattern(BYTES, 4), Instant::now());
    let update = outgoing(&source, update_id(1), CHUNK);
    let cancel = update.cancel().clone();
    let (sent, ()) = tokio::join!(pair.client.send_update(&update), async { cancel.cancel() });
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::Cancelled);
    let update = outgoing(&source, update_id(2), CHUNK);
    let (sent, ()) = tokio::join!(pair.client.send_update(&update), pair.client.close());
    assert_eq!(sent.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(start.elapsed(), Duration::ZERO);
}
