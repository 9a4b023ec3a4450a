//! Tests of the end of a link.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_transport::{ErrorKind, Link};

use crate::factory::expect_error;
use crate::pair::{poll_once, stall, until_closed, Receive, Sending};
use crate::{outgoing, pattern, update_id, Factory, Recorder};

const CLOSED: &[ErrorKind] = &[ErrorKind::Closed];

/// `Link::close`: a receive in progress fails with [`ErrorKind::Closed`] at both ends.
pub async fn close_wakes_a_blocked_receive_at_both_ends(factory: &Factory) {
    let pair = factory.pair().await;
    let sink = Recorder::new(0);
    let (mut here, mut there) = (pair.client.receive(&sink), pair.server.receive(&sink));
    assert!(poll_once(&mut here).await.is_pending());
    assert!(poll_once(&mut there).await.is_pending());
    pair.client.close().await;
    expect_error(here.await, CLOSED);
    expect_error(there.await, CLOSED);
}

/// Blocks a send by a peer that takes only one chunk, then runs `close` and checks that the send fails.
async fn stuck(factory: &Factory, close: impl AsyncFnOnce(&Arc<dyn Link>, &Arc<dyn Link>)) {
    let pair = factory.pair().await;
    let source = pattern(factory.bulk, 1);
    let recorder = Recorder::new(factory.bulk);
    let update = outgoing(&source, update_id(1), factory.chunk(64 << 10));
    let mut send: Sending = pair.client.send_update(&update);
    let mut receive: Receive = pair.server.receive(&recorder);
    stall(&mut send, &mut receive, &recorder).await;
    close(&pair.client, &pair.server).await;
    expect_error(send.await, CLOSED);
    drop(update);
    expect_error(receive.await, CLOSED);
    assert!(source.claim(source.range()).is_ok(), "the loan outlives the link");
}

/// `Link::close`: a send fails that is blocked because the peer does not receive.
pub async fn close_wakes_a_blocked_send(factory: &Factory) {
    stuck(factory, async |client, _| client.close().await).await;
}

/// `Link::close` by the peer: the blocked send fails too.
pub async fn close_by_the_peer_wakes_a_blocked_send(factory: &Factory) {
    stuck(factory, async |_, server| server.close().await).await;
}

/// `Link::close`: later calls fail on both sides; on the side that closed the link, at once.
pub async fn all_calls_fail_after_close(factory: &Factory) {
    let pair = factory.pair().await;
    pair.client.close().await;
    let (source, sink) = (pattern(1_000, 2), Recorder::new(1_000));
    let update = outgoing(&source, update_id(1), 100);
    until_closed(&pair.server, &sink).await; // the server has learned of the end
    for link in [&pair.client, &pair.server] {
        until_closed(link, &sink).await;
        expect_error(link.send_control(Bytes::from_static(b"too late")).await, CLOSED);
        expect_error(link.send_update(&update).await, CLOSED);
        let _still_readable = link.counters();
    }
}

/// `Link::close` is idempotent: either side may call it again.
pub async fn closing_twice_is_fine(factory: &Factory) {
    let pair = factory.pair().await;
    tokio::join!(pair.client.close(), pair.server.close(), pair.client.close());
    pair.client.close().await;
    pair.server.close().await;
    until_closed(&pair.client, &Recorder::new(0)).await;
}

/// Calls fail with [`ErrorKind::Closed`] after the peer's link was dropped without `close`.
pub async fn a_peer_that_is_dropped_is_gone(factory: &Factory) {
    let pair = factory.pair().await;
    drop(pair.server);
    until_closed(&pair.client, &Recorder::new(0)).await;
    // Messages may be lost in a buffer for a while, but then sending must fail.
    let message = Bytes::from(vec![0; 64 << 10]);
    loop {
        if let Err(error) = pair.client.send_control(message.clone()).await {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            return;
        }
    }
}
