//! Malformed datagrams and handshakes do no harm. The tests play the peer themselves.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use thalweg_conformance::{Recorder, GUARD};
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Link, Listener, Options, Transport};
use thalweg_udp::{Udp, MAX_CHUNK};
use thalweg_wire::{checksum, ChunkHeader, FrameHeader, LayoutHash};
use tokio::net::UdpSocket;

mod common;
use common::{link, listen};

const HEADER: usize = 84;

/// A connecting end whose datagrams the test writes.
struct Peer {
    control: Arc<dyn Link>,
    key: Vec<u8>,
    up: UdpSocket,
    down: UdpSocket,
}

async fn knock(listener: &dyn Listener) -> (Arc<dyn Link>, Bytes) {
    let address = Address { scheme: "tcp".into(), ..listener.address() };
    let control = Tcp.connect(&address, &Options::default()).await.unwrap();
    let offer = control.receive(&Recorder::new(0)).await.unwrap();
    assert_eq!(&offer[..5], b"tlwu\x03");
    (control, offer)
}

async fn socket_to(port: &[u8]) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(("127.0.0.1", u16::from_le_bytes([port[0], port[1]]))).await.unwrap();
    socket
}

fn datagram(key: &[u8], kind: u8, position: u64, rest: &[u8]) -> Vec<u8> {
    [key, &[kind, 0, 0, 0, 0, 0, 0, 0], &position.to_le_bytes(), rest].concat()
}

/// Sets the datagram's message count: that many control messages were sent before it.
fn after(message_count: u8, mut datagram: Vec<u8>) -> Vec<u8> {
    datagram[18] = message_count;
    datagram
}

fn chunk(key: &[u8], offset: u64, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset, length };
    let header = FrameHeader::chunk(chunk, checksum(payload)).encode();
    datagram(key, 1, 0, &[&header[..], payload].concat())
}

async fn by_hand(listener: &dyn Listener) -> (Peer, Arc<dyn Link>) {
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let shake = async {
        let (control, offer) = knock(listener).await;
        let answer = [&b"tlwu\x03"[..], &1_000_000_u64.to_le_bytes()].concat();
        control.send_control(answer.into()).await.unwrap();
        let key = offer[5..21].to_vec();
        let (up, down) = (socket_to(&offer[22..24]).await, socket_to(&offer[24..26]).await);
        // First send datagrams from a stranger and hellos that are wrong.
        let stranger = socket_to(&offer[22..24]).await;
        for wrong in [datagram(&[0; 16], 4, 0, &[]), datagram(&key, 4, 1, &[]), vec![], vec![0; 3000]] {
            stranger.send(&wrong).await.unwrap();
        }
        up.send(&datagram(&key, 4, 0, &[])).await.unwrap();
        down.send(&datagram(&key, 4, 1, &[])).await.unwrap();
        assert_eq!(control.receive(&Recorder::new(0)).await.unwrap(), &b"tlwu\x03"[..]);
        Peer { control, key, up, down }
    };
    tokio::join!(shake, accept)
}

/// A reproducible random sequence (xorshift64).
struct Rng(u64);

impl Rng {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.roll() % (most + 1);
        (0..length).map(|_| self.roll() as u8).collect()
    }
}

/// The `n`-th damaged datagram.
fn damaged(n: usize, key: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut good = chunk(key, rng.roll() % 1000, &[7; 50]);
    match n % 6 {
        0 => rng.bytes(2_000),
        1 => [key, &rng.bytes(1_500)].concat(),
        2 => datagram(key, rng.roll() as u8, rng.roll(), &rng.bytes(200)),
        3 => {
            // Never damage the flag, the message count and the position: they may have any value.
            let at = [0, 15, 16, 32, 40, 50, 60, 70, HEADER - 1][rng.roll() as usize % 9];
            good[at] ^= 1 << (rng.roll() % 8);
            good
        }
        4 => good[..rng.roll() as usize % good.len()].to_vec(),
        _ => chunk(key, u64::MAX - 10, &vec![1; MAX_CHUNK as usize + 1]),
    }
}

