//! The properties of unary mode: limits, copies, progress, cancelling, and peers that break its rules.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_transport::{ErrorKind, Link, Listener, Options, Value};
use thalweg_wire::{ChunkHeader, FrameHeader, LayoutHash};

mod common;
use common::{knock, link, listen, meet, plain, push, unary, Trust};

fn at_most(bytes: u64) -> Options {
    let options = unary(plain());
    Options { own: options.own.with("largest", Value::Number(bytes)), ..options }
}

async fn says(from: &dyn Link, to: &dyn Link, text: &'static str) {
    from.send_control(Bytes::from_static(text.as_bytes())).await.unwrap();
    assert_eq!(to.receive(&Recorder::new(0)).await.unwrap(), text);
}

#[tokio::test]
async fn both_ends_have_one_mode() {
    for (listening, connecting) in [(plain(), unary(plain())), (unary(plain()), plain())] {
        let listener = listen(&listening).await;
        let (client, server) = meet(&*listener, &connecting).await;
        for error in [client.err().unwrap(), server.err().unwrap()] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("transport.options.mode alike"), "{error}");
        }
    }
}

#[tokio::test]
async fn an_update_over_the_bound_is_refused_and_the_link_goes_on() {
    let listener = listen(&at_most(4 << 20)).await;
    let (client, server) = link(&*listener, &at_most(8 << 20)).await;
    let source = pattern(5 << 20, 1);
    let error = server.send_update(&outgoing(&source, update_id(1), 1 << 20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("largest is 4194304"), "{error}");
    // The client may send the message, but the server may not accept it.
    let _pump = Pump::start(&server, &Arc::new(Recorder::new(5 << 20)));
    let error = client.send_update(&outgoing(&source, update_id(1), 1 << 20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("largest alike at both ends"), "{error}");
    says(&*server, &*client, "still here").await;
}

#[tokio::test]
async fn an_update_over_the_clients_limit_fails_at_the_server() {
    let listener = listen(&at_most(8 << 20)).await;
    let (client, server) = link(&*listener, &at_most(4 << 20)).await;
    let source = pattern(5 << 20, 1);
    let recorder = Arc::new(Recorder::new(5 << 20));
    let mut pump = Pump::start(&client, &recorder);
    let error = server.send_update(&outgoing(&source, update_id(1), 1 << 20)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    server.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "still here");
    let small = pattern(1 << 20, 2);
    server.send_update(&outgoing(&small, update_id(1), 1 << 20)).await.unwrap();
    assert_eq!(recorder.seen().stored.len(), 1);
}

/// A payload is copied into the message and into gRPC's buffer, then out of gRPC's buffer and into its place.
/// TLS adds one copy each.
#[tokio::test]
async fn every_copy_is_counted() {
    let trust = Trust::new();
    let secure = (unary(trust.listen(false)), unary(trust.connect(None)));
    for ((listening, connecting), copies) in [((unary(plain()), unary(plain())), (2, 2)), (secure, (3, 3))] {
        let listener = listen(&listening).await;
        let (client, server) = link(&*listener, &connecting).await;
        let source = pattern(500_000, 1);
        for (from, to) in [(&client, &server), (&server, &client)] {
            let before = (from.counters().copied, to.counters().copied);
            let recorder = Arc::new(Recorder::new(500_000));
            let pump = Pump::start(to, &recorder);
            from.send_update(&outgoing(&source, update_id(1), 64 << 10)).await.unwrap();
            assert_eq!(recorder.seen().stored.len(), 8, "sent means taken");
            assert_eq!(from.counters().copied - before.0, copies.0 * 500_000);
            assert_eq!(to.counters().copied - before.1, copies.1 * 500_000);
            pump.stop(from).await;
        }
    }
}

/// A message that was sent before an update arrives before it, and one that was sent after it arrives after
/// it, in both directions.
#[tokio::test]
async fn messages_and_updates_keep_their_order() {
    let listener = listen(&unary(plain())).await;
    let (client, server) = link(&*listener, &unary(plain())).await;
    for (from, to) in [(&client, &server), (&server, &client)] {
        for round in 1..=50 {
            let source = pattern(1_000, u64::from(round));
            let recorder = Arc::new(Recorder::new(1_000));
            let receiving = async {
                assert_eq!(to.receive(&*recorder).await.unwrap(), "before");
                assert!(recorder.seen().placed.is_empty(), "round {round}");
                assert_eq!(to.receive(&*recorder).await.unwrap(), "after");
                recorder.check(&source);
                assert_eq!(recorder.seen().stored.len(), 10, "round {round}");
            };
            let sending = async {
                from.send_control(Bytes::from_static(b"before")).await.unwrap();
                from.send_update(&outgoing(&source, update_id(round), 100)).await.unwrap();
                from.send_control(Bytes::from_static(b"after")).await.unwrap();
            };
            tokio::join!(sending, receiving);
        }
    }
}

/// A client made by hand that has made the first call.
async fn by_hand(listener: &dyn Listener) -> (SendRequest<Bytes>, h2::SendStream<Bytes>, Arc<dyn Link>) {
    let (requests, connection) = h2::client::handshake(knock(listener).await).await.unwrap();
    tokio::spawn(connection);
    let mut requests = requests.ready().await.unwrap();
    let call = request("/thalweg.v1.Link/Exchange");
    let (answer, stream) = requests.send_request(call, false).unwrap();
    let server = listener.accept().await.unwrap().await.unwrap();
    assert!(answer.await.unwrap().status().is_success());
    (requests, stream, server)
}

fn request(path: &str) -> Request<()> {
    let request = Request::post(format!("http://here{path}")).header("content-type", "application/grpc");
    request.header("te", "trailers").header("thalweg-unary", "1").body(()).unwrap()
}

/// Makes gRPC's prefix and a parcel of these chunks by hand.
fn parcel(chunks: &[u8]) -> Vec<u8> {
    let field = [&[0x0a, chunks.len() as u8 | 0x80, (chunks.len() >> 7) as u8][..], chunks].concat();
    [&[0][..], &(field.len() as u32).to_be_bytes(), &field].concat()
}

fn chunk(payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let header = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length };
    [&FrameHeader::chunk(header, thalweg_wire::checksum(payload)).encode()[..], payload].concat()
}

#[tokio::test]
async fn a_strangers_put_is_understood_and_reports_progress_before_it_is_complete() {
    let listener = listen(&unary(plain())).await;
    let (mut requests, _stream, server) = by_hand(&*listener).await;
    let (answer, mut body) = requests.send_request(request("/thalweg.v1.Link/Put"), false).unwrap();
    let payload = [7; 1000];
    let message = parcel(&chunk(&payload));
    let recorder = Arc::new(Recorder::new(1000));
    let _pump = Pump::start(&server, &recorder);
    body.send_data(Bytes::copy_from_slice(&message[..900]), false).unwrap();
    recorder.until(|seen| seen.progress > 700).await;
    assert!(recorder.seen().placed.is_empty(), "it is not whole");
    body.send_data(Bytes::copy_from_slice(&message[900..]), true).unwrap();
    recorder.until(|seen| seen.stored.len() == 1).await;
    assert_eq!(recorder.seen().progress, 1000);
    let mut answer = answer.await.unwrap();
    while answer.body_mut().data().await.is_some() {}
    let trailers = answer.body_mut().trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
}

#[tokio::test]
async fn a_put_that_lies_ends_its_own_link() {
    let listener = listen(&unary(plain())).await;
    for bad in [parcel(&chunk(&[7; 300])[..200]), parcel(&FrameHeader::control(b"").encode())] {
        let (mut requests, _stream, server) = by_hand(&*listener).await;
        let (_answer, mut body) = requests.send_request(request("/thalweg.v1.Link/Put"), false).unwrap();
        body.send_data(bad.into(), true).unwrap();
        let error = server.receive(&Recorder::new(1000)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let (client, server) = link(&*listener, &unary(plain())).await;
        says(&*client, &*server, "still here").await;
    }
}

#[tokio::test]
async fn a_put_that_is_broken_off_leaves_the_link() {
    let listener = listen(&unary(plain())).await;
    let (mut requests, mut stream, server) = by_hand(&*listener).await;
    let recorder = Arc::new(Recorder::new(1000));
    let mut pump = Pump::start(&server, &recorder);
    let (_, mut body) = requests.send_request(request("/thalweg.v1.Link/Put"), false).unwrap();
    body.send_data(Bytes::copy_from_slice(&parcel(&chunk(&[7; 1000]))[..500]), false).unwrap();
    recorder.until(|seen| seen.progress > 0).await;
    body.send_reset(h2::Reason::CANCEL);
    let header = FrameHeader::control(b"still here").encode();
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat();
    let frame = [field(1, &header), field(2, b"still here")].concat();
    let message = [&[0][..], &(frame.len() as u32).to_be_bytes(), &frame].concat();
    stream.send_data(message.into(), false).unwrap();
    assert_eq!(pump.next().await.unwrap(), "still here");
    assert!(recorder.seen().placed.is_empty());
}

/// The client takes few bytes at a time. The bytes that it has not taken when the update is cancelled are not
/// sent.
#[tokio::test]
async fn an_update_that_is_cancelled_goes_no_further() {
    let listener = listen(&unary(plain())).await;
    let (mut requests, _stream, server) = by_hand(&*listener).await;
    let (answer, mut asking) = requests.send_request(request("/thalweg.v1.Link/Get"), false).unwrap();
    asking.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
    let source = pattern(8 << 20, 1);
    let update = outgoing(&source, update_id(1), 1 << 20);
    let cancel = update.cancel().clone();
    let sending = tokio::spawn(async move { server.send_update(&update).await });
    let mut answer = answer.await.unwrap();
    let body = answer.body_mut();
    let mut received = body.data().await.unwrap().unwrap().len();
    cancel.cancel();
    assert_eq!(sending.await.unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    body.flow_control().release_capacity(received).unwrap();
    while let Some(Ok(more)) = body.data().await {
        received += more.len();
        body.flow_control().release_capacity(more.len()).unwrap();
    }
    assert!(received < 1 << 20, "{received} bytes of 8 MiB arrived");
    assert!(source.claim(source.range()).is_ok(), "nothing is lent any more");
}

/// In push mode, a piece is sent only when the one before has been taken. Here the client does not take the
/// second piece.
#[tokio::test]
async fn each_piece_waits_for_the_answer_to_the_one_before() {
    const PIECE: usize = 64 << 10;
    let listener = listen(&push(plain(), PIECE as u64)).await;
    let (mut requests, _stream, server) = by_hand(&*listener).await;
    let source = pattern(4 * PIECE as u64, 1);
    let update = outgoing(&source, update_id(1), PIECE as u32 / 2);
    let sending = tokio::spawn(async move { server.send_update(&update).await });
    let [asks, has_it] = [&[0; 5][..], &[0, 0, 0, 0, 2, 8, 1]];
    for want in [asks, has_it] {
        let (answer, mut asking) = requests.send_request(request("/thalweg.v1.Link/Get"), false).unwrap();
        asking.send_data(Bytes::from_static(want), true).unwrap();
        let (mut answer, mut received) = (answer.await.unwrap(), 0);
        while let Some(data) = answer.body_mut().data().await {
            let bytes = data.unwrap().len();
            received += bytes;
            answer.body_mut().flow_control().release_capacity(bytes).unwrap();
        }
        assert!((PIECE..PIECE + 200).contains(&received), "{received}");
        assert!(!sending.is_finished());
    }
    let (_, mut asking) = requests.send_request(request("/thalweg.v1.Link/Get"), false).unwrap();
    asking.send_data(Bytes::from_static(asks), true).unwrap();
    assert_eq!(sending.await.unwrap().unwrap_err().kind(), ErrorKind::Unsupported);
}
