//! Unauthenticated peers: how many sockets and how much memory they get, and where datagrams go. The tests
//! play the connecting end themselves.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use socket2::SockRef;
use thalweg_conformance::Recorder;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, AdmissionQueue, Bounds, Link, Listener, Options, Transport};
use thalweg_udp::Udp;
use thalweg_wire::{checksum, ChunkHeader, FrameHeader, LayoutHash};
use tokio::net::UdpSocket;

mod common;
use common::{link, listen};

const MAGIC: &[u8] = b"tlwu\x03";
/// Descriptors of an unauthenticated peer: its control connection and two UDP sockets.
const SOCKETS: usize = 3;

fn admission_queue(unauthenticated_peers: usize) -> (AdmissionQueue, Options) {
    let bounds = Bounds {
        total: unauthenticated_peers,
        share: unauthenticated_peers,
        timeout: Duration::from_secs(60),
    };
    let admission_queue = AdmissionQueue::new(bounds);
    let options = Options { admission_queue: Some(admission_queue.clone()), ..Options::default() };
    (admission_queue, options)
}

/// Opens a control connection and receives the listener's first message.
async fn knock(listener: &dyn Listener) -> Option<(Arc<dyn Link>, Bytes)> {
    let address = Address { scheme: "tcp".into(), ..listener.address() };
    let control = Tcp.connect(&address, &Options::default()).await.ok()?;
    let offer = control.receive(&Recorder::new(0)).await.ok()?;
    Some((control, offer))
}

async fn socket_to(from: Ipv4Addr, port: &[u8]) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::from((from, 0))).await.unwrap();
    socket.connect(("127.0.0.1", u16::from_le_bytes([port[0], port[1]]))).await.unwrap();
    socket
}

fn datagram(key: &[u8], kind: u8, message_count: u8, position: u64, rest: &[u8]) -> Vec<u8> {
    [key, &[kind, 0, message_count, 0, 0, 0, 0, 0], &position.to_le_bytes(), rest].concat()
}

/// Shakes hands with datagrams from `from`, up to the listener's last message, which it does not read.
async fn shake(listener: &dyn Listener, from: Ipv4Addr) -> (Arc<dyn Link>, Vec<u8>, UdpSocket, UdpSocket) {
    let (control, offer) = knock(listener).await.unwrap();
    control.send_control([MAGIC, &1_000_000_u64.to_le_bytes()].concat().into()).await.unwrap();
    let key = offer[5..21].to_vec();
    let (up, down) = (socket_to(from, &offer[22..24]).await, socket_to(from, &offer[24..26]).await);
    up.send(&datagram(&key, 4, 0, 0, &[])).await.unwrap();
    down.send(&datagram(&key, 4, 0, 1, &[])).await.unwrap();
    (control, key, up, down)
}

async fn accept(listener: &dyn Listener) -> Arc<dyn Link> {
    loop {
        if let Ok(link) = listener.accept().await.unwrap().await {
            // Skip errors: each is of a peer that was evicted.
            return link;
        }
    }
}

/// Peers that only open the control connection fill their places in the admission queue and no more. The
/// oldest are evicted, so a client still gets in.
#[tokio::test]
async fn peers_that_only_connect_are_evicted_and_a_client_gets_in() {
    const KNOCKS: usize = 60;
    let (admission_queue, options) = admission_queue(4 * SOCKETS);
    let listener = listen(&Udp, &options).await;
    let knocking = async {
        let mut knocked = Vec::new();
        for _ in 0..KNOCKS {
            knocked.extend(knock(&*listener).await);
            assert!(admission_queue.count() <= admission_queue.bounds().total);
        }
        // All but the last few have been disconnected.
        let rest = knocked.split_off(KNOCKS.saturating_sub(4).min(knocked.len()));
        for (control, _) in &knocked {
            assert!(control.receive(&Recorder::new(0)).await.is_err());
        }
        drop(rest);
    };
    let accepting = async {
        let link = accept(&*listener).await;
        assert_eq!(link.receive(&Recorder::new(0)).await.unwrap(), "it is me");
        link.admit();
        link
    };
    let joining = async {
        knocking.await;
        let client = Udp.connect(&listener.address(), &Options::default()).await.unwrap();
        client.send_control(Bytes::from_static(b"it is me")).await.unwrap();
        client
    };
    let (client, server) = tokio::join!(joining, accepting);
    client.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "still here");
}

/// An unauthenticated peer has three descriptors, each with a place in the admission queue. An admitted peer
/// has no place there.
#[tokio::test]
async fn each_descriptor_of_an_unauthenticated_peer_has_a_place() {
    let (admission_queue, options) = admission_queue(10 * SOCKETS);
    let listener = listen(&Udp, &options).await;
    let (_client, server) = link(&*listener, &Options::default()).await;
    assert_eq!(admission_queue.count(), SOCKETS);
    server.admit();
    assert_eq!(admission_queue.count(), 0);
}

