//! Peers that are slow, broken or hostile harm only their own link. No test here waits for time, except for
//! the time limit of a handshake.
#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use thalweg_conformance::{Recorder, GUARD};
use thalweg_transport::{ErrorKind, Link, Listener, Options};
use thalweg_wire::{ChunkHeader, FrameHeader, LayoutHash, HEADER_BYTES, MAX_CHUNK, MAX_CONTROL};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

mod common;
use common::{by_hand, knock, link, listen, meet, plain, preamble, streams, Trust};

fn chunk(offset: u64, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset, length };
    [&FrameHeader::chunk(chunk, thalweg_wire::checksum(payload)).encode()[..], payload].concat()
}

fn control(payload: &[u8]) -> Vec<u8> {
    [&FrameHeader::control(payload).encode()[..], payload].concat()
}

async fn says(from: &dyn Link, to: &dyn Link, text: &'static str) {
    from.send_control(Bytes::from_static(text.as_bytes())).await.unwrap();
    assert_eq!(to.receive(&Recorder::new(0)).await.unwrap(), text);
}

async fn still_takes_links(listener: &dyn Listener, options: &Options) {
    let (client, server) = link(listener, options).await;
    says(&*client, &*server, "still here").await;
}

#[tokio::test]
async fn half_open_handshakes_hold_up_nobody() {
    let trust = Trust::new();
    for (server, client) in [(plain(), plain()), (trust.listen(false), trust.connect(None))] {
        let listener = listen(&server).await;
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(knock(&*listener).await);
        }
        still_takes_links(&*listener, &client).await;
    }
}

#[tokio::test]
async fn a_silent_handshake_ends_by_its_limit() {
    let listener = listen(&Options { connect_timeout_ms: 50, ..plain() }).await;
    let _silent = knock(&*listener).await;
    let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let mut half = knock(&*listener).await;
    half.write_all(&preamble(0, 2, [1; 16])).await.unwrap();
    let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    still_takes_links(&*listener, &plain()).await;
}

#[tokio::test]
async fn garbage_is_refused() {
    let listener = listen(&plain()).await;
    let old = link(&*listener, &plain()).await;
    let wrong_version = [b"tlwp\x07", &[0; 19][..]].concat();
    let beyond = preamble(4, 4, [1; 16]);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 24], &wrong_version, &beyond] {
        let mut stream = knock(&*listener).await;
        stream.write_all(garbage).await.unwrap();
        let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        still_takes_links(&*listener, &plain()).await;
    }
    says(&*old.0, &*old.1, "nor is this one harmed").await;
}

