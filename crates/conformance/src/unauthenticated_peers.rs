//! Tests about peers that have not proved their identity: they may send little, and are evicted first.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_transport::{AdmissionQueue, Bounds, ErrorKind, Link, Options, Result};
use thalweg_wire::{MAX_CONTROL, MAX_HELLO};

use crate::factory::expect_error;
use crate::pair::{link, say, transfer, Pair};
use crate::{outgoing, pattern, update_id, Factory, Recorder};

/// Errors that may end a link whose peer sends too much.
const TOO_MUCH: &[ErrorKind] = &[ErrorKind::Corrupt, ErrorKind::Closed];
/// Size of a small admission queue. A link with several connections takes several places of it.
const FEW: usize = 32;

/// A copy of the factory whose listener has an admission queue for at most `unauthenticated_peers`
/// unauthenticated peers.
fn with_admission_queue(factory: &Factory, unauthenticated_peers: usize) -> Factory {
    let bounds = Bounds {
        total: unauthenticated_peers,
        share: unauthenticated_peers,
        timeout: Duration::from_secs(60),
    };
    let listen = Options { admission_queue: Some(AdmissionQueue::new(bounds)), ..factory.listen.clone() };
    factory.clone().options(listen, factory.connect.clone())
}

/// Sends something that the server must refuse. Asserts that the server's receive fails.
async fn refused(server: &Arc<dyn Link>, sink: &Recorder, send: impl Future<Output = ()>) {
    expect_error(receive_once(server, sink, send).await, TOO_MUCH);
}

/// Returns what the server receives first while `send` runs. Then closes the link.
async fn receive_once(
    server: &Arc<dyn Link>,
    sink: &Recorder,
    send: impl Future<Output = ()>,
) -> Result<Bytes> {
    let received = async {
        let outcome = server.receive(sink).await;
        server.close().await; // also ends `send`, if it still waits
        outcome
    };
    let ((), received) = tokio::join!(send, received);
    received
}

/// `Link::admit`: before that call, a link that a listener with an admission queue has accepted takes control
/// messages of at most `MAX_HELLO` bytes.
pub async fn an_unauthenticated_peer_may_say_who_it_is(factory: &Factory) {
    let pair = with_admission_queue(factory, FEW).pair().await;
    let hello = Bytes::from(vec![7; MAX_HELLO as usize]);
    let sink = Recorder::new(0);
    let (sent, received) = tokio::join!(pair.client.send_control(hello.clone()), pair.server.receive(&sink));
    sent.unwrap();
    assert_eq!(received.unwrap(), hello);
    say(&pair.server, &pair.client, "who are you").await;
}

/// `Link::admit`: before that call, a longer message breaks the link.
pub async fn an_unauthenticated_peer_may_say_no_more(factory: &Factory) {
    let factory = with_admission_queue(factory, FEW);
    let Pair { listener, client, server } = factory.pair().await;
    say(&client, &server, "hello").await;
    for length in [MAX_HELLO as usize + 1, MAX_CONTROL as usize] {
        let (client, server) = link(&factory, &*listener).await;
        let sink = Recorder::new(0);
        let send = async { drop(client.send_control(vec![7; length].into()).await) };
        refused(&server, &sink, send).await;
    }
}

/// `Link::admit`: before that call, the server's sink gets no chunk. A chunk breaks the link, or is dropped
/// if chunks arrive as datagrams.
pub async fn an_unauthenticated_peer_sends_no_chunks(factory: &Factory) {
    let pair = with_admission_queue(factory, FEW).pair().await;
    // Several chunks, so that one arrives even if some are lost.
    let update = outgoing(&pattern(64 << 10, 1), update_id(1), factory.chunk(4096));
    let sink = Recorder::new(0);
    if factory.capabilities().datagrams {
        let send = async {
            // A sender that retransmits unacknowledged chunks ends only with the link.
            let message = pair.client.send_control(Bytes::from_static(b"after"));
            let _ = tokio::join!(pair.client.send_update(&update), message);
        };
        assert_eq!(receive_once(&pair.server, &sink, send).await.unwrap(), "after");
    } else {
        refused(&pair.server, &sink, async { drop(pair.client.send_update(&update).await) }).await;
    }
    let seen = sink.seen();
    assert!(seen.placed.is_empty() && seen.refused == 0 && seen.begun == 0, "{seen:?}");
}

/// After `admit` a link works as it does without an admission queue.
pub async fn an_admitted_peer_sends_what_it_likes(factory: &Factory) {
    let pair = with_admission_queue(factory, FEW).pair().await;
    say(&pair.client, &pair.server, "hello").await;
    pair.server.admit();
    pair.server.admit();
    let message = Bytes::from(vec![0xa5; MAX_CONTROL as usize]);
    let sink = Recorder::new(0);
    let (sent, received) =
        tokio::join!(pair.client.send_control(message.clone()), pair.server.receive(&sink));
    sent.unwrap();
    assert_eq!(received.unwrap(), message);
    let source = pattern(64 << 10, 1);
    let update = outgoing(&source, update_id(1), factory.chunk(4096));
    transfer(&pair.client, &pair.server, &update, &source).await;
}

/// When the admission queue is full, the oldest unauthenticated peer is evicted, and an admitted peer stays.
pub async fn an_unauthenticated_peer_gives_way_to_others(factory: &Factory) {
    let factory = with_admission_queue(factory, FEW);
    let Pair { listener, client: member, server: admitted } = factory.pair().await;
    say(&member, &admitted, "hello").await;
    admitted.admit();
    let (silent, first) = link(&factory, &*listener).await;
    let first = tokio::spawn(until_it_ends(first));
    let mut others = Vec::new();
    for _ in 0..FEW {
        let (client, server) = link(&factory, &*listener).await;
        others.push((client, tokio::spawn(until_it_ends(server))));
    }
    expect_error(first.await.unwrap(), &[ErrorKind::Closed]);
    drop(silent);
    say(&member, &admitted, "still here").await;
    let (client, server) = link(&factory, &*listener).await;
    say(&client, &server, "the newcomer is let in").await;
}

/// Receives like a session, and closes the link when receiving ends.
async fn until_it_ends(server: Arc<dyn Link>) -> Result<Bytes> {
    let outcome = server.receive(&Recorder::new(0)).await;
    server.close().await;
    outcome
}

/// An unauthenticated peer that leaves frees its place in the queue.
pub async fn an_unauthenticated_peer_that_leaves_frees_its_place(factory: &Factory) {
    let factory = with_admission_queue(factory, FEW);
    let admission_queue = factory.listen.admission_queue.clone().unwrap();
    let pair = factory.pair().await;
    assert!(admission_queue.count() > 0);
    let sink = Recorder::new(0);
    pair.client.close().await;
    expect_error(pair.server.receive(&sink).await, &[ErrorKind::Closed]);
    pair.server.close().await;
    let Pair { listener: _listener, client, server } = pair;
    drop((client, server));
    while admission_queue.count() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
