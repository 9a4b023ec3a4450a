//! Malformed and false datagrams harm nobody. The test makes the peer's datagrams by hand.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Recorder};
use thalweg_ltp::{Ltp, CHUNK};
use thalweg_rng::Rng;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, ErrorKind, Fraction, Link, Listener, Options, Settings, Transport, Value};
use thalweg_wire::{checksum, ChunkHeader, FrameHeader, LayoutHash};
use tokio::net::UdpSocket;

mod common;
use common::{link, listen};

/// The connecting end of a link. The test makes its datagrams.
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

fn datagram(key: &[u8], kind: u8, message_count: u8, number: u64, rest: &[u8]) -> Vec<u8> {
    [key, &[kind, 0, message_count, 0, 0, 0, 0, 0], &number.to_le_bytes(), rest].concat()
}

/// Makes chunk `index` of 100. Each chunk has 10 bytes.
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
        assert_eq!(&offer[..5], b"tlwl\x03");
        let answer = [&b"tlwl\x03"[..], &1_000_000_u64.to_le_bytes()].concat();
        control.send_control(answer.into()).await.unwrap();
        let key = offer[5..21].to_vec();
        let (up, down) = (socket_to(&offer[22..24]).await, socket_to(&offer[24..26]).await);
        up.send(&datagram(&key, 4, 0, 0, &[])).await.unwrap();
        down.send(&datagram(&key, 4, 0, 1, &[])).await.unwrap();
        assert_eq!(control.receive(&Recorder::new(0)).await.unwrap(), &b"tlwl\x03"[..]);
        Peer { control, key, up, down }
    };
    tokio::join!(shake, accept)
}

/// A datagram (a chunk, an acknowledgement or one of an unknown kind) that has one bit flipped or is cut
/// short.
fn damaged(key: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = match rng.up_to(3) {
        1 => chunk(key, rng.draw() >> 45, 7),
        2 => datagram(key, 3, 0, rng.draw() >> rng.up_to(63), &rng.draw().to_le_bytes()[1..]),
        // Not a probe: a whole probe is acknowledged, whatever its number.
        _ => datagram(key, 5 + rng.draw() as u8 % 250, 0, rng.draw(), &rng.draw().to_le_bytes()),
    };
    let at = rng.up_to(bytes.len() as u64) as usize - 1;
    if rng.hits(0.5) {
        // Do not flip a bit of a chunk's number and index: without TLS, nobody can check these.
        bytes[if (17..40).contains(&at) { 0 } else { at }] ^= 1 << (rng.up_to(8) - 1);
    } else {
        bytes.truncate(at);
    }
    bytes
}

