//! Addresses, options, and the values of counters.
#![allow(clippy::unwrap_used)]

use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Options, Transport};

mod common;
use common::{link, listen, plain};

async fn refused(options: Options) -> Error {
    let address = Address::parse("tcp://127.0.0.1:0").unwrap();
    let connecting = Tcp.connect(&Address::parse("tcp://127.0.0.1:1").unwrap(), &options).await;
    let listening = Tcp.listen(&address, &options).await.map(|_| ()).unwrap_err();
    assert_eq!(connecting.map(|_| ()).unwrap_err().kind(), listening.kind());
    listening
}

#[tokio::test]
async fn a_port_in_use_says_so_and_is_free_once_the_listener_is_dropped() {
    let first = listen(&plain()).await;
    let taken = Tcp.listen(&first.address(), &plain()).await.map(|_| ()).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::InUse);
    assert!(taken.to_string().contains("choose another port"), "{taken}");
    let (client, server) = link(&*first, &plain()).await;
    let address = first.address();
    drop(first);
    let again = Tcp.listen(&address, &plain()).await.unwrap();
    assert_eq!(again.address(), address);
    drop((client, server));
}

#[tokio::test]
async fn an_unknown_congestion_control_names_those_there_are() {
    let error = refused(Options { congestion: Some("carrier-pigeon".into()), ..plain() }).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("\"carrier-pigeon\"") && text.contains("reno"), "{text}");
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
    for options in [
        Options { send_buffer: Some(1 << 30), ..Options::default() },
        Options { receive_buffer: Some(1 << 30), ..Options::default() },
    ] {
        let error = refused(options).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("mem_max"), "{error}");
    }
}

#[tokio::test]
async fn streams_are_1_to_16() {
    for streams in [0, 17, 255] {
        let error = refused(Options { streams, ..plain() }).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("1 to 16"), "{error}");
    }
    let listener = listen(&plain()).await;
    let (client, server) = link(&*listener, &Options { streams: 16, ..plain() }).await;
    assert!(!client.capabilities().ordered && !server.capabilities().ordered);
    assert_eq!(server.counters().retransmissions, Some(0));
}

#[tokio::test]
async fn an_address_needs_a_port() {
    let error =
        Tcp.listen(&Address::parse("tcp://127.0.0.1").unwrap(), &plain()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Address);
    assert!(error.to_string().contains("tcp://127.0.0.1:7070"), "{error}");
}

/// The error of connecting to a server that accepts the connection, sends `answer`, and then leaves or stays.
async fn meets(answer: &'static [u8], stays: bool) -> Error {
    use tokio::io::AsyncWriteExt;
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", server.local_addr().unwrap());
    let options = Options { connect_timeout_ms: if stays { 100 } else { 60_000 }, ..plain() };
    let answering = async {
        let (mut stream, _) = server.accept().await.unwrap();
        stream.write_all(answer).await.unwrap();
        stays.then_some(stream)
    };
    let address = Address::parse(&address).unwrap();
    let (_kept, connected) = tokio::join!(answering, Tcp.connect(&address, &options));
    connected.map(|_| ()).unwrap_err()
}

#[tokio::test]
async fn a_server_that_is_none_of_ours_is_known() {
    let silent = meets(b"", true).await;
    assert_eq!(silent.kind(), ErrorKind::Timeout);
    assert!(silent.to_string().contains("raise the timeout"), "{silent}");
    let error = meets(b"", false).await;
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(error.to_string().contains("thalweg server listens"), "{error}");
    let other = meets(b"SSH-2.0-OpenSSH_9.2\r\n", true).await;
    assert_eq!(other.kind(), ErrorKind::Corrupt);
    assert!(other.to_string().contains("check the address"), "{other}");
    let other_link = meets(b"tlwp\x01\x00\x01\x00................", true).await;
    assert_eq!(other_link.kind(), ErrorKind::Corrupt);
}
