//! Options that are honoured, options that are refused with a hint, counters, and servers of other protocols.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder};
use thalweg_grpc::{Grpc, MAX_CHUNK};
use thalweg_transport::{Address, Error, ErrorKind, Options, Transport};

mod common;
use common::{link, listen, plain, Trust};

/// Checks that both ends give the same kind of error, and returns the listener's.
async fn refused(options: Options) -> Error {
    let at = Address::parse("grpc://127.0.0.1:0").unwrap();
    let listening = Grpc.listen(&at, &options).await.map(|_| ()).unwrap_err();
    let listener = listen(&plain()).await;
    let connecting = Grpc.connect(&listener.address(), &options).await.map(|_| ()).unwrap_err();
    assert_eq!(connecting.kind(), listening.kind());
    listening
}

#[tokio::test]
async fn an_unknown_congestion_control_names_those_there_are() {
    let error = refused(Options { congestion: Some("carrier-pigeon".into()), ..plain() }).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("reno"), "{error}");
}

#[tokio::test]
async fn the_congestion_control_is_as_chosen_at_both_ends() {
    for name in ["reno", "cubic"] {
        let options = Options { congestion: Some(name.into()), ..plain() };
        let listener = listen(&options).await;
        let (client, server) = link(&*listener, &options).await;
        for end in [client, server] {
            let counters = end.counters();
            assert_eq!(counters.congestion.as_deref(), Some(name));
            assert_eq!(counters.retransmissions, Some(0));
            assert!(counters.round_trip.is_some());
        }
    }
}

#[tokio::test]
async fn a_buffer_the_system_does_not_grant_is_refused() {
    let error = refused(Options { send_buffer: Some(1 << 30), ..Options::default() }).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("mem_max"), "{error}");
}

#[tokio::test]
async fn a_link_is_one_connection() {
    for streams in [0, 2] {
        let error = refused(Options { streams, ..plain() }).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("one HTTP/2 connection"), "{error}");
    }
}

#[tokio::test]
async fn an_address_needs_a_port() {
    let address = Address::parse("grpc://127.0.0.1").unwrap();
    let error = Grpc.listen(&address, &plain()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Address);
    assert!(error.to_string().contains("grpc://127.0.0.1:7070"), "{error}");
}

#[tokio::test]
async fn a_chunk_over_the_limit_is_refused_and_the_link_goes_on() {
    let listener = listen(&plain()).await;
    let (client, server) = link(&*listener, &plain()).await;
    let source = pattern(u64::from(MAX_CHUNK) + 1, 1);
    let error = client.send_update(&outgoing(&source, update_id(1), MAX_CHUNK + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    client.send_control(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "still here");
}

/// gRPC copies a payload once on the way out and once on the way in; the receiver copies it into its place;
/// TLS adds one copy each.
#[tokio::test]
async fn every_copy_is_counted() {
    let trust = Trust::new();
    for (listen_options, connect, copies) in
        [(plain(), plain(), (1, 2)), (trust.listen(false), trust.connect(None), (2, 3))]
    {
        let listener = listen(&listen_options).await;
        let (client, server) = link(&*listener, &connect).await;
        let source = pattern(500_000, 1);
        let recorder = std::sync::Arc::new(Recorder::new(500_000));
        let pump = Pump::start(&server, &recorder);
        client.send_update(&outgoing(&source, update_id(1), 64 << 10)).await.unwrap();
        recorder.until(|seen| seen.stored.len() == 8).await;
        pump.stop(&client).await;
        assert_eq!(client.counters().copied, copies.0 * 500_000);
        assert_eq!(server.counters().copied, copies.1 * 500_000);
    }
}

/// A message that was sent has left this process, so it arrives whatever happens to the link then.
#[tokio::test]
async fn a_sent_message_arrives_although_the_link_is_closed_at_once() {
    let trust = Trust::new();
    for (listen_options, connect) in [(plain(), plain()), (trust.listen(false), trust.connect(None))] {
        let listener = listen(&listen_options).await;
        for _ in 0..20 {
            let (client, server) = link(&*listener, &connect).await;
            server.send_control(vec![5; 100_000].into()).await.unwrap();
            server.close().await;
            drop(server);
            assert_eq!(client.receive(&Recorder::new(0)).await.unwrap().len(), 100_000);
            let error = client.receive(&Recorder::new(0)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        }
    }
}

/// The error of connecting to a server that accepts the connection, sends `answer`, and then leaves or stays.
async fn meets(answer: &'static [u8], stays: bool) -> Error {
    use tokio::io::AsyncWriteExt;
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("grpc://{}", server.local_addr().unwrap());
    let options = Options { connect_timeout_ms: if stays { 100 } else { 60_000 }, ..plain() };
    let answering = async {
        let (mut stream, _) = server.accept().await.unwrap();
        stream.write_all(answer).await.unwrap();
        stays.then_some(stream)
    };
    let address = Address::parse(&address).unwrap();
    let (_kept, connected) = tokio::join!(answering, Grpc.connect(&address, &options));
    connected.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn a_server_of_another_protocol_is_reported() {
    let silent = meets(b"", true).await;
    assert_eq!(silent.kind(), ErrorKind::Timeout);
    assert!(silent.to_string().contains("raise the timeout"), "{silent}");
    let error = meets(b"", false).await;
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert!(error.to_string().contains("thalweg server listens"), "{error}");
    let other = meets(b"SSH-2.0-OpenSSH_9.2\r\n", true).await;
    assert_eq!(other.kind(), ErrorKind::Corrupt, "{other}");
    assert!(other.to_string().contains("check the address"), "{other}");
}
