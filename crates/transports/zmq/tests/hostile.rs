//! Malformed peers: random bytes, invalid greetings, messages over the limit, wrong keys.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use bytes::Bytes;
use thalweg_conformance::Recorder;
use thalweg_transport::{ErrorKind, Link, Listener, Options, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

mod common;
use common::{connect, link, listen, options, Trust};

const PATTERNS: [&str; 4] = ["router", "pubsub", "pushpull", "reqrep"];

async fn say(from: &Arc<dyn Link>, to: &Arc<dyn Link>) {
    from.send_control(Bytes::from_static(b"unharmed")).await.unwrap();
    assert_eq!(to.receive(&Recorder::new(0)).await.unwrap(), "unharmed");
}

/// A greeting of ZMTP 3.1 (RFC 37): signature, version, mechanism, as-server flag, filler.
fn greeting(mechanism: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(mechanism);
    bytes.resize(64, 0);
    bytes
}

/// A command frame.
fn command(name: &str, body: &[u8]) -> Vec<u8> {
    let content = [&[name.len() as u8], name.as_bytes(), body].concat();
    [&[4, content.len() as u8], &content[..]].concat()
}

/// The handshake of a DEALER with this identity, without encryption.
fn ready(identity: &[u8]) -> Vec<u8> {
    let property = |name: &str, value: &[u8]| {
        [&[name.len() as u8], name.as_bytes(), &(value.len() as u32).to_be_bytes(), value].concat()
    };
    let body = [property("Socket-Type", b"DEALER"), property("Identity", identity)].concat();
    [greeting(b"NULL"), command("READY", &body)].concat()
}

/// Sends `bytes`. Then waits until the listener closes the connection, if `hangs_up`; otherwise, until it
/// answers.
async fn intrude(listener: &dyn Listener, bytes: &[u8], hangs_up: bool) {
    let mut stream = TcpStream::connect(("127.0.0.1", listener.address().port.unwrap())).await.unwrap();
    // The listener may close the connection meanwhile.
    let _ = stream.write_all(bytes).await;
    if hangs_up {
        let mut rest = Vec::new();
        // Ignore an error: a reset also ends the connection.
        let _ = stream.read_to_end(&mut rest).await;
    } else {
        // Ignore an error: a reset also counts as an answer.
        let _ = stream.read(&mut [0; 64]).await;
    }
}

#[tokio::test]
async fn garbage_on_the_port_harms_nobody() {
    for pattern in PATTERNS {
        let listener = listen(&options(pattern)).await;
        let (client, server) = link(&*listener, &options(pattern)).await;
        for bytes in
            [&b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..], &[0xff; 64], &[0; 300], &[1], &[0x16, 3, 1, 2, 0]]
        {
            intrude(&*listener, bytes, false).await;
        }
        say(&client, &server).await;
        let (client, server) = link(&*listener, &options(pattern)).await;
        say(&server, &client).await;
    }
}

#[tokio::test]
async fn a_greeting_that_lies_ends_its_own_connection() {
    for pattern in PATTERNS {
        let listener = listen(&options(pattern)).await;
        let (client, server) = link(&*listener, &options(pattern)).await;
        let unknown = greeting(b"NOSUCH");
        let curve = greeting(b"CURVE");
        let strange = [greeting(b"NULL"), command("UNREADY", b"")].concat();
        let too_long =
            [&greeting(b"NULL")[..], &[6, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]].concat();
        let property =
            [&greeting(b"NULL")[..], &command("READY", &[200, b'x', 0xff, 0xff, 0xff, 0xff])].concat();
        for bytes in [unknown, curve, strange, too_long, property] {
            intrude(&*listener, &bytes, true).await;
        }
        say(&client, &server).await;
        let (client, server) = link(&*listener, &options(pattern)).await;
        say(&server, &client).await;
    }
}

