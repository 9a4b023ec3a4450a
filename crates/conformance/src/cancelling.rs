//! Tests of cancelling an update.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_transport::ErrorKind;

use crate::factory::expect_error;
use crate::pair::{link, poll_once, send_in_task, settle, stall, Receive, Sending};
use crate::updates::refill;
use crate::{outgoing, pattern, skip, update_id, Factory, Pump, Recorder, Router};

/// What "promptly" means: an upper bound on a loaded machine. Nobody waits this long without need.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(5);

fn assert_free(source: &Arena) {
    let claim = source.claim_within(source.range(), PROMPTLY);
    assert!(claim.is_ok(), "the loan goes on after the call: {}", claim.unwrap_err());
}

/// `Link::send_update`: when the update's `Cancel` fires, the loan of the arena ends promptly, the link stays
/// usable, and the call fails with [`ErrorKind::Cancelled`]. This holds even if the peer does not receive.
pub async fn cancel_ends_the_loan_and_the_link_goes_on(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(factory.bulk, 1);
    let update = outgoing(&source, update_id(1), factory.chunk(64 << 10));
    let cancel = update.cancel().clone();
    let recorders: Vec<_> = (0..2).map(|_| Arc::new(Recorder::new(factory.bulk))).collect();
    let router = Router(recorders.clone());
    let mut send: Sending = pair.client.send_update(&update);
    let mut receive: Receive = pair.server.receive(&router);
    stall(&mut send, &mut receive, &recorders[0]).await;
    cancel.cancel();
    expect_error(send.await, &[ErrorKind::Cancelled]);
    assert_free(&source);
    let control = pair.client.send_control(Bytes::from_static(b"still here"));
    let (sent, received) = tokio::join!(control, receive);
    sent.unwrap();
    assert_eq!(received.unwrap(), "still here");
    if pair.client.capabilities().ordered {
        recorders[0].check(&source);
    }
    refill(&source, 2);
    let mut pump = Pump::start(&pair.server, &Arc::new(router));
    pair.client.send_update(&outgoing(&source, update_id(2), factory.chunk(64 << 10))).await.unwrap();
    settle(&pair.client, &mut pump, &recorders[1], factory.bulk).await;
    recorders[1].check(&source);
}

/// The memory may be written to once the last chunk was released, and not before.
pub async fn released_says_when_the_memory_is_free(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(factory.bulk, 7);
    let update = outgoing(&source, update_id(1), factory.chunk(64 << 10));
    let cancel = update.cancel().clone();
    let recorder = Recorder::new(factory.bulk);
    let mut send: Sending = pair.client.send_update(&update);
    let mut receive: Receive = pair.server.receive(&recorder);
    stall(&mut send, &mut receive, &recorder).await;
    let held = update.frame(update.chunks().last().unwrap());
    let mut released = Box::pin(cancel.released());
    assert!(poll_once(&mut released).await.is_pending(), "it was not even stopped");
    cancel.cancel();
    expect_error(send.await, &[ErrorKind::Cancelled]);
    assert!(poll_once(&mut released).await.is_pending(), "somebody still has a chunk");
    drop(held);
    assert!(tokio::time::timeout(PROMPTLY, released).await.is_ok(), "somebody has the bytes after the call");
    let claim = source.claim(source.range());
    assert!(claim.is_ok(), "{}", claim.unwrap_err());
}

/// A send that was cancelled before it began sends nothing.
pub async fn a_cancelled_update_is_not_begun(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(10_000, 3);
    let update = outgoing(&source, update_id(1), 1_000);
    update.cancel().cancel();
    expect_error(pair.client.send_update(&update).await, &[ErrorKind::Cancelled]);
    drop(update);
    assert_free(&source);
    let recorder = Recorder::new(10_000);
    let (sent, received) =
        tokio::join!(pair.client.send_control(Bytes::from_static(b"next")), pair.server.receive(&recorder));
    sent.unwrap();
    assert_eq!(received.unwrap(), "next");
    assert!(recorder.seen().placed.is_empty());
}

/// Cancelling an update does not affect another update on the same link.
pub async fn cancel_stops_its_own_update_only(factory: &Factory) {
    let pair = factory.pair().await;
    let (stopped, other) = (pattern(factory.bulk, 4), pattern(1 << 20, 5));
    let chunk = factory.chunk(64 << 10);
    let (one, two) = (outgoing(&stopped, update_id(1), chunk), outgoing(&other, update_id(2), chunk));
    let cancel = one.cancel().clone();
    let recorders = [Arc::new(Recorder::new(factory.bulk)), Arc::new(Recorder::new(1 << 20))];
    let router = Router(recorders.to_vec());
    let mut send: Sending = pair.client.send_update(&one);
    let mut receive: Receive = pair.server.receive(&router);
    stall(&mut send, &mut receive, &recorders[0]).await;
    let other_send = send_in_task(&pair.client, two);
    cancel.cancel();
    expect_error(send.await, &[ErrorKind::Cancelled]);
    assert_free(&stopped);
    let end = async {
        other_send.await.unwrap().unwrap();
        pair.client.send_control(Bytes::from_static(b"end")).await.unwrap();
    };
    let ((), received) = tokio::join!(end, receive);
    assert_eq!(received.unwrap(), "end");
    if !pair.client.capabilities().ordered {
        return skip("chunks may come after the message behind them");
    }
    assert!(recorders[1].seen().ranges.bytes() == 1 << 20 || !factory.capabilities().reliable);
    recorders[1].check(&other);
}

/// A call that has completed or was dropped holds no memory.
pub async fn the_loan_ends_with_the_call(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(1 << 20, 6);
    let pump = Pump::start(&pair.server, &Arc::new(Recorder::new(1 << 20)));
    pair.client.send_update(&outgoing(&source, update_id(1), factory.chunk(64 << 10))).await.unwrap();
    assert_free(&source);
    drop(pump);
    let (client, _server) = link(factory, &*pair.listener).await;
    let update = outgoing(&source, update_id(2), factory.chunk(64 << 10));
    let mut send = client.send_update(&update);
    if let Poll::Ready(sent) = poll_once(&mut send).await {
        sent.unwrap();
    }
    drop(send);
    drop(update);
    assert_free(&source);
}