#[tokio::test]
async fn random_datagrams_are_dropped() {
    let listener = listen(&Udp, &Options::default()).await;
    let (peer, server) = by_hand(&*listener).await;
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let sink = Recorder::new(2_000);
    let mut receive = server.receive(&sink);
    for round in 0..40_u64 {
        for n in 0..60 {
            for socket in [&peer.up, &peer.down] {
                // An ICMP message about an earlier datagram may cause an error here.
                let _ = socket.send(&damaged(n, &peer.key, &mut rng)).await;
            }
        }
        peer.up.send(&chunk(&peer.key, round * 50, &[round as u8; 50])).await.unwrap();
        let outcome = sink.until(|seen| seen.stored.len() as u64 == round + 1);
        tokio::select! {
            biased;
            ended = &mut receive => assert!(ended.is_err(), "nobody has sent a message"),
            outcome = tokio::time::timeout(GUARD / 4, outcome) => outcome.unwrap(),
        }
    }
    peer.control.send_control(Bytes::from_static(b"end")).await.unwrap();
    peer.up.send(&after(1, datagram(&peer.key, 2, 0, &[]))).await.unwrap();
    assert_eq!(receive.await.unwrap(), "end");
    assert_eq!(sink.seen().placed.len(), 40, "a damaged datagram was given a place");
    assert_eq!(sink.seen().ranges.bytes(), 2_000);
}

#[tokio::test]
async fn a_damaged_payload_is_reported_and_the_link_goes_on() {
    let listener = listen(&Udp, &Options::default()).await;
    let (peer, server) = by_hand(&*listener).await;
    let mut damaged = chunk(&peer.key, 0, &[1; 100]);
    damaged[HEADER + 7] ^= 1;
    peer.up.send(&damaged).await.unwrap();
    peer.up.send(&chunk(&peer.key, 0, &[2; 100])).await.unwrap();
    let sink = Recorder::new(100);
    let mut receive = server.receive(&sink);
    tokio::select! {
        () = sink.until(|seen| seen.stored.len() == 2) => {}
        outcome = &mut receive => assert!(outcome.is_err(), "nobody has sent a message"),
    }
    assert!(sink.seen().stored[0].1.is_err() && sink.seen().stored[1].1.is_ok());
    assert_eq!(&sink.bytes(thalweg_wire::Range::new(0, 100))[..], &[2; 100]);
}

/// Chunks arrive before the message that announces them, more of them than the receiver keeps. They wait, and
/// none is lost.
#[tokio::test]
async fn chunks_that_overtake_a_message_wait_for_it() {
    let options = Options { receive_buffer: Some(4 << 20), ..Options::default() };
    let Ok(listener) = Udp.listen(&Address::parse("udp://127.0.0.1:0").unwrap(), &options).await else {
        return println!("skipped: net.core.rmem_max is less than 4 MiB");
    };
    let (peer, server) = by_hand(&*listener).await;
    let chunks = 1500;
    let recorder = Recorder::new(chunks * 1000);
    let mut receive = server.receive(&recorder);
    for n in 0..chunks {
        peer.up.send(&after(1, chunk(&peer.key, n * 1000, &[n as u8; 1000]))).await.unwrap();
        if n % 10 == 0 {
            let outcome =
                std::future::poll_fn(|c| std::task::Poll::Ready(receive.as_mut().poll(c).is_ready())).await;
            assert!(!outcome, "nobody has sent a message");
        }
    }
    assert_eq!(recorder.seen().placed.len(), 0, "given before its message");
    peer.control.send_control(Bytes::from_static(b"begin")).await.unwrap();
    assert_eq!(receive.await.unwrap(), "begin");
    assert_eq!(recorder.seen().placed.len(), 0, "given before its message was taken");
    let mut rest = server.receive(&recorder);
    tokio::select! {
        biased;
        () = recorder.until(|seen| seen.stored.len() as u64 == chunks) => {}
        outcome = &mut rest => assert!(outcome.is_err(), "there is no second message"),
    }
    assert_eq!(recorder.seen().ranges.bytes(), chunks * 1000);
}

/// A message arrives before chunks that were sent before it. It waits for a datagram that was sent after it.
#[tokio::test]
async fn a_message_waits_for_what_was_sent_before_it() {
    let listener = listen(&Udp, &Options::default()).await;
    let (peer, server) = by_hand(&*listener).await;
    peer.control.send_control(Bytes::from_static(b"end")).await.unwrap();
    let recorder = Recorder::new(100);
    let mut receive = server.receive(&recorder);
    peer.up.send(&chunk(&peer.key, 0, &[1; 50])).await.unwrap();
    tokio::select! {
        biased;
        () = recorder.until(|seen| seen.stored.len() == 1) => {}
        outcome = &mut receive => assert!(outcome.is_err(), "the end came first"),
    }
    peer.up.send(&chunk(&peer.key, 50, &[2; 50])).await.unwrap();
    peer.up.send(&after(1, datagram(&peer.key, 2, 0, &[]))).await.unwrap();
    assert_eq!(receive.await.unwrap(), "end");
    assert_eq!(recorder.seen().ranges.bytes(), 100);
    // After the peer has closed the link, the message waits for nothing.
    peer.control.send_control(Bytes::from_static(b"last")).await.unwrap();
    peer.control.close().await;
    assert_eq!(server.receive(&recorder).await.unwrap(), "last");
}