/// A message over ZMQ_MAXMSGSIZE ends its connection, and nothing is allocated for it.
#[tokio::test]
async fn a_message_over_the_limit_ends_its_own_connection() {
    let listener = listen(&options("router")).await;
    let (client, server) = link(&*listener, &options("router")).await;
    for length in [thalweg_zmq::MAX_MESSAGE as u64 + 1, u64::MAX / 2] {
        let long = [&ready(&[0x81; 16])[..], &[2], &length.to_be_bytes()].concat();
        intrude(&*listener, &long, true).await;
    }
    say(&client, &server).await;
}

/// A peer shakes hands properly and then sends invalid messages.
#[tokio::test]
async fn nonsense_of_a_proper_peer_is_dropped() {
    let listener = listen(&options("router")).await;
    let (client, server) = link(&*listener, &options("router")).await;
    for identity in [&[0x81_u8; 16][..], b"short", &[0x82; 100]] {
        let mut stream = TcpStream::connect(("127.0.0.1", listener.address().port.unwrap())).await.unwrap();
        stream.write_all(&ready(identity)).await.unwrap();
        let mut answer = [0; 64 + 28];
        // Read the listener's greeting, and its READY with socket type and no identity.
        stream.read_exact(&mut answer).await.unwrap();
        let mut bytes = Vec::new();
        for length in [0_u8, 1, 28, 100] {
            bytes.extend([0, length]);
            bytes.extend(vec![b't'; length.into()]);
        }
        // Send a message of five parts and a PING. The PONG shows that the listener has read the rest.
        bytes.extend([1, 1, 7, 1, 1, 7, 1, 1, 7, 1, 1, 7, 0, 1, 7]);
        bytes.extend(command("PING", &[0, 0]));
        stream.write_all(&bytes).await.unwrap();
        let mut seen = Vec::new();
        while !seen.windows(4).any(|four| four == b"PONG") {
            assert!(stream.read_buf(&mut seen).await.unwrap() > 0, "it hung up");
        }
    }
    say(&client, &server).await;
    say(&server, &client).await;
}

/// A client without keys does not reach a server with keys, and a client with keys does not reach a server
/// without.
#[tokio::test]
async fn keys_at_one_end_only_are_refused() {
    for pattern in PATTERNS {
        let trust = Trust::new();
        let quick = |options: Options| Options { connect_timeout_ms: 2_000, ..options };
        let listener = listen(&trust.listen(pattern)).await;
        let error = connect(&*listener, &quick(options(pattern))).await.err().unwrap();
        assert!(
            matches!(error.kind(), ErrorKind::Security | ErrorKind::Closed | ErrorKind::Timeout),
            "{error}"
        );
        let (client, server) = link(&*listener, &trust.connect(pattern)).await;
        say(&client, &server).await;
        let clear = listen(&options(pattern)).await;
        let error = connect(&*clear, &quick(trust.connect(pattern))).await.err().unwrap();
        assert!(matches!(error.kind(), ErrorKind::Security | ErrorKind::Timeout), "{error}");
    }
}

#[tokio::test]
async fn files_without_a_key_and_options_it_cannot_have_are_refused_with_the_hint() {
    let trust = Trust::new();
    let listening = |change: &dyn Fn(&mut Tls)| {
        let mut options = trust.listen("router");
        change(options.tls.as_mut().unwrap());
        options
    };
    let old = |text: &str| text.split("-----BEGIN THALWEG").next().unwrap().to_owned();
    let without = listening(&|tls| tls.identity.as_mut().unwrap().key = old(&trust.server.key));
    let others = listening(&|tls| tls.authority = Trust::new().authority);
    let mutual = listening(&|tls| tls.require_client = true);
    let streams = Options { streams: 2, ..options("router") };
    for (options, kind) in [
        (without, ErrorKind::Security),
        (others, ErrorKind::Security),
        (mutual, ErrorKind::Unsupported),
        (streams, ErrorKind::Unsupported),
        (options("pair"), ErrorKind::Unsupported),
    ] {
        let address = thalweg_transport::Address::parse("zmq://127.0.0.1:0").unwrap();
        let transport = thalweg_zmq::Zmq::default();
        let error = thalweg_transport::Transport::listen(&transport, &address, &options).await.err().unwrap();
        assert_eq!(error.kind(), kind, "{error}");
    }
}
