//! Tests of control messages: small, reliable, in order.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_transport::{ErrorKind, Link};
use thalweg_wire::MAX_CONTROL;

use crate::factory::expect_error;
use crate::pair::{link, poll_once, say};
use crate::{Factory, Pump, Recorder};

/// `Link::send_control`: both ends send messages of many lengths at the same time. All of them arrive, in the
/// order of sending.
pub async fn messages_arrive_both_ways_in_order(factory: &Factory) {
    let pair = factory.pair().await;
    let message = |n: u32| Bytes::from(vec![n as u8; (n * n % 5000) as usize]);
    let send = |link: Arc<dyn Link>| async move {
        for n in 0..200 {
            link.send_control(message(n)).await.unwrap();
        }
    };
    let expect = |link: Arc<dyn Link>| async move {
        let sink = Recorder::new(0);
        for n in 0..200 {
            assert!(link.receive(&sink).await.unwrap() == message(n), "message {n} differs");
        }
    };
    let (a, b) = (pair.client.clone(), pair.server.clone());
    tokio::join!(send(a.clone()), expect(b.clone()), send(b), expect(a));
}

/// `Link::send_control`: an empty message arrives like any other.
pub async fn an_empty_message_is_a_message(factory: &Factory) {
    let pair = factory.pair().await;
    say(&pair.client, &pair.server, "").await;
    say(&pair.server, &pair.client, "").await;
}

/// A message of [`MAX_CONTROL`] bytes arrives.
pub async fn a_message_of_the_greatest_length_arrives(factory: &Factory) {
    let pair = factory.pair().await;
    let message = Bytes::from(vec![0xa5; MAX_CONTROL as usize]);
    let sink = Recorder::new(0);
    let (sent, received) =
        tokio::join!(pair.client.send_control(message.clone()), pair.server.receive(&sink));
    sent.unwrap();
    assert!(received.unwrap() == message);
}

/// A message longer than [`MAX_CONTROL`] is refused before any of it is sent, and the link stays usable.
pub async fn a_longer_message_is_refused_and_the_link_goes_on(factory: &Factory) {
    let pair = factory.pair().await;
    let message = Bytes::from(vec![0; MAX_CONTROL as usize + 1]);
    expect_error(pair.client.send_control(message).await, &[ErrorKind::Unsupported]);
    say(&pair.client, &pair.server, "still here").await;
}

/// `Link::send_control`: dropping the future may break this link, and has no other effect. The peer gets
/// whole messages or the end of the link, and other links continue.
pub async fn dropping_a_send_breaks_at_most_the_link(factory: &Factory) {
    let pair = factory.pair().await;
    let (client, server) = link(factory, &*pair.listener).await;
    let large = Bytes::from(vec![7; MAX_CONTROL as usize]);
    let mut dropped = pair.client.send_control(large.clone());
    assert!(!matches!(poll_once(&mut dropped).await, std::task::Poll::Ready(Err(_))));
    drop(dropped);
    let mut pump = Pump::start(&pair.server, &Arc::new(Recorder::new(0)));
    let sent = pair.client.send_control(Bytes::from_static(b"after")).await;
    pair.client.close().await;
    let mut received = Vec::new();
    let end = loop {
        match pump.next().await {
            Ok(message) => received.push(message),
            Err(error) => break error,
        }
    };
    assert_eq!(end.kind(), ErrorKind::Closed, "{end}");
    assert!(received.iter().all(|m| *m == large || m == "after"), "a message was cut or mixed");
    sent.map_or_else(|error| assert_eq!(error.kind(), ErrorKind::Closed, "{error}"), drop);
    say(&client, &server, "another link").await;
}
