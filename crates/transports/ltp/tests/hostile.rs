//! Datagrams that are not as they should be harm nobody. The peer is made by hand.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Recorder};
use thalweg_ltp::{Ltp, CHUNK};
use thalweg_proto::emulation::Dice;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, ErrorKind, Link, Listener, Options, Transport};
use thalweg_wire::{checksum, ChunkHeader, FrameHeader, LayoutHash};
use tokio::net::UdpSocket;

mod common;
use common::{link, listen};

/// A connecting end whose datagrams the test makes.
struct Peer {
    control: Arc<dyn Link>,
    key: Vec<u8>,
    up: UdpSocket,
    down: UdpSocket,
}

async fn socket_to(port: &[u8]) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(("127.0.0.1", u16::from_le_bytes([port[0], port[1]]))).await.unwrap();
    socket
}

fn datagram(key: &[u8], kind: u8, told: u8, number: u64, rest: &[u8]) -> Vec<u8> {
    [key, &[kind, 0, told, 0, 0, 0, 0, 0], &number.to_le_bytes(), rest].concat()
}

/// Chunk `index` of 100, of 10 bytes each.
fn chunk(key: &[u8], number: u64, index: u8) -> Vec<u8> {
    let payload = [index; 10];
    let offset = 10 * u64::from(index);
    let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset, length: 10 };
    let header = FrameHeader::chunk(chunk, checksum(&payload)).encode();
    datagram(key, 1, 0, number, &[&[1, 0, index, 0, 0, 99, 0, 0], &header[..], &payload].concat())
}

async fn by_hand(listener: &dyn Listener) -> (Peer, Arc<dyn Link>) {
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let shake = async {
        let address = Address { scheme: "tcp".into(), ..listener.address() };
        let control = Tcp.connect(&address, &Options::default()).await.unwrap();
        let offer = control.receive(&Recorder::new(0)).await.unwrap();
        assert_eq!(&offer[..5], b"tlwl\x01");
        let answer = [&b"tlwl\x01"[..], &1_000_000_u64.to_le_bytes()].concat();
        control.send_control(answer.into()).await.unwrap();
        let key = offer[5..21].to_vec();
        let (up, down) = (socket_to(&offer[22..24]).await, socket_to(&offer[24..26]).await);
        up.send(&datagram(&key, 4, 0, 0, &[])).await.unwrap();
        down.send(&datagram(&key, 4, 0, 1, &[])).await.unwrap();
        assert_eq!(control.receive(&Recorder::new(0)).await.unwrap(), &b"tlwl\x01"[..]);
        Peer { control, key, up, down }
    };
    tokio::join!(shake, accept)
}

/// A chunk or acknowledgement with a byte changed, cut, or made up.
fn damaged(key: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = match dice.up_to(3) {
        1 => chunk(key, dice.draw() >> 45, 7),
        2 => datagram(key, 3, 0, dice.draw() >> dice.up_to(63), &dice.draw().to_le_bytes()[1..]),
        // No probe: one that is whole is acknowledged, whatever its number.
        _ => datagram(key, 5 + dice.draw() as u8 % 250, 0, dice.draw(), &dice.draw().to_le_bytes()),
    };
    let at = dice.up_to(bytes.len() as u64) as usize - 1;
    if dice.hits(0.5) {
        // Not where a chunk says which it is: that nobody can check without TLS.
        bytes[if (17..40).contains(&at) { 0 } else { at }] ^= 1 << (dice.up_to(8) - 1);
    } else {
        bytes.truncate(at);
    }
    bytes
}

#[tokio::test]
async fn damaged_datagrams_are_dropped_and_chunks_acknowledged() {
    let listener = listen(&Ltp, &Options::default()).await;
    let (peer, server) = by_hand(&*listener).await;
    let (sink, mut dice) = (Recorder::new(1_000), Dice::new(&[5]));
    let mut receive = server.receive(&sink);
    for index in 0..50_u8 {
        for _ in 0..40 {
            for socket in [&peer.up, &peer.down] {
                // An ICMP message about another one may be told here.
                let _ = socket.send(&damaged(&peer.key, &mut dice)).await;
            }
        }
        peer.up.send(&chunk(&peer.key, 1_000_000 + u64::from(index), index)).await.unwrap();
        tokio::select! {
            biased;
            ended = &mut receive => assert!(ended.is_err(), "nobody has sent a message"),
            () = sink.until(|seen| seen.stored.iter().filter(|(_, outcome)| outcome.is_ok()).count() > index.into()) => {}
        }
    }
    peer.control.send_control(Bytes::from_static(b"end")).await.unwrap();
    peer.up.send(&datagram(&peer.key, 2, 1, 1_000_050, &[])).await.unwrap();
    assert_eq!(receive.await.unwrap(), "end");
    assert_eq!(sink.seen().ranges.bytes(), 500);
    let mut ack = [0; 1500];
    loop {
        let length = peer.up.recv(&mut ack).await.unwrap();
        let (kind, end) = (ack[16], u64::from_le_bytes(ack[24..32].try_into().unwrap()));
        assert!(kind == 3 && length >= 39, "an acknowledgement");
        if end == 1_000_051 {
            assert_eq!(
                u32::from_le_bytes(ack[35..39].try_into().unwrap()),
                51,
                "all of the newest in one range"
            );
            break;
        }
    }
}

/// Acknowledgements of what was never sent end nothing; true ones end the update.
#[tokio::test]
async fn only_what_was_sent_can_be_acknowledged() {
    let listener = listen(&Ltp, &Options::default()).await;
    let (peer, server) = by_hand(&*listener).await;
    let source = pattern(10 * u64::from(CHUNK), 1);
    let update = outgoing(&source, update_id(1), CHUNK);
    let mut sending = server.send_update(&update);
    let mut bytes = [0; 1500];
    let ack = |end: u64, ranges: &[u32]| {
        let ranges: Vec<u8> = ranges.iter().flat_map(|n| n.to_le_bytes()).collect();
        datagram(&peer.key, 3, 0, end, &[&[0, 0, 0], &ranges[..]].concat())
    };
    for _ in 0..10 {
        tokio::select! {
            biased;
            sent = &mut sending => panic!("{sent:?} before it was acknowledged"),
            came = peer.down.recv(&mut bytes) => assert!(came.unwrap() > 32),
        }
    }
    for lie in [ack(1 << 40, &[1 << 30]), ack(1_000, &[1_000]), ack(5, &[1, 0, 1]), ack(2, &[3])] {
        peer.down.send(&lie).await.unwrap();
    }
    peer.down.send(&ack(10, &[10])).await.unwrap();
    let report = sending.await.unwrap();
    assert_eq!((report.chunks, server.counters().retransmissions), (10, Some(0)));
}

#[tokio::test]
async fn a_client_of_another_transport_is_refused() {
    let listener = listen(&Ltp, &Options::default()).await;
    let at = Address { scheme: "udp".into(), ..listener.address() };
    let accept = async { listener.accept().await.unwrap().await.map(|_| ()).unwrap_err() };
    let connect = async { thalweg_udp::Udp.connect(&at, &Options::default()).await.map(|_| ()).unwrap_err() };
    let (accepted, connected) = tokio::join!(accept, connect);
    assert_eq!(connected.kind(), ErrorKind::Corrupt, "{connected}");
    assert!(connected.to_string().contains("not those of a udp link"), "{connected}");
    assert!(matches!(accepted.kind(), ErrorKind::Closed | ErrorKind::Corrupt), "{accepted}");
    let (client, server) = link(&*listener, &Options::default()).await;
    client.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "still here");
}
