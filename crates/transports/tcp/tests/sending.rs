//! Sends that are cancelled in the middle of a frame.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Recorder};
use thalweg_transport::ErrorKind;
use thalweg_wire::{FrameHeader, HEADER_BYTES, MAX_CONTROL};
use tokio::io::AsyncReadExt;

mod common;
use common::{by_hand, link, listen, plain, Trust};

const CHUNK: u32 = 4 << 20;

/// Polls a send until the kernel accepts no more bytes.
async fn begin<F: Future + Unpin>(future: &mut F) {
    let began = poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await;
    assert!(began, "the whole frame fits the buffers");
}

#[tokio::test]
async fn a_cancel_in_the_middle_of_a_chunk_ends_the_loan_and_finishes_the_frame() {
    let listener = listen(&plain()).await;
    let (mut peer, server) = by_hand(&*listener).await;
    let source = pattern(2 * u64::from(CHUNK), 1);
    let expected = source.lend(source.range()).unwrap().slice(..CHUNK as usize).to_vec();
    let update = outgoing(&source, update_id(1), CHUNK);
    let cancel = update.cancel().clone();
    let mut send = server.send_update(&update);
    begin(&mut send).await;
    cancel.cancel();
    assert_eq!(send.await.unwrap_err().kind(), ErrorKind::Cancelled);
    // The peer has read nothing yet, but the loan has ended.
    source.claim(source.range()).unwrap().fill(0xee);
    let copied = server.counters().copied;
    assert!(copied > 0 && copied < CHUNK.into(), "{copied} bytes copied");
    let control = tokio::spawn(async move {
        server.send_control(Bytes::from_static(b"usable")).await.unwrap();
        server
    });
    let mut header = [0; HEADER_BYTES];
    peer.read_exact(&mut header).await.unwrap();
    let mut payload = vec![0; CHUNK as usize];
    peer.read_exact(&mut payload).await.unwrap();
    assert_eq!(FrameHeader::decode(&header).unwrap().verify(&payload), Ok(()));
    assert!(payload == expected, "the chunk is the one that was lent");
    peer.read_exact(&mut header).await.unwrap();
    assert_eq!(FrameHeader::decode(&header).unwrap(), FrameHeader::control(b"usable"));
    let server = control.await.unwrap();
    assert_eq!(server.counters().sent, 2 * HEADER_BYTES as u64 + u64::from(CHUNK) + 6);
}

#[tokio::test]
async fn a_cancel_under_tls_leaves_the_link_usable() {
    let trust = Trust::new();
    let listener = listen(&trust.listen(false)).await;
    let (client, server) = link(&*listener, &trust.connect(None)).await;
    let source = pattern(CHUNK.into(), 2);
    let update = outgoing(&source, update_id(1), CHUNK);
    let cancel = update.cancel().clone();
    let mut send = client.send_update(&update);
    begin(&mut send).await;
    cancel.cancel();
    assert_eq!(send.await.unwrap_err().kind(), ErrorKind::Cancelled);
    source.claim(source.range()).unwrap();
    let recorder = Recorder::new(CHUNK.into());
    let (sent, message) =
        tokio::join!(client.send_control(Bytes::from_static(b"usable")), server.receive(&recorder));
    sent.unwrap();
    assert_eq!(message.unwrap(), "usable");
    assert!(recorder.seen().stored.iter().all(|(_, outcome)| outcome.is_ok()));
    assert_eq!(recorder.seen().stored.len(), 1);
}

#[tokio::test]
async fn a_send_dropped_in_the_middle_of_a_frame_breaks_the_link_only() {
    let listener = listen(&plain()).await;
    let (client, server) = link(&*listener, &plain()).await;
    let mut send = client.send_control(vec![1; MAX_CONTROL as usize].into());
    begin(&mut send).await;
    drop(send);
    let error = client.send_control(Bytes::from_static(b"next")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.to_string().contains("middle of a frame"), "{error}");
    let error = server.receive(&Recorder::new(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

#[tokio::test]
async fn a_send_dropped_before_its_frame_harms_nothing() {
    let listener = listen(&plain()).await;
    let (client, server) = link(&*listener, &plain()).await;
    let source = pattern(CHUNK.into(), 3);
    let update = outgoing(&source, update_id(1), CHUNK);
    let mut first = client.send_update(&update);
    begin(&mut first).await;
    let mut waiting = client.send_control(Bytes::from_static(b"given up"));
    begin(&mut waiting).await;
    drop(waiting);
    let recorder = Recorder::new(CHUNK.into());
    let sending = async {
        first.await.unwrap();
        client.send_control(Bytes::from_static(b"arrives")).await.unwrap();
    };
    let ((), message) = tokio::join!(sending, server.receive(&recorder));
    assert_eq!(message.unwrap(), "arrives");
    recorder.check(&source);
}
