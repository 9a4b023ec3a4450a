//! Peers that are slow, broken or hostile harm only their own link. The peers use the h2 crate for HTTP/2.
//! They make gRPC and protobuf by hand from the specifications, so these tests also show that other clients
//! are understood.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::SendStream;
use http::Request;
use thalweg_conformance::{outgoing, pattern, update_id, Recorder};
use thalweg_grpc::{Grpc, MAX_MESSAGE};
use thalweg_transport::{Address, ErrorKind, Link, Listener, Options, Transport};
use thalweg_wire::{ChunkHeader, FrameHeader, LayoutHash, HEADER_BYTES, MAX_CONTROL};
use tokio::io::{copy, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

mod common;
use common::{knock, link, listen, plain, Trust};

const EXCHANGE: &str = "/thalweg.v1.Link/Exchange";

/// A client made by hand: it sends requests, and bytes of its link's stream.
struct ByHand {
    requests: SendRequest<Bytes>,
    stream: SendStream<Bytes>,
    answer: Option<ResponseFuture>,
}

impl ByHand {
    async fn call(listener: &dyn Listener, path: &str, kind: &str) -> Self {
        let (requests, connection) = h2::client::handshake(knock(listener).await).await.unwrap();
        tokio::spawn(connection);
        let mut requests = requests.ready().await.unwrap();
        let (answer, stream) = request(&mut requests, path, kind);
        Self { requests, stream, answer: Some(answer) }
    }

    /// Makes a link, and returns both ends.
    async fn meet(listener: &dyn Listener) -> (Self, Arc<dyn Link>) {
        let mut peer = Self::call(listener, EXCHANGE, "application/grpc").await;
        let server = listener.accept().await.unwrap().await.unwrap();
        let answer = peer.answer.take().unwrap().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/grpc");
        (peer, server)
    }

    fn write(&mut self, bytes: Vec<u8>) {
        self.stream.send_data(bytes.into(), false).unwrap();
    }
}

fn request(requests: &mut SendRequest<Bytes>, path: &str, kind: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let uri = format!("http://here{path}");
    let request = Request::post(uri).header("content-type", kind).header("te", "trailers").body(()).unwrap();
    requests.send_request(request, false).unwrap()
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 0x7f {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len()), bytes].concat()
}

/// Puts gRPC's prefix (flag, length) before a message.
fn prefixed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

fn message(header: &[u8], payload: &[u8]) -> Vec<u8> {
    prefixed(&[field(1, header), field(2, payload)].concat())
}

fn chunk_header(length: u32, payload: &[u8]) -> FrameHeader {
    let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length };
    FrameHeader::chunk(chunk, thalweg_wire::checksum(payload))
}

