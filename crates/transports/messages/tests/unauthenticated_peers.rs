//! Unauthenticated members: their number is limited, and each may have little in flight.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_messages::{Mailbox, Messages};
use thalweg_testkit::switchboard::{Habits, Switchboard};
use thalweg_transport::{
    Address, AdmissionQueue, Bounds, Error, ErrorKind, Link, Listener, Options, Transport,
};
use thalweg_wire::{MAX_CONTROL, MAX_HELLO};

const TIMEOUT: Duration = Duration::from_secs(30);
const UNAUTHENTICATED_PEERS: usize = 16;

struct World {
    board: Switchboard,
    transport: Messages<Switchboard>,
    listener: Box<dyn Listener>,
    admission_queue: AdmissionQueue,
}

impl World {
    async fn new() -> Self {
        let board = Switchboard::new(Habits::default());
        let transport = Messages::new(board.clone());
        let admission_queue = AdmissionQueue::new(Bounds {
            total: UNAUTHENTICATED_PEERS,
            share: UNAUTHENTICATED_PEERS,
            timeout: TIMEOUT,
        });
        let options = Options { admission_queue: Some(admission_queue.clone()), ..Options::default() };
        let listener = transport.listen(&Address::parse("board://queue:0").unwrap(), &options).await.unwrap();
        Self { board, transport, listener, admission_queue }
    }

    /// Returns the next link. An error is one of a member that was evicted.
    async fn accept(&self) -> Arc<dyn Link> {
        loop {
            if let Ok(link) = self.listener.accept().await.unwrap().await {
                return link;
            }
        }
    }

    async fn link(&self) -> (Arc<dyn Link>, Arc<dyn Link>) {
        let address = self.listener.address();
        let connect = async {
            loop {
                match self.transport.connect(&address, &Options::default()).await {
                    Ok(link) => return link,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
                }
            }
        };
        tokio::join!(connect, self.accept())
    }

    /// Sends a hello in the name of a member that does not exist.
    fn forge_hello(&self, number: u64) {
        let member = u128::from(number) << 8 | 1;
        let head =
            [b"tm\x01\x01".as_slice(), &[0; 8], &member.to_le_bytes(), &u64::MAX.to_le_bytes(), &[0; 32]];
        self.board.forge(Mailbox::Listener, Bytes::from(head.concat()));
    }

    /// Waits until the listener has read its mailbox.
    async fn read(&self) {
        while self.board.held(Mailbox::Listener) > 0 {
            tokio::task::yield_now().await;
        }
    }
}

async fn end_of(link: &Arc<dyn Link>) -> Error {
    let sink = Recorder::new(0);
    loop {
        if let Err(error) = link.receive(&sink).await {
            return error;
        }
    }
}

/// Anybody who can write to the listener's mailbox may send any number of hellos. Members that send nothing
/// more fill the admission queue and no more, so a client still gets in.
#[tokio::test]
async fn of_those_that_only_say_hello_there_are_few_and_a_client_gets_in() {
    let world = World::new().await;
    for number in 0..2_000 {
        world.forge_hello(number);
        if number % 100 == 0 {
            world.read().await;
        }
        assert!(world.admission_queue.count() <= UNAUTHENTICATED_PEERS);
    }
    let (client, server) = world.link().await;
    client.send_control(Bytes::from_static(b"it is me")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "it is me");
    server.admit();
    for number in 2_000..4_000 {
        world.forge_hello(number);
    }
    world.read().await;
    client.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "still here");
}

/// Nobody receives on these links. They hold only what an unauthenticated member may have in flight.
#[tokio::test]
async fn an_unauthenticated_peer_has_little_under_way() {
    let world = World::new().await;
    for length in [MAX_HELLO as usize + 1, 64 << 10, MAX_CONTROL as usize] {
        let (client, server) = world.link().await;
        let sent = async { while client.send_control(vec![7; length].into()).await.is_ok() {} };
        let received = async {
            // Sends until the link has ended.
            sent.await;
            end_of(&server).await
        };
        assert_eq!(received.await.kind(), ErrorKind::Corrupt);
    }
    let (client, server) = world.link().await;
    let source = pattern(4 << 20, 1);
    let sent = client.send_update(&outgoing(&source, update_id(1), 64 << 10)).await;
    let error = end_of(&server).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    // The update may have gone out before the end of the link was known.
    drop(sent);
}

/// Many small messages do not get around the limit.
#[tokio::test]
async fn many_small_messages_are_as_much_as_a_large_one() {
    let world = World::new().await;
    let (client, server) = world.link().await;
    let mut sent = 0;
    while client.send_control(Bytes::from_static(b"and")).await.is_ok() {
        sent += 1;
    }
    assert!(sent < 20_000, "{sent} messages went out");
    assert_eq!(end_of(&server).await.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn who_is_admitted_sends_what_it_likes() {
    let world = World::new().await;
    let (client, server) = world.link().await;
    server.admit();
    let source = pattern(24 << 20, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let mut pump = Pump::start(&server, &recorder);
    let message = Bytes::from(vec![5; MAX_CONTROL as usize]);
    client.send_update(&outgoing(&source, update_id(1), 64 << 10)).await.unwrap();
    client.send_control(message.clone()).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), message);
    recorder.check(&source);
    assert_eq!(world.admission_queue.count(), 0);
}

/// Uses tokio's paused clock.
#[tokio::test(start_paused = true)]
async fn who_does_not_prove_himself_in_time_has_to_go() {
    let world = World::new().await;
    let (client, server) = world.link().await;
    let (other, admitted) = world.link().await;
    admitted.admit();
    let started = tokio::time::Instant::now();
    let error = end_of(&server).await;
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(started.elapsed() <= TIMEOUT, "{:?}", started.elapsed());
    assert_eq!(end_of(&client).await.kind(), ErrorKind::Closed);
    other.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(admitted.receive(&Recorder::new(0)).await.unwrap(), "still here");
}

/// Unauthenticated members do not count when the listener decides on a group send.
#[tokio::test]
async fn unauthenticated_peers_do_not_decide_how_updates_are_sent() {
    let world = World::new().await;
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let (client, server) = world.link().await;
        server.admit();
        pairs.push((client, server));
    }
    (0..10).for_each(|number| world.forge_hello(number));
    world.read().await;
    let servers: Vec<_> = pairs.iter().map(|(_, server)| server.clone()).collect();
    let source = pattern(1 << 20, 1);
    let recorders: Vec<_> = pairs.iter().map(|_| Arc::new(Recorder::new(source.len()))).collect();
    let _pumps: Vec<_> = pairs.iter().zip(&recorders).map(|((link, _), r)| Pump::start(link, r)).collect();
    let update = outgoing(&source, update_id(1), 64 << 10);
    world.listener.send_group(&servers, &update, &|_, sent| assert!(sent.is_ok(), "{sent:?}")).await;
    assert_eq!(world.board.group_publishes(), 1 + 16, "that it begins, and its chunks");
    for recorder in recorders {
        recorder.until(|seen| seen.ranges.bytes() == 1 << 20).await;
        assert_eq!(recorder.seen().begun, 1);
    }
}