/// At an address from which no control connection came, a peer must answer a challenge. Until then only that goes
/// there, so a peer cannot direct datagrams at somebody else.
#[tokio::test]
async fn a_peer_at_another_address_than_its_control_connections_is_challenged() {
    let (_, options) = admission_queue(4 * SOCKETS);
    for options in [options, Options::default()] {
        let listener = listen(&Udp, &options).await;
        let meeting = async {
            let (control, _, up, down) = shake(&*listener, Ipv4Addr::new(127, 0, 0, 2)).await;
            for socket in [&up, &down] {
                let mut challenge = [0; 64];
                let length = socket.recv(&mut challenge).await.unwrap();
                assert_eq!((challenge[16], length), (8, 56));
                assert!(socket.try_recv(&mut [0; 64]).is_err(), "more was sent there");
                let mut answer = challenge[..length].to_vec();
                answer[16] = 9;
                socket.send(&answer).await.unwrap();
            }
            assert_eq!(control.receive(&Recorder::new(0)).await.unwrap(), MAGIC);
            control
        };
        let (_control, server) = tokio::join!(meeting, accept(&*listener));
        assert!(server.peer().address.starts_with("127.0.0.1:"));
    }
}

/// Sends probes that say that a message was sent, for as long as it is polled. The small kernel buffer soon
/// overflows; overflowing probes are lost.
async fn probe(up: &UdpSocket, key: &[u8]) -> std::convert::Infallible {
    loop {
        tokio::task::yield_now().await;
        up.send(&datagram(key, 2, 1, 0, &[])).await.unwrap();
    }
}

fn chunk(key: &[u8], message_count: u8, offset: u64, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset, length };
    let header = FrameHeader::chunk(chunk, checksum(payload)).encode();
    datagram(key, 1, message_count, 0, &[&header[..], payload].concat())
}

/// The receiver drops chunks of an unauthenticated peer, even those that claim to wait for a message. Its
/// messages still arrive.
#[tokio::test]
async fn chunks_of_an_unauthenticated_peer_are_not_stored() {
    let (_, options) = admission_queue(4 * SOCKETS);
    let listener = listen(&Udp, &options).await;
    let ((control, key, up, _down), server) =
        tokio::join!(shake(&*listener, Ipv4Addr::LOCALHOST), accept(&*listener));
    assert_eq!(control.receive(&Recorder::new(0)).await.unwrap(), MAGIC);
    let sink = Recorder::new(1 << 20);
    let mut receive = server.receive(&sink);
    for n in 0..1_000_u64 {
        let (message_count, length) = ((n % 3) as u8, 1 + n as usize * 37 % 1_000);
        up.send(&chunk(&key, message_count, n * 1_000, &vec![n as u8; length])).await.unwrap();
        let outcome =
            std::future::poll_fn(|c| std::task::Poll::Ready(receive.as_mut().poll(c).is_ready())).await;
        assert!(!outcome, "nobody has sent a message");
    }
    control.send_control(Bytes::from_static(b"it is me")).await.unwrap();
    tokio::select! {
        outcome = &mut receive => assert_eq!(outcome.unwrap(), "it is me"),
        never = probe(&up, &key) => match never {},
    }
    drop(receive);
    assert!(sink.seen().placed.is_empty() && sink.seen().refused == 0);
    server.admit();
    let mut receive = server.receive(&sink);
    up.send(&chunk(&key, 1, 0, &[1; 50])).await.unwrap();
    tokio::select! {
        biased;
        () = sink.until(|seen| seen.stored.len() == 1) => {}
        outcome = &mut receive => assert!(outcome.is_err(), "there is no second message"),
    }
    assert_eq!(sink.seen().ranges.bytes(), 50, "none of those before was kept");
}

/// The kernel's receive buffer has its full size only after the peer was admitted. The test asks a socket of
/// its own what size the kernel grants.
#[tokio::test]
async fn the_kernel_buffers_little_for_an_unauthenticated_peer() {
    let granted = |wanted: usize| {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        SockRef::from(&socket).set_recv_buffer_size(wanted).unwrap();
        SockRef::from(&socket).recv_buffer_size().unwrap()
    };
    let (_, options) = admission_queue(4 * SOCKETS);
    let listener = listen(&Udp, &options).await;
    let ((control, key, up, _down), server) =
        tokio::join!(shake(&*listener, Ipv4Addr::LOCALHOST), accept(&*listener));
    assert_eq!(control.receive(&Recorder::new(0)).await.unwrap(), MAGIC);
    // Nobody receives yet: the kernel keeps the chunks that fit and drops the others.
    let full = granted(8 << 20) as u64 / 2_000;
    for n in 0..full {
        up.send(&chunk(&key, 0, n * 500, &[1; 500])).await.unwrap();
    }
    server.admit();
    let sink = Recorder::new(full * 500);
    let mut receive = server.receive(&sink);
    control.send_control(Bytes::from_static(b"now")).await.unwrap();
    tokio::select! {
        outcome = &mut receive => assert_eq!(outcome.unwrap(), "now"),
        never = probe(&up, &key) => match never {},
    }
    drop(receive);
    let placed = sink.seen().placed.len();
    assert!(placed * 500 <= granted(16 << 10), "{placed} chunks of 500 bytes were held");
}