#[tokio::test]
async fn damaged_datagrams_are_dropped_and_chunks_acknowledged() {
    let listener = listen(&Ltp, &Options::default()).await;
    let (peer, server) = by_hand(&*listener).await;
    let (sink, mut rng) = (Recorder::new(1_000), Rng::new(&[5]));
    let mut receive = server.receive(&sink);
    for index in 0..50_u8 {
        for _ in 0..40 {
            for socket in [&peer.up, &peer.down] {
                // This call may report the ICMP message that an earlier datagram caused.
                let _ = socket.send(&damaged(&peer.key, &mut rng)).await;
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

/// False acknowledgements end nothing. True ones end the update.
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
            outcome = peer.down.recv(&mut bytes) => assert!(outcome.unwrap() > 32),
        }
    }
    for lie in [ack(1 << 40, &[1 << 30]), ack(1_000, &[1_000]), ack(5, &[1, 0, 1]), ack(2, &[3])] {
        peer.down.send(&lie).await.unwrap();
    }
    peer.down.send(&ack(10, &[10])).await.unwrap();
    let report = sending.await.unwrap();
    assert_eq!((report.chunks, server.counters().retransmissions), (10, Some(0)));
}

/// The symbol of a chunk, built as README.md describes it.
fn symbol(index: u8) -> Vec<u8> {
    let payload = [index; 10];
    let offset = 10 * u64::from(index);
    [&[index, 0, 0][..], &offset.to_le_bytes(), &[10, 0], &checksum(&payload).to_le_bytes(), &payload]
        .concat()
}

/// Repair packet `which` of a block: ten of a hundred chunks, numbered from 0.
fn repair(key: &[u8], which: u32) -> Vec<u8> {
    use raptorq::{ObjectTransmissionInformation, SourceBlockEncoder};
    let symbols: Vec<u8> = (0..10).flat_map(symbol).collect();
    let shape = ObjectTransmissionInformation::new(symbols.len() as u64, 27, 1, 1, 1);
    let made = SourceBlockEncoder::new(0, &shape, &symbols).repair_packets(which, 1);
    let common =
        [&[1, 0, 99, 0, 0][..], &1_u64.to_le_bytes(), &[1, 0, 0, 0, 1, 0, 0, 0], &1_u64.to_le_bytes()];
    let coded = [&common.concat()[..], made[0].data()].concat();
    let number = 10 + u64::from(which);
    let head = [&[number as u8, 0, 10, which as u8][..], &checksum(&coded).to_le_bytes()].concat();
    datagram(key, 5, 0, number, &[head, coded].concat())
}

#[tokio::test]
async fn chunks_that_never_came_are_rebuilt_and_acknowledged() {
    let listener = listen(&Ltp, &Options::default()).await;
    let (peer, server) = by_hand(&*listener).await;
    let sink = Recorder::new(1_000);
    let mut receive = server.receive(&sink);
    let send = async |bytes: Vec<u8>| assert_eq!(peer.up.send(&bytes).await.unwrap(), bytes.len());
    for index in [9, 0, 1, 4, 5, 6, 7, 8] {
        let mut covered = chunk(&peer.key, u64::from(index), index);
        covered[17] = 1;
        send(covered).await;
    }
    for which in [1, 0, 3, 2, 1] {
        send(repair(&peer.key, which)).await;
    }
    tokio::select! {
        biased;
        ended = &mut receive => panic!("{ended:?}"),
        () = sink.until(|seen| seen.ranges.bytes() == 100) => {}
    }
    let seen = sink.seen();
    assert_eq!((seen.stored.len(), server.counters().rebuilt), (10, Some(2)), "each chunk once");
    assert!(seen.stored.iter().all(|(_, outcome)| outcome.is_ok()));
    drop(seen);
    let mut ack = [0; 1500];
    // Read until an acknowledgement covers all of it: packets 0 to 13 in one range.
    loop {
        tokio::select! {
            biased;
            ended = &mut receive => panic!("{ended:?}"),
            length = peer.up.recv(&mut ack) => assert!(length.unwrap() >= 39 && ack[16] == 3),
        }
        let (end, count) = (ack[24], u32::from_le_bytes(ack[35..39].try_into().unwrap()));
        if (end, count) == (14, 14) {
            break;
        }
    }
}

/// The wire carries what a peer needs to rebuild packets. A repair packet follows the packets that it
/// protects, and is counted apart.
#[tokio::test]
async fn repair_packets_follow_what_they_can_rebuild() {
    use raptorq::{EncodingPacket, ObjectTransmissionInformation, PayloadId, SourceBlockDecoder};
    let own = Settings::default().with("repair", Value::Share(Fraction::millionths(400_000)));
    let listener = listen(&Ltp, &Options { own, ..Options::default() }).await;
    let (peer, server) = by_hand(&*listener).await;
    let source = pattern(10 * u64::from(CHUNK), 1);
    let update = outgoing(&source, update_id(1), CHUNK);
    let mut sending = server.send_update(&update);
    let (mut bytes, mut symbols) = ([0; 1500], Vec::new());
    for number in 0..15 {
        let length = tokio::select! {
            biased;
            sent = &mut sending => panic!("{sent:?} before it was acknowledged"),
            outcome = peer.down.recv(&mut bytes) => outcome.unwrap(),
        };
        let kinds = [
            if number < 10 {
                1
            } else if number < 14 {
                5
            } else {
                2
            },
            u8::from(number < 10),
        ];
        assert_eq!((&bytes[16..18], bytes[24]), (&kinds[..], number), "kind, flag and number");
        match number {
            0..10 => symbols.push(
                [&bytes[34..37], &bytes[80..88], &bytes[48..50], &bytes[52..56], &bytes[92..length]].concat(),
            ),
            10..14 => {
                assert_eq!(bytes[32..36], [number, 0, 10, number - 10], "all before is the block");
                symbols.push(bytes[69..length].to_vec());
            }
            _ => assert_eq!(length, 32),
        }
    }
    let size = 17 + CHUNK as usize;
    let shape = ObjectTransmissionInformation::new(10 * size as u64, size as u16, 1, 1, 1);
    let lost = [3, 7];
    let arrived = (0..).zip(&symbols).filter(|(at, _)| !lost.contains(at));
    let packets = arrived.map(|(at, symbol)| EncodingPacket::new(PayloadId::new(0, at), symbol.clone()));
    let rebuilt = SourceBlockDecoder::new(0, &shape, 10 * size as u64).decode(packets).unwrap();
    assert_eq!(rebuilt, symbols[..10].concat());
    let all = [&[0, 0, 0][..], &15_u32.to_le_bytes()].concat();
    peer.down.send(&datagram(&peer.key, 3, 0, 15, &all)).await.unwrap();
    sending.await.unwrap();
    let counters = server.counters();
    assert_eq!((counters.repair, counters.rebuilt, counters.retransmissions), (Some(4), Some(0), Some(0)));
    assert_eq!(counters.copied, 2 * source.len(), "what they stand behind is copied once more");
}

#[tokio::test]
async fn a_client_of_another_transport_is_refused() {
    let listener = listen(&Ltp, &Options::default()).await;
    let at = Address { scheme: "udp".into(), ..listener.address() };
    let accept = async { listener.accept().await.unwrap().await.map(|_| ()).unwrap_err() };
    let connect = async { thalweg_udp::Udp.connect(&at, &Options::default()).await.map(|_| ()).unwrap_err() };
    let (accepted, connected) = tokio::join!(accept, connect);
    assert_eq!(connected.kind(), ErrorKind::Corrupt, "{connected}");
    assert!(connected.to_string().contains("not that of a udp link"), "{connected}");
    assert!(matches!(accepted.kind(), ErrorKind::Closed | ErrorKind::Corrupt), "{accepted}");
    let (client, server) = link(&*listener, &Options::default()).await;
    client.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "still here");
}
