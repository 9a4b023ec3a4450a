//! Connections of unauthenticated peers: how many there may be, how much they may send, how long they stay.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::io::ErrorKind as Io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_conformance::Recorder;
use thalweg_transport::{AdmissionQueue, Bounds, ErrorKind, Link, Listener, Options, Transport};
use thalweg_zmq::Zmq;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

mod common;
use common::{listen, options};

const PATTERNS: [&str; 4] = ["router", "pubsub", "pushpull", "reqrep"];
/// Maximum number of places in the admission queue that one client takes: for its connections, itself and its
/// line.
const PLACES: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(60);

fn admission_queue(pattern: &str, unauthenticated_peers: usize) -> (AdmissionQueue, Options) {
    let admission_queue = AdmissionQueue::new(Bounds {
        total: unauthenticated_peers,
        share: unauthenticated_peers,
        timeout: TIMEOUT,
    });
    (admission_queue.clone(), Options { admission_queue: Some(admission_queue), ..options(pattern) })
}

async fn dial(listener: &dyn Listener) -> TcpStream {
    TcpStream::connect(("127.0.0.1", listener.address().port.unwrap())).await.unwrap()
}

/// Waits until the listener closes the connection.
async fn hung_up(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).await.is_ok_and(|got| got > 0) {}
}

/// The handshake of a DEALER with this identity, without encryption (ZMTP 3.1, RFC 37).
fn ready(identity: &[u8]) -> Vec<u8> {
    let property = |name: &str, value: &[u8]| {
        [&[name.len() as u8], name.as_bytes(), &(value.len() as u32).to_be_bytes(), value].concat()
    };
    let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    greeting.extend_from_slice(b"NULL");
    greeting.resize(64, 0);
    let body = [property("Socket-Type", b"DEALER"), property("Identity", identity)].concat();
    let command = [&[5], &b"READY"[..], &body].concat();
    [&greeting[..], &[4, command.len() as u8], &command].concat()
}

/// Connects a client that sends a message and is admitted. Returns its end and the listener's.
async fn admitted(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let connect = async {
        let client = Zmq::default().connect(&listener.address(), options).await.unwrap();
        client.send_control(Bytes::from_static(b"it is me")).await.unwrap();
        client
    };
    let accept = async {
        loop {
            let Ok(link) = listener.accept().await.unwrap().await else { continue };
            if link.receive(&Recorder::new(0)).await.is_ok_and(|message| message == "it is me") {
                link.admit();
                return link;
            }
        }
    };
    tokio::join!(connect, accept)
}

async fn say(from: &Arc<dyn Link>, to: &Arc<dyn Link>) {
    from.send_control(Bytes::from_static(b"unharmed")).await.unwrap();
    assert_eq!(to.receive(&Recorder::new(0)).await.unwrap(), "unharmed");
}

/// Silent connections fill the admission queue and no more: the oldest are closed. A client still gets in,
/// and its link survives further connections.
#[tokio::test]
async fn silent_connections_give_way_and_a_client_gets_in() {
    const SILENT: usize = 100;
    for pattern in PATTERNS {
        let (admission_queue, listening) = admission_queue(pattern, 2 * PLACES);
        let listener = listen(&listening).await;
        let mut silent = Vec::new();
        for _ in 0..SILENT {
            silent.push(dial(&*listener).await);
        }
        let last = silent.split_off(SILENT - 2 * PLACES);
        for stream in silent {
            hung_up(stream).await;
        }
        let (client, server) = admitted(&*listener, &options(pattern)).await;
        say(&client, &server).await;
        let mut more = Vec::new();
        for _ in 0..SILENT {
            more.push(dial(&*listener).await);
        }
        for stream in last {
            hung_up(stream).await;
        }
        say(&server, &client).await;
        say(&client, &server).await;
        assert!(admission_queue.count() <= admission_queue.bounds().total, "{pattern}");
    }
}

/// A peer shakes hands and then sends endless parts of one message. libzmq would keep them all.
#[tokio::test]
async fn a_message_without_end_ends_its_own_connection() {
    let (_, listening) = admission_queue("router", 2 * PLACES);
    let listener = listen(&listening).await;
    let (client, server) = admitted(&*listener, &options("router")).await;
    for size in [0_usize, 1, 200, 1 << 20] {
        let mut stream = dial(&*listener).await;
        stream.write_all(&ready(&[0x81; 16])).await.unwrap();
        // Read the listener's greeting, and its READY with socket type and no identity.
        stream.read_exact(&mut [0; 64 + 28]).await.unwrap();
        // A long frame, with the flag that more parts follow.
        let part = [&[3], &(size as u64).to_be_bytes()[..], &vec![7; size]].concat();
        let ended = loop {
            if let Err(error) = stream.write_all(&part).await {
                break error;
            }
        };
        assert!(matches!(ended.kind(), Io::BrokenPipe | Io::ConnectionReset), "{ended}");
    }
    say(&client, &server).await;
}

/// A peer that only shakes hands is evicted after the time limit. The test advances the clock.
#[tokio::test]
async fn an_unauthenticated_peer_has_to_go_in_time() {
    let pattern = "router";
    let (admission_queue, listening) = admission_queue(pattern, 4 * PLACES);
    let listener = listen(&listening).await;
    let (client, server) = admitted(&*listener, &options(pattern)).await;
    let mut streams = vec![dial(&*listener).await, dial(&*listener).await];
    streams[1].write_all(&ready(&[0x82; 16])).await.unwrap();
    let (silent, its_server) = common::link(&*listener, &options(pattern)).await;
    tokio::time::pause();
    tokio::time::advance(TIMEOUT).await;
    tokio::time::resume();
    for stream in streams {
        hung_up(stream).await;
    }
    for link in [&silent, &its_server] {
        let error = link.receive(&Recorder::new(0)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    say(&client, &server).await;
    drop((silent, its_server));
    while admission_queue.count() > 0 {
        tokio::task::yield_now().await;
    }
}

/// An admitted client has no place in the admission queue, however many connections it has.
#[tokio::test]
async fn who_is_admitted_is_no_unauthenticated_peer() {
    for pattern in ["router", "pubsub"] {
        let (admission_queue, listening) = admission_queue(pattern, 2 * PLACES);
        let listener = listen(&listening).await;
        let (client, server) = admitted(&*listener, &options(pattern)).await;
        say(&client, &server).await;
        assert_eq!(admission_queue.count(), 0, "{pattern}");
    }
}