fn control(payload: &[u8]) -> Vec<u8> {
    message(&FrameHeader::control(payload).encode(), payload)
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
async fn a_strangers_client_is_understood() {
    let listener = listen(&plain()).await;
    let (mut peer, server) = ByHand::meet(&*listener).await;
    let payload: Vec<u8> = (0..200).collect();
    let chunk = message(&chunk_header(200, &payload).encode(), &payload);
    // The fields in another order, and one field of a later version.
    let last = FrameHeader::control(b"the end").encode();
    let last = prefixed(&[field(2, b"the end"), field(9, b"?"), field(1, &last)].concat());
    for byte in [chunk, control(b""), last].concat() {
        peer.write(vec![byte]);
    }
    let sink = Recorder::new(200);
    assert_eq!(server.receive(&sink).await.unwrap(), "");
    assert_eq!(server.receive(&sink).await.unwrap(), "the end");
    assert_eq!(sink.seen().progress, 200);
    assert!(sink.seen().stored.iter().all(|(_, outcome)| outcome.is_ok()));
}

/// A chunk of a megabyte takes many round trips on a long path. Meanwhile the receiver must report progress,
/// or its sender would seem silent.
#[tokio::test]
async fn a_chunk_makes_progress_before_it_is_whole() {
    let listener = listen(&plain()).await;
    let (mut peer, server) = ByHand::meet(&*listener).await;
    let payload = vec![7; 9000];
    let mut begin = message(&chunk_header(9000, &payload).encode(), &payload);
    let end = begin.split_off(begin.len() - 4000);
    let sink = Recorder::new(9000);
    let receiving = async { assert_eq!(server.receive(&sink).await.unwrap(), "end") };
    let sending = async {
        peer.write(begin);
        sink.until(|seen| seen.progress == 5000).await;
        assert!(sink.seen().stored.is_empty());
        peer.write([end, control(b"end")].concat());
    };
    tokio::join!(receiving, sending);
    assert_eq!(sink.seen().progress, 9000, "and no byte counts twice");
    assert_eq!(sink.seen().stored.len(), 1);
}

/// A port that passes bytes on in both directions; of the client's first only `first`, until `opened`.
async fn slow_port(to: SocketAddr, first: u64, opened: Arc<Notify>) -> Address {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::parse(&format!("grpc://{}", port.local_addr().unwrap())).unwrap();
    tokio::spawn(async move {
        let (from, _) = port.accept().await.unwrap();
        let (mut client, mut back) = from.into_split();
        let (mut server, mut onward) = TcpStream::connect(to).await.unwrap().into_split();
        let up = async {
            copy(&mut (&mut client).take(first), &mut onward).await.unwrap();
            opened.notified().await;
            copy(&mut client, &mut onward).await
        };
        tokio::join!(up, copy(&mut server, &mut back))
    });
    address
}

/// HTTP/2 gives out a DATA frame of 64 KiB when all of it is there. On a path with a long round trip that takes many
/// round trips too.
#[tokio::test]
async fn a_chunk_makes_progress_before_a_frame_of_it_is_whole() {
    let listener = listen(&plain()).await;
    let to = SocketAddr::from(([127, 0, 0, 1], listener.address().port.unwrap()));
    let opened = Arc::new(Notify::new());
    let through = slow_port(to, 40 << 10, opened.clone()).await;
    let (options, length) = (plain(), 256 << 10);
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let (client, server) = tokio::join!(Grpc.connect(&through, &options), accept);
    let client = client.unwrap();
    let (source, sink) = (pattern(length, 1), Recorder::new(length));
    let update = outgoing(&source, update_id(1), length as u32);
    let sending = async {
        client.send_update(&update).await.unwrap();
        client.send_control(Bytes::from_static(b"end")).await.unwrap();
    };
    let receiving = async { assert_eq!(server.receive(&sink).await.unwrap(), "end") };
    let watching = async {
        sink.until(|seen| seen.progress > (30 << 10)).await;
        assert!(sink.seen().progress < (40 << 10) && sink.seen().stored.is_empty());
        opened.notify_one();
    };
    tokio::join!(sending, receiving, watching);
    assert_eq!(sink.seen().progress, length, "and no byte counts twice");
}

#[tokio::test]
async fn a_strangers_client_understands() {
    let listener = listen(&plain()).await;
    let mut peer = ByHand::call(&*listener, EXCHANGE, "application/grpc+proto").await;
    let server = listener.accept().await.unwrap().await.unwrap();
    let mut body = peer.answer.take().unwrap().await.unwrap().into_body();
    server.send_control(Bytes::from_static(b"hello")).await.unwrap();
    server.close().await;
    let mut received = Vec::new();
    while let Some(data) = body.data().await {
        received.extend_from_slice(&data.unwrap());
    }
    assert_eq!(received, control(b"hello"));
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
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
async fn a_handshake_that_stops_ends_by_its_limit() {
    let listener = listen(&Options { connect_timeout_ms: 50, ..plain() }).await;
    let _silent = knock(&*listener).await;
    let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let (_requests, connection) = h2::client::handshake(knock(&*listener).await).await.unwrap();
    tokio::spawn(connection);
    let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "HTTP/2, and no call: {error}");
}

#[tokio::test]
async fn what_is_not_http2_is_refused() {
    let listener = listen(&plain()).await;
    let old = link(&*listener, &plain()).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let no_settings = [&preface[..], &[0, 0, 4, 9, 0, 0, 0, 0, 0, 1, 2, 3, 4]].concat();
    let huge_frame = [&preface[..], &[0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0]].concat();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &no_settings, &huge_frame] {
        let mut stream = knock(&*listener).await;
        stream.write_all(garbage).await.unwrap();
        let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("check the address"), "{error}");
    }
    says(&*old.0, &*old.1, "nor is this one harmed").await;
    still_takes_links(&*listener, &plain()).await;
}

#[tokio::test]
async fn a_call_of_another_service_gets_an_error() {
    let listener = listen(&plain()).await;
    for (path, kind, status, grpc) in [
        ("/grpc.health.v1.Health/Check", "application/grpc", 200, Some("12")),
        (EXCHANGE, "text/html", 415, None),
    ] {
        let mut peer = ByHand::call(&*listener, path, kind).await;
        let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let answer = peer.answer.take().unwrap().await.unwrap();
        assert_eq!(answer.status(), status);
        let status = answer.headers().get("grpc-status").map(|value| value.to_str().unwrap());
        assert_eq!(status, grpc);
    }
    still_takes_links(&*listener, &plain()).await;
}

