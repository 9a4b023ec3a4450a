//! The trace says what has passed.
#![allow(clippy::unwrap_used)] // in helpers of tests too

use std::sync::Arc;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Factory, Pair, Pump, Recorder};
use thalweg_layers::Layer;
use thalweg_testkit::trace::{Event, Trace, What};
use thalweg_transport::memory::Memory;

async fn pair(trace: &Trace, name: &str) -> Pair {
    Factory::new(trace.wrap(Arc::new(Memory)), &format!("memory://trace-{name}:0")).pair().await
}

/// An update of 3 chunks, of which the sink does not want the last, and a message after it.
async fn run(pair: &Pair) {
    let source = pattern(2_500, 1);
    let recorder = Arc::new(Recorder::new(2_500).only(|chunk| chunk.offset < 2_000));
    let mut pump = Pump::start(&pair.server, &recorder);
    pair.client.send_update(&outgoing(&source, update_id(9), 1_000)).await.unwrap();
    pair.client.send_control(Bytes::from_static(b"end")).await.unwrap();
    pump.next().await.unwrap();
    pair.client.close().await;
    pump.next().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn every_frame_is_recorded_at_both_ends() {
    let trace = Trace::new(100);
    run(&pair(&trace, "all").await).await;
    let of = |link| -> Vec<(What, u32, u64, u64)> {
        let events = trace.events().into_iter().filter(|event: &Event| event.link == link);
        events.map(|e| (e.what, e.round, e.offset, e.length)).collect()
    };
    let chunks = |stored, last| [(stored, 9, 0, 1_000), (stored, 9, 1_000, 1_000), (last, 9, 2_000, 500)];
    let plain = |what, length| [(what, 0, 0, length)];
    let client = [
        &plain(What::Opened, 0)[..],
        &chunks(What::ChunkSent, What::ChunkSent),
        &plain(What::ControlSent, 3),
        &plain(What::Ended, 0),
    ];
    let server = [
        &plain(What::Opened, 0)[..],
        &chunks(What::ChunkReceived, What::ChunkRefused),
        &plain(What::ControlReceived, 3),
        &plain(What::Ended, 0),
    ];
    assert_eq!((of(0), of(1)), (client.concat(), server.concat()));
    assert_eq!(trace.dropped(), 0);
}

#[tokio::test]
async fn the_oldest_make_room_and_are_counted() {
    let (full, small) = (Trace::new(100), Trace::new(4));
    run(&pair(&full, "full").await).await;
    run(&pair(&small, "small").await).await;
    assert_eq!(small.events().len(), 4);
    assert_eq!(small.dropped(), full.events().len() as u64 - 4);
    assert!(small.events().iter().any(|event| event.what == What::Ended));
}

#[tokio::test(start_paused = true)]
async fn it_is_written_as_json_lines() {
    let trace = Trace::new(3);
    let pair = pair(&trace, "json").await;
    let _pump = Pump::start(&pair.server, &Arc::new(Recorder::new(0)));
    tokio::time::advance(std::time::Duration::from_micros(1_500)).await;
    pair.client.send_control(Bytes::from_static(b"hello")).await.unwrap();
    let mut out = Vec::new();
    trace.write_json_lines(&mut out).unwrap();
    let line = r#"{"at":1500,"link":0,"what":"control_sent","round":0,"sender":0,"offset":0,"length":5}"#;
    assert!(String::from_utf8(out).unwrap().lines().any(|l| l == line));
}
