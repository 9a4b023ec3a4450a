//! Tests of concurrency: messages, updates, directions and links do not block one another.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use thalweg_transport::ErrorKind;

use crate::pair::{link, poll_once, say, send_in_task, settle, stall, transfer, Receive, Sending};
use crate::relay::Relay;
use crate::{outgoing, pattern, skip, update_id, Factory, Pump, Recorder, Router};

/// `Link::send_control` waits at most for the chunk that is being sent: the message arrives before the rest
/// of the update.
pub async fn control_overtakes_a_running_update(factory: &Factory) {
    let pair = factory.pair().await;
    let source = pattern(factory.bulk, 1);
    let update = outgoing(&source, update_id(1), factory.chunk(64 << 10));
    let (count, cancel) = (update.chunks().len(), update.cancel().clone());
    let recorder = Recorder::new(factory.bulk);
    let mut send: Sending = Box::pin(pair.client.send_update(&update));
    let mut receive: Receive = pair.server.receive(&recorder);
    stall(&mut send, &mut receive, &recorder).await;
    let mut control = pair.client.send_control(Bytes::from_static(b"overtaking"));
    // One poll puts the message into the queue before the peer continues to receive.
    if let Poll::Ready(sent) = poll_once(&mut control).await {
        sent.unwrap();
        control = Box::pin(std::future::ready(Ok(())));
    }
    // All run in one task, so only one of them makes progress at a time.
    let mut both = Box::pin(async { tokio::join!(control, receive) });
    let (sent, received) = tokio::select! {
        biased;
        both = &mut both => both,
        sent = &mut send => panic!("{sent:?} before the message came"),
    };
    drop(both);
    sent.unwrap();
    assert_eq!(received.unwrap(), "overtaking");
    let chunks = recorder.seen().placed.len();
    assert!(chunks < count, "the message came behind all {count} chunks");
    cancel.cancel();
    let pump = Pump::start(&pair.server, &Arc::new(recorder));
    send.await.map_or_else(|e| assert_eq!(e.kind(), ErrorKind::Cancelled, "{e}"), drop);
    drop(pump);
}

/// Length of a message that is too long for the datagrams that repeat messages.
const LONG: usize = 8 << 10;

/// Chunks of a detached update are delivered while a relay holds up the control messages that were sent
/// before them. If the transport sends its chunks on the control connection, a detached update is like any
/// other.
pub async fn a_detached_update_waits_for_no_message(factory: &Factory) {
    let source = pattern(200_000, 4);
    let update = || outgoing(&source, update_id(1), factory.chunk(16 << 10)).detached();
    if !factory.capabilities().detached {
        let pair = factory.pair().await;
        transfer(&pair.client, &pair.server, &update(), &source).await;
        return skip("chunks come on the way of the messages");
    }
    if !factory.relayed || !factory.capabilities().remote || !factory.address.is_local() {
        return skip("no relay can be between these ends");
    }
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let (client, server, relay) = Relay::link(&*factory.transport, &*listener, &factory.connect).await;
    for (from, to, gate) in [(&client, &server, &relay.up), (&server, &client, &relay.down)] {
        say(from, to, "it works").await;
        let recorder = Arc::new(Recorder::new(source.len()));
        let mut pump = Pump::start(to, &recorder);
        gate.allow(0);
        from.send_control(vec![7; LONG].into()).await.unwrap();
        from.send_update(&update()).await.unwrap();
        recorder.until(|seen| !seen.stored.is_empty()).await;
        gate.release();
        assert_eq!(pump.next().await.unwrap().len(), LONG);
        settle(from, &mut pump, &recorder, source.len()).await;
        pump.stop(from).await;
        recorder.check(&source);
    }
}

/// Both ends of a link send an update at the same time.
pub async fn both_directions_go_on_at_once(factory: &Factory) {
    let pair = factory.pair().await;
    let (up, down) = (pattern(4 << 20, 2), pattern(4 << 20, 3));
    let chunk = factory.chunk(64 << 10);
    let (sent_up, sent_down) = (outgoing(&up, update_id(1), chunk), outgoing(&down, update_id(2), chunk));
    tokio::join!(
        transfer(&pair.client, &pair.server, &sent_up, &up),
        transfer(&pair.server, &pair.client, &sent_down, &down),
    );
}

/// All methods of `Link` take `&self`: eight updates are sent at the same time.
pub async fn many_updates_share_a_link(factory: &Factory) {
    let pair = factory.pair().await;
    const EACH: u64 = 1 << 20;
    let sources: Vec<_> = (1..=8).map(|round| pattern(EACH, round)).collect();
    let recorders: Vec<_> = (0..8).map(|_| Arc::new(Recorder::new(EACH))).collect();
    let mut pump = Pump::start(&pair.server, &Arc::new(Router(recorders.clone())));
    let chunk = factory.chunk(32 << 10);
    let sends: Vec<_> = (1..)
        .zip(&sources)
        .map(|(round, source)| send_in_task(&pair.client, outgoing(source, update_id(round), chunk)))
        .collect();
    for send in sends {
        assert_eq!(send.await.unwrap().unwrap().payload, EACH);
    }
    for (recorder, source) in recorders.iter().zip(&sources) {
        settle(&pair.client, &mut pump, recorder, EACH).await;
        recorder.check(source);
    }
}

/// 64 links of one listener send an update in each direction at the same time.
pub async fn many_links_go_on_at_once(factory: &Factory) {
    const EACH: u64 = 200_000;
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let mut tasks = Vec::new();
    for number in 1..=64 {
        let (client, server) = link(factory, &*listener).await;
        let chunk = factory.chunk(16 << 10);
        tasks.push(tokio::spawn(async move {
            let (up, down) = (pattern(EACH, number), pattern(EACH, number << 8));
            let updates = (outgoing(&up, update_id(1), chunk), outgoing(&down, update_id(1), chunk));
            tokio::join!(
                transfer(&client, &server, &updates.0, &up),
                transfer(&server, &client, &updates.1, &down),
            );
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// `Pending`: a peer whose handshake is slow delays no other peer.
pub async fn a_link_not_yet_accepted_holds_up_nobody(factory: &Factory) {
    let listener = factory.transport.listen(&factory.address, &factory.listen).await.unwrap();
    let address = listener.address();
    let (transport, options) = (factory.transport.clone(), factory.connect.clone());
    let slow = tokio::spawn(async move { transport.connect(&address, &options).await });
    let pending = listener.accept().await.unwrap();
    let (client, server) = link(factory, &*listener).await;
    say(&client, &server, "the second is through").await;
    let (client, server) = (slow.await.unwrap(), pending.await);
    say(&client.unwrap(), &server.unwrap(), "the first too").await;
}

/// `Link::receive`: dropping the future ends the receiving side of the link for good, but not its sending
/// side. A later receive returns the right message or an error.
pub async fn a_dropped_receive_leaves_the_sending_side(factory: &Factory) {
    let pair = factory.pair().await;
    let sink = Recorder::new(0);
    let mut receive = pair.client.receive(&sink);
    assert!(poll_once(&mut receive).await.is_pending());
    drop(receive);
    say(&pair.client, &pair.server, "sending goes on").await;
    let sent = pair.server.send_control(Bytes::from_static(b"for whom")).await;
    pair.server.close().await;
    match pair.client.receive(&sink).await {
        Ok(message) => assert!(sent.is_ok() && message == "for whom"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Closed, "{error}"),
    }
}
