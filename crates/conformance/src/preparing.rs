//! Tests of places that a transport requests before the bytes arrive.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_transport::ErrorKind;
use thalweg_wire::ChunkHeader;

use crate::cancelling::PROMPTLY;
use crate::factory::expect_error;
use crate::pair::{link, send_in_task, settle, stall, until_closed, Receive, Sending};
use crate::updates::refill;
use crate::{outgoing, pattern, skip, update_id, Factory, Pump, Recorder, Router};

const SOME: u64 = 300_007;

/// `Sink::prepare`: if it returns a claim, the transport does not call `Sink::place` for that chunk, and
/// `stored` gets the claim as its target. If it returns `None`, the transport calls `Sink::place` when the
/// chunk arrives. In this test the sink returns a claim for every other chunk.
pub async fn a_chunk_has_one_place_beforehand_or_when_it_comes(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(SOME, 1);
    let chunk = factory.chunk(10_000);
    let foreseen = move |header: &ChunkHeader| (header.offset / u64::from(chunk)).is_multiple_of(2);
    let recorder = Arc::new(Recorder::new(SOME).preparing(foreseen));
    let mut pump = Pump::start(&pair.server, &recorder);
    let update = outgoing(&source, update_id(1), chunk);
    let count = update.chunks().len();
    pair.client.send_update(&update).await.unwrap();
    settle(&pair.client, &mut pump, &recorder, SOME).await;
    pump.stop(&pair.client).await;
    recorder.check(&source);
    let seen = recorder.seen();
    assert!(seen.prepared.iter().all(foreseen), "a place that was not given: {:?}", seen.prepared);
    for header in &seen.prepared {
        assert!(!seen.placed.contains(header), "a place was asked for again: {header:?}");
    }
    if factory.capabilities().reliable {
        assert_eq!((seen.prepared.len() + seen.placed.len(), seen.stored.len()), (count, count));
    }
}

/// `Sink::prepare`: if the bytes never arrive, the transport drops the claim. Another update can then use the
/// places, on any link.
pub async fn places_of_a_cancelled_update_are_given_back(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(factory.bulk, 2);
    let update = outgoing(&source, update_id(1), factory.chunk(64 << 10));
    let cancel = update.cancel().clone();
    let recorders = [1, 2].map(|_| Arc::new(Recorder::new(factory.bulk).preparing(|_| true)));
    let router = Router(recorders.to_vec());
    let mut send: Sending = pair.client.send_update(&update);
    let mut receive: Receive = pair.server.receive(&router);
    stall(&mut send, &mut receive, &recorders[0]).await;
    cancel.cancel();
    expect_error(send.await, &[ErrorKind::Cancelled]);
    let control = pair.client.send_control(Bytes::from_static(b"still here"));
    let (sent, received) = tokio::join!(control, receive);
    sent.unwrap();
    assert_eq!(received.unwrap(), "still here");
    if !pair.client.capabilities().settles() {
        return skip("chunks may come after the message behind them");
    }
    assert!(recorders[0].is_free(PROMPTLY), "a place is still held, though nothing will come");
    recorders[0].check(&source);
    refill(&source, 3);
    let mut pump = Pump::start(&pair.server, &Arc::new(router));
    pair.client.send_update(&outgoing(&source, update_id(2), factory.chunk(64 << 10))).await.unwrap();
    settle(&pair.client, &mut pump, &recorders[1], factory.bulk).await;
    recorders[1].check(&source);
}

/// `Sink::prepare`: the transport drops the claims at the latest when the link has ended.
pub async fn places_of_a_link_that_ended_are_given_back(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(factory.bulk, 4);
    let recorder = Arc::new(Recorder::new(factory.bulk).preparing(|_| true));
    let (client, server) = link(factory, &*pair.listener).await;
    let sending = send_in_task(&client, outgoing(&source, update_id(1), factory.chunk(64 << 10)));
    let close = async {
        recorder.until(|seen| !seen.stored.is_empty()).await;
        client.close().await;
    };
    tokio::join!(close, until_closed(&server, &*recorder));
    drop(sending.await);
    drop((server, client));
    assert!(recorder.is_free(PROMPTLY), "a place is still held, though its link is gone");
    recorder.check(&source);
}
