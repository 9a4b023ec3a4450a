//! What is quic's own: trust, the limits of unauthenticated peers, damaged input, and a new address.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_quic::Quic;
use thalweg_transport::{Address, AdmissionQueue, Bounds, ErrorKind, Link, NoChunks, Options, Transport};
use tokio::net::UdpSocket;

mod common;
use common::{link, listen, meet, plain, Trust};

fn queue(total: usize) -> (AdmissionQueue, Options) {
    let bounds = Bounds { total, share: total, timeout: Duration::from_secs(60) };
    let queue = AdmissionQueue::new(bounds);
    (queue.clone(), Options { admission_queue: Some(queue), ..plain() })
}

/// Asserts that both ends fail with a security error, and that the client's error contains `words`.
async fn refuse(listening: &Options, connecting: &Options, words: &[&str]) {
    let listener = listen(listening).await;
    let (client, server) = meet(&*listener, connecting).await;
    let (client, server) = (client.map(drop).unwrap_err(), server.map(drop).unwrap_err());
    assert_eq!(
        (client.kind(), server.kind()),
        (ErrorKind::Security, ErrorKind::Security),
        "{client}; {server}"
    );
    for word in words {
        assert!(client.to_string().contains(word), "{word:?} is not in: {client}");
    }
}

#[tokio::test]
async fn a_peer_without_certificates_and_one_with_them_do_not_meet() {
    let trust = Trust::new();
    refuse(&trust.listen(false), &plain(), &["set tls at both ends"]).await;
    refuse(&plain(), &trust.connect(None), &["set tls at both ends"]).await;
}

#[tokio::test]
async fn each_refusal_says_why() {
    let (trust, other) = (Trust::new(), Trust::new());
    refuse(&trust.listen(false), &other.connect(None), &["authority that is not trusted here"]).await;
    refuse(&trust.listen(true), &trust.connect(None), &["wants a certificate from us"]).await;
    let late = trust.connect(Some(trust.client("clinic-3", 0)));
    refuse(&trust.listen(true), &late, &["refused our certificate", "expired"]).await;
    let strange = trust.connect(Some(other.client("clinic-3", 1)));
    refuse(&trust.listen(true), &strange, &["does not trust the authority"]).await;
}

#[tokio::test]
async fn options_that_it_cannot_honour_are_refused() {
    let address = Address::parse("quic://127.0.0.1:0").unwrap();
    let streams = Options { streams: 2, ..Options::default() };
    let congestion = Options { congestion: Some("vegas".into()), ..Options::default() };
    for (options, word) in [(streams, "streams"), (congestion, "cubic, bbr, reno")] {
        let error = Quic.listen(&address, &options).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(word), "{error}");
    }
    for name in ["cubic", "bbr", "reno"] {
        let options = Options { congestion: Some(name.into()), ..plain() };
        let listener = listen(&options).await;
        let (client, _server) = link(&*listener, &options).await;
        assert_eq!(client.counters().congestion.as_deref(), Some(name));
    }
}

/// Several tasks of a session may close a link. All wait until the peer has the last message.
#[tokio::test]
async fn a_last_message_arrives_though_the_link_is_closed_twice_behind_it() {
    let listener = listen(&plain()).await;
    let (client, server) = link(&*listener, &plain()).await;
    server.send_control("bye".into()).await.unwrap();
    tokio::join!(server.close(), server.close());
    assert_eq!(client.receive(&NoChunks).await.unwrap(), "bye");
    assert_eq!(client.receive(&NoChunks).await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn bytes_that_are_no_quic_harm_nobody() {
    let (queue, options) = queue(8);
    let listener = listen(&options).await;
    let to = ("127.0.0.1", listener.address().port.unwrap());
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    // A long header of QUIC 1 whose rest is noise, and datagrams of all lengths up to one packet.
    let mut state = 7_u32;
    for length in 0..1500 {
        let mut noise: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        if length % 2 == 0 && length > 5 {
            noise[..5].copy_from_slice(&[0xc0, 0, 0, 0, 1]);
        }
        stranger.send_to(&noise, to).await.unwrap();
    }
    let (client, server) = link(&*listener, &plain()).await;
    client.send_control("hello".into()).await.unwrap();
    assert_eq!(server.receive(&NoChunks).await.unwrap(), "hello");
    assert_eq!(queue.count(), 1, "noise holds a place");
}

/// While the queue is crowded, a peer must show that it receives at its address. An honest one does.
#[tokio::test]
async fn a_crowded_queue_lets_in_who_receives_at_its_address() {
    let (queue, options) = queue(8);
    let listener = listen(&options).await;
    let mut ends = Vec::new();
    for _ in 0..6 {
        ends.push(link(&*listener, &plain()).await);
    }
    assert_eq!(queue.count(), 6);
    let (client, server) = ends.pop().unwrap();
    client.send_control("hello".into()).await.unwrap();
    assert_eq!(server.receive(&NoChunks).await.unwrap(), "hello");
}

/// The listener asks a peer to show its address by a Retry packet, and only while the queue is crowded.
#[tokio::test]
async fn a_retry_is_sent_while_the_queue_is_crowded_and_only_then() {
    let (queue, options) = queue(8);
    let listener = listen(&options).await;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.address().port.unwrap()));
    let mut ends = Vec::new();
    // A crowded queue has more than an eighth of its places taken: here, more than one.
    for (taken, retries) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        assert_eq!(queue.count(), taken);
        let (_unchanged, changes) = tokio::sync::watch::channel(false);
        let nat = Nat::open(to, changes).await;
        let through = Address::parse(&format!("quic://{}", nat.inside.local_addr().unwrap())).unwrap();
        let accept = async { listener.accept().await.unwrap().await.unwrap() };
        let client = plain();
        let (client, server) = tokio::join!(Quic.connect(&through, &client), accept);
        ends.push((client.unwrap(), server));
        assert_eq!(nat.retries.load(Ordering::SeqCst), retries, "with {taken} in the queue");
    }
}