#[tokio::test]
async fn a_false_frame_ends_its_link() {
    let listener = listen(&plain()).await;
    let old = link(&*listener, &plain()).await;
    let mut flipped = chunk(0, b"payload");
    flipped[40] ^= 1;
    let mut damaged = control(b"payload");
    *damaged.last_mut().unwrap() ^= 1;
    let too_long = |kind: FrameHeader, length| {
        let chunk = ChunkHeader { length, ..kind.chunk };
        FrameHeader { chunk, ..kind }.encode().to_vec()
    };
    let some_chunk = FrameHeader::decode(&chunk(0, b"")).unwrap();
    let frames = [
        vec![0; HEADER_BYTES],
        flipped,
        damaged,
        too_long(some_chunk, MAX_CHUNK + 1),
        too_long(some_chunk, u32::MAX),
        too_long(FrameHeader::control(b""), MAX_CONTROL + 1),
    ];
    for frame in frames {
        let (mut peer, server) = by_hand(&*listener).await;
        peer.write_all(&frame).await.unwrap();
        let sink = Recorder::new(1 << 10);
        let error = server.receive(&sink).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(sink.seen().placed.is_empty());
        assert_eq!(server.receive(&sink).await.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(server.send_control(Bytes::new()).await.unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(peer.read(&mut [0; 1]).await.unwrap_or(0), 0, "the connection has ended");
    }
    says(&*old.0, &*old.1, "nor is this one harmed").await;
    still_takes_links(&*listener, &plain()).await;
}

#[tokio::test]
async fn an_end_in_the_middle_of_a_frame_is_closed() {
    let listener = listen(&plain()).await;
    for frame in [chunk(0, &[1; 100]), control(&[1; 100])] {
        for cut in [1, HEADER_BYTES, HEADER_BYTES + 50] {
            let (mut peer, server) = by_hand(&*listener).await;
            peer.write_all(&frame[..cut]).await.unwrap();
            drop(peer);
            let error = server.receive(&Recorder::new(1 << 10)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert!(error.to_string().contains("middle of a frame"), "{error}");
        }
    }
}

/// Writes bytes one by one, each when the previous one has been received.
async fn drip(peer: &mut tokio::net::TcpStream, server: &dyn Link, bytes: &[u8]) {
    for byte in bytes {
        let before = server.counters().received;
        peer.write_all(&[*byte]).await.unwrap();
        while server.counters().received == before {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn one_byte_at_a_time_is_enough() {
    let listener = listen(&plain()).await;
    let (mut peer, server) = by_hand(&*listener).await;
    let payload: Vec<u8> = (0..200).collect();
    let frames = [chunk(0, &payload), chunk(1000, b"nobody's"), control(b"the end")].concat();
    let sink = Recorder::new(200);
    let (message, ()) = tokio::join!(server.receive(&sink), drip(&mut peer, &*server, &frames));
    assert_eq!(message.unwrap(), "the end");
    assert_eq!(sink.seen().progress, 208, "each byte of a chunk is progress");
}

/// While chunks arrive quickly, the kernel wakes the receiver only for large parts of a chunk; see `inlet`.
#[tokio::test]
async fn a_quick_peer_that_turns_slow_still_makes_progress() {
    let listener = listen(&plain()).await;
    let (mut peer, server) = by_hand(&*listener).await;
    let sink = Recorder::new(1 << 20);
    let quick: Vec<u8> = (0..4).flat_map(|i| chunk(i * 50_000, &[7; 50_000])).collect();
    let slow = [chunk(200_000, &[8; 300]), control(b"the end")].concat();
    let sending = async {
        peer.write_all(&quick).await.unwrap();
        sink.until(|seen| seen.stored.len() == 4).await;
        drip(&mut peer, &*server, &slow).await;
    };
    let (message, ()) =
        tokio::time::timeout(GUARD, async { tokio::join!(server.receive(&sink), sending) }).await.unwrap();
    assert_eq!(message.unwrap(), "the end");
    assert_eq!(sink.seen().stored.len(), 5);
}

#[tokio::test]
async fn a_connection_comes_once_and_all_agree_on_their_number() {
    let listener = listen(&plain()).await;
    let hello = |stream, streams| preamble(stream, streams, [5; 16]);
    let mut first = knock(&*listener).await;
    first.write_all(&hello(0, 2)).await.unwrap();
    let pending = listener.accept().await.unwrap();
    for wrong in [hello(0, 2), hello(2, 3)] {
        let mut stream = knock(&*listener).await;
        stream.write_all(&wrong).await.unwrap();
        let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    let mut second = knock(&*listener).await;
    second.write_all(&hello(1, 2)).await.unwrap();
    let server = pending.await.unwrap();
    first.read_exact(&mut [0; 24]).await.unwrap();
    first.write_all(&control(b"whole")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "whole");
    second.write_all(&control(b"not here")).await.unwrap();
    let error = server.receive(&Recorder::new(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// Chunks that are half received on one connection stay intact while control messages arrive on another.
#[tokio::test]
async fn a_control_message_leaves_the_other_connections_chunks_whole() {
    let listener = listen(&plain()).await;
    let mut peers = Vec::new();
    for stream in 0..2 {
        let mut peer = knock(&*listener).await;
        peer.write_all(&preamble(stream, 2, [6; 16])).await.unwrap();
        peer.read_exact(&mut [0; 24]).await.unwrap();
        peers.push(peer);
    }
    let server = listener.accept().await.unwrap().await.unwrap();
    let payload: Vec<u8> = (0..100).collect();
    let frame = chunk(0, &payload);
    let sink = Recorder::new(100);
    for part in frame.chunks(37) {
        peers[1].write_all(part).await.unwrap();
        peers[0].write_all(&control(b"between")).await.unwrap();
        assert_eq!(server.receive(&sink).await.unwrap(), "between");
    }
    let wait = async {
        sink.until(|seen| seen.stored.len() == 1).await;
        peers[0].write_all(&control(b"done")).await.unwrap();
    };
    let (message, ()) = tokio::join!(server.receive(&sink), wait);
    assert_eq!(message.unwrap(), "done");
    assert!(sink.seen().stored[0].1.is_ok());
}

#[tokio::test]
async fn too_many_streams_cannot_be_asked_for() {
    let listener = listen(&plain()).await;
    let mut peer = knock(&*listener).await;
    peer.write_all(&preamble(0, 17, [1; 16])).await.unwrap();
    let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let (client, server) = meet(&*listener, &streams(16)).await;
    says(&*client.unwrap(), &*server.unwrap(), "sixteen are fine").await;
}