async fn refused(listener: &dyn Listener, answer: Option<&'static [u8]>) -> Error {
    let knocking = async {
        let knocked = knock(listener).await;
        if let Some(answer) = answer {
            knocked.0.send_control(Bytes::from_static(answer)).await.unwrap();
        }
        knocked
    };
    let (_knocked, accepted) = tokio::join!(knocking, listener.accept());
    accepted.unwrap().await.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn a_false_handshake_is_refused() {
    let options = Options { connect_timeout_ms: 100, ..Options::default() };
    let listener = listen(&Udp, &options).await;
    for answer in [&b""[..], b"tlwu\x04", b"tlwu\x04........", b"tlwu\x03........x", b"GET / HTTP/1.1\r\n"] {
        assert_eq!(refused(&*listener, Some(answer)).await.kind(), ErrorKind::Corrupt);
    }
    assert_eq!(refused(&*listener, None).await.kind(), ErrorKind::Timeout);
    let no_datagrams = refused(&*listener, Some(b"tlwu\x03\0\0\x10\0\0\0\0\0")).await;
    assert_eq!(no_datagrams.kind(), ErrorKind::Timeout);
    assert!(no_datagrams.to_string().contains("firewall"), "{no_datagrams}");
    let (client, server) = link(&*listener, &Options::default()).await;
    client.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "still here");
}

#[tokio::test]
async fn a_server_of_another_transport_is_no_udp_server() {
    let address = Address::parse("tcp://127.0.0.1:0").unwrap();
    let listener = Tcp.listen(&address, &Options::default()).await.unwrap();
    let greet = async {
        let link = listener.accept().await.unwrap().await.unwrap();
        link.send_control(Bytes::from_static(b"welcome")).await.unwrap();
        link
    };
    let to = Address { scheme: "udp".into(), ..listener.address() };
    let options = Options::default();
    let (_server, connected) = tokio::join!(greet, Udp.connect(&to, &options));
    let error = connected.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("not that of a udp link"), "{error}");
}

/// If a datagram brings a message before TCP does, the link delivers it once and in order.
#[tokio::test]
async fn a_message_is_delivered_once_by_datagram_or_tcp() {
    let listener = listen(&Udp, &Options::default()).await;
    let (peer, link) = by_hand(&*listener).await;
    let message = |number: u8, text: &[u8]| after(number, datagram(&peer.key, 6, 0, text));
    // Message 2 is not taken before message 1. Message 1 is taken once.
    for sent in [message(2, b"two"), message(1, b"one"), message(1, b"one")] {
        peer.up.send(&sent).await.unwrap();
    }
    assert_eq!(link.receive(&Recorder::new(0)).await.unwrap(), &b"one"[..]);
    // The control connection brings message 1 again, and message 2.
    for text in ["one", "two"] {
        peer.control.send_control(text.into()).await.unwrap();
    }
    peer.up.send(&after(2, datagram(&peer.key, 2, 0, &[]))).await.unwrap();
    assert_eq!(link.receive(&Recorder::new(0)).await.unwrap(), &b"two"[..]);
    // Message 2 is a duplicate now. Message 3 is taken.
    for sent in [message(2, b"two"), message(3, b"three")] {
        peer.up.send(&sent).await.unwrap();
    }
    assert_eq!(link.receive(&Recorder::new(0)).await.unwrap(), &b"three"[..]);
    // The link acknowledges how many messages it has taken.
    let (mut taken, mut bytes) = (0, [0; 64]);
    while taken < 3 {
        let length = peer.up.recv(&mut bytes).await.unwrap();
        if length == 32 && bytes[16] == 7 {
            taken = taken.max(bytes[18]);
        }
    }
}

/// The link repeats a message in datagrams until the peer acknowledges it.
#[tokio::test]
async fn a_message_is_repeated_until_it_is_acknowledged() {
    let listener = listen(&Udp, &Options::default()).await;
    let (peer, link) = by_hand(&*listener).await;
    link.send_control("hear me".into()).await.unwrap();
    let (mut times, mut bytes) = (0, [0; 64]);
    while times < 3 {
        let length = peer.down.recv(&mut bytes).await.unwrap();
        if bytes[16] == 6 {
            assert_eq!((bytes[18], &bytes[32..length]), (1, &b"hear me"[..]));
            times += 1;
        }
    }
    peer.down.send(&after(1, datagram(&peer.key, 7, 0, &[]))).await.unwrap();
}