/// Passes datagrams on between one client and a listener, from a socket that it can change in mid-transfer.
struct Nat {
    inside: Arc<UdpSocket>,
    /// Retry packets of the listener that it has passed on.
    retries: Arc<AtomicUsize>,
}

/// Whether a packet is a Retry: a long header of type 3, of QUIC 1 (RFC 9000, section 17.2.5).
fn is_retry(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first & 0xf0 == 0xf0) && packet.get(1..5) == Some(&[0, 0, 0, 1])
}

impl Nat {
    /// Starts to pass datagrams on, from another port after each change of `change`.
    async fn open(to: SocketAddr, change: tokio::sync::watch::Receiver<bool>) -> Self {
        Self::losing(to, change, usize::MAX).await
    }

    /// The same, but each `every`th datagram to the listener is lost.
    async fn losing(to: SocketAddr, mut change: tokio::sync::watch::Receiver<bool>, every: usize) -> Self {
        let inside = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap());
        let (socket, retries) = (inside.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = retries.clone();
        tokio::spawn(async move {
            let mut outside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
            let (mut client, mut count) = (None, 0_usize);
            loop {
                tokio::select! {
                    Ok((bytes, from)) = socket.recv_from(&mut up) => {
                        // One-byte datagrams test whether the port is closed. They come from another socket.
                        if bytes > 1 {
                            client = Some(from);
                        }
                        count += 1;
                        if !count.is_multiple_of(every) {
                            let _ = outside.send_to(&up[..bytes], to).await;
                        }
                    }
                    Ok((bytes, _)) = outside.recv_from(&mut down) => {
                        counted.fetch_add(usize::from(is_retry(&down[..bytes])), Ordering::SeqCst);
                        if let Some(client) = client {
                            let _ = socket.send_to(&down[..bytes], client).await;
                        }
                    }
                    Ok(()) = change.changed() => {
                        outside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
                    }
                }
            }
        });
        Self { inside, retries }
    }
}

/// A client whose address changes in mid-upload (RFC 9000, section 9) keeps its link, and the session sends
/// nothing again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_change_its_address_in_mid_upload() {
    let listener = listen(&plain()).await;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.address().port.unwrap()));
    let (change, changes) = tokio::sync::watch::channel(false);
    let nat = Nat::open(to, changes).await;
    let through = Address::parse(&format!("quic://{}", nat.inside.local_addr().unwrap())).unwrap();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let options = plain();
    let (client, server) = tokio::join!(Quic.connect(&through, &options), accept);
    let client: Arc<dyn Link> = client.unwrap();
    let source = pattern(8 << 20, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&server, &recorder);
    let update = outgoing(&source, update_id(1), 64 << 10);
    let sending = tokio::spawn({
        let (client, update) = (client.clone(), update.clone());
        async move { client.send_update(&update).await }
    });
    recorder.until(|seen| seen.stored.len() > 8).await;
    assert!(recorder.seen().ranges.bytes() < source.len(), "all of it had come before the change");
    change.send_replace(true);
    sending.await.unwrap().unwrap();
    recorder.until(|seen| seen.ranges.bytes() == source.len()).await;
    recorder.check(&source);
}

/// Lost bytes are sent again before later chunks. So chunks are completed nearly in order, and few are incomplete
/// when a link breaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_bytes_go_before_later_chunks() {
    const CHUNK: u32 = 64 << 10;
    let options = Options::default();
    let listener = listen(&options).await;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.address().port.unwrap()));
    let (_unchanged, changes) = tokio::sync::watch::channel(false);
    let nat = Nat::losing(to, changes, 20).await;
    let through = Address::parse(&format!("quic://{}", nat.inside.local_addr().unwrap())).unwrap();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let (client, server) = tokio::join!(Quic.connect(&through, &options), accept);
    let client: Arc<dyn Link> = client.unwrap();
    let source = pattern(8 << 20, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let _pump = Pump::start(&server, &recorder);
    client.send_update(&outgoing(&source, update_id(1), CHUNK)).await.unwrap();
    recorder.until(|seen| seen.ranges.bytes() == source.len()).await;
    recorder.check(&source);
    let order: Vec<usize> = recorder
        .seen()
        .stored
        .iter()
        .map(|(chunk, _)| chunk.range().start as usize / CHUNK as usize)
        .collect();
    // For each chunk: how many earlier ones were not complete yet when it was.
    let incomplete = order.iter().enumerate().map(|(at, &index)| {
        let complete = order[..at].iter().filter(|&&other| other < index).count();
        index - complete
    });
    // The receiver reads 16 streams at a time. Without an order of streams, nearly all of these wait for lost bytes.
    let most = incomplete.max().unwrap();
    assert!(most < 8, "{most} incomplete chunks");
}