#[tokio::test]
async fn a_connection_carries_one_link() {
    let listener = listen(&plain()).await;
    let (mut peer, server) = ByHand::meet(&*listener).await;
    let (answer, _stream) = request(&mut peer.requests, EXCHANGE, "application/grpc");
    assert_eq!(answer.await.unwrap().headers()["grpc-status"], "8");
    peer.write(control(b"the first goes on"));
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "the first goes on");
}

#[tokio::test]
async fn an_invalid_message_ends_its_link() {
    let listener = listen(&plain()).await;
    let old = link(&*listener, &plain()).await;
    let frame = |header: &FrameHeader, payload: &[u8]| message(&header.encode(), payload);
    let mut flipped = chunk_header(7, b"payload").encode();
    flipped[40] ^= 1;
    let too_long = (MAX_MESSAGE as u32 + 1).to_be_bytes();
    let part = FrameHeader { payload_checksum: 0, ..FrameHeader::control(&[0; 100]) };
    let beyond = ChunkHeader { length: MAX_CONTROL + 1, ..part.chunk };
    let messages = [
        ("protobuf that is none", prefixed(&[0xff; 9])),
        ("a field longer than its message", prefixed(b"\x0a\x7fab")),
        ("a message over the limit", [&[0][..], &too_long, &[0; 100]].concat()),
        ("a message of 4 GiB", vec![0, 0xff, 0xff, 0xff, 0xff]),
        ("a compressed message", [&[1][..], &prefixed(b"?")[1..]].concat()),
        ("a flag that is none", [&[7][..], &prefixed(b"?")[1..]].concat()),
        ("an empty message", prefixed(b"")),
        ("a short header", message(&[0; HEADER_BYTES - 1], b"")),
        ("a long header", message(&[&chunk_header(0, b"").encode()[..], b"x"].concat(), b"")),
        ("zeros for a header", message(&[0; HEADER_BYTES], b"")),
        ("a header with a bit flipped", message(&flipped, b"payload")),
        ("fewer bytes than a chunk says", frame(&chunk_header(8, b"payload"), b"payload")),
        ("more bytes than a chunk says", frame(&chunk_header(6, b"payload"), b"payload")),
        ("more bytes than a message says", frame(&FrameHeader::control(b"pay"), b"payload")),
        ("a message that is not what it says", frame(&FrameHeader::control(b"PAYLOAD"), b"payload")),
        ("a control message over the limit", frame(&FrameHeader { chunk: beyond, ..part }, b"x")),
        ("a part of nothing", message(b"", b"payload")),
        ("a message in another", [frame(&part, b"x"), control(b"y")].concat()),
        ("an empty part", [frame(&part, b"x"), message(b"", b"")].concat()),
        ("a part too long", [frame(&part, b"x"), message(b"", &[0; 100])].concat()),
        ("parts that are not what they say", [frame(&part, b"x"), message(b"", &[0; 99])].concat()),
    ];
    for (what, bytes) in messages {
        let (mut peer, server) = ByHand::meet(&*listener).await;
        peer.write(bytes);
        let sink = Recorder::new(1 << 10);
        let error = server.receive(&sink).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(sink.seen().placed.is_empty(), "{what}");
        assert_eq!(server.receive(&sink).await.unwrap_err().kind(), ErrorKind::Closed, "{what}");
        assert_eq!(server.send_control(Bytes::new()).await.unwrap_err().kind(), ErrorKind::Closed, "{what}");
    }
    says(&*old.0, &*old.1, "nor is this one harmed").await;
    still_takes_links(&*listener, &plain()).await;
}

#[tokio::test]
async fn an_end_in_the_middle_is_closed() {
    let listener = listen(&plain()).await;
    let frame = control(&[1; 100]);
    for cut in [0, 3, 5, 60] {
        let (mut peer, server) = ByHand::meet(&*listener).await;
        peer.write(frame[..cut].to_vec());
        peer.stream.send_reset(h2::Reason::CANCEL);
        let error = server.receive(&Recorder::new(0)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "cut at {cut}: {error}");
    }
    // The same by the network: no more bytes arrive, although the stream has not ended.
    let (peer, server) = ByHand::meet(&*listener).await;
    drop(peer);
    let error = server.receive(&Recorder::new(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}
