//! Links whose chunks go on data connections: which connections may join them, and what each connection may
//! carry.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use bytes::Bytes;
use ring::hmac;
use rustls::pki_types::ServerName;
use thalweg_conformance::{outgoing, pattern, suite, update_id, Factory, Pump, Recorder};
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, ErrorKind, Link, Listener, Options, Sealed, Transport};
use thalweg_wire::{ChunkHeader, FrameHeader, LayoutHash};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::TlsConnector;

mod common;
use common::lossy::{Lossy, Script};
use common::{knock, Trust};

const HELLO_BYTES: usize = 56;
const PROOF_BYTES: usize = 32;

/// Options that mark chunks as sealed by a layer. The chunks themselves are not encrypted.
fn sealed(options: Options) -> Options {
    Options { sealed: Some(Sealed { head: 16, record: 1432, stride: 1448 }), ..options }
}

fn factory(streams: u8) -> Factory {
    let (trust, other) = (Trust::new(), Trust::new());
    let connect = Options { streams, ..sealed(trust.connect(None)) };
    let mut factory = Factory::new(Arc::new(Lossy::default()), "tcp://localhost:0");
    factory.relayed = false; // the lossy listener delivers only complete frames
    factory.stranger = Some(sealed(other.connect(None)));
    factory.options(sealed(trust.listen(false)), connect)
}

mod over_a_data_connection {
    use super::*;
    suite!(factory(1));
}

mod over_three_data_connections {
    use super::*;
    suite!(factory(3));
}

async fn listen(trust: &Trust, script: Script) -> Box<dyn Listener> {
    let options = sealed(trust.listen(false));
    Lossy(script).listen(&Address::parse("tcp://localhost:0").unwrap(), &options).await.unwrap()
}

async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let connect = async { Tcp.connect(&address, options).await.unwrap() };
    tokio::join!(connect, accept)
}

/// Sends an update and a message, and checks that both arrive.
async fn carries_an_update(client: &dyn Link, server: &Arc<dyn Link>) {
    let (source, recorder) = (pattern(100_000, 1), Arc::new(Recorder::new(100_000)));
    let mut pump = Pump::start(server, &recorder);
    client.send_update(&outgoing(&source, update_id(1), 10_000)).await.unwrap();
    client.send_control(Bytes::from_static(b"end")).await.unwrap();
    assert_eq!(pump.next().await.unwrap(), "end");
    assert_eq!(recorder.seen().ranges.bytes(), 100_000, "the message came behind all chunks");
    recorder.check(&source);
}

#[tokio::test]
async fn both_ends_must_want_it() {
    let trust = Trust::new();
    let at = Address::parse("tcp://localhost:0").unwrap();
    let kernel = Tcp.listen(&at, &sealed(trust.listen(false))).await.unwrap();
    let lossy = listen(&trust, Script::default()).await;
    let unsealed = Lossy::default().listen(&at, &trust.listen(false)).await.unwrap();
    for (listener, options, data) in [
        (&*lossy, sealed(trust.connect(None)), true),
        (&*lossy, trust.connect(None), false),
        (&*unsealed, sealed(trust.connect(None)), false),
        (&*kernel, sealed(trust.connect(None)), false),
    ] {
        let (client, server) = link(listener, &options).await;
        for end in [&client, &server] {
            assert_eq!(end.capabilities().settled, data);
            assert_eq!(end.capabilities().ordered, !data);
        }
        assert_eq!(client.capabilities().reliable, !data);
        carries_an_update(&*client, &server).await;
        // Chunks on a data connection do not pass through TLS's buffers.
        assert_eq!(client.counters().copied, if data { 0 } else { 100_000 });
    }
}

/// The first connection of a link with one data connection. The test writes the data connection's bytes
/// itself.
struct ByHand {
    control: TlsStream<TcpStream>,
    id: [u8; 16],
    key: hmac::Key,
}

async fn begin(listener: &dyn Listener, trust: &Trust, id: u8) -> ByHand {
    let options = trust.connect(None);
    let (config, name) = thalweg_sockets::tls::client(&listener.address(), &options.tls.unwrap()).unwrap();
    let name: ServerName<'static> = name;
    let stream = knock(listener).await;
    let mut control = TlsConnector::from(config).connect(name, stream).await.unwrap();
    let id = [id; 16];
    let hello = [b"tlwp", &[1, 0, 1, 1][..], &id].concat();
    control.write_all(&hello).await.unwrap();
    let mut answer = vec![0; hello.len()];
    control.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, hello);
    let secret = control.get_ref().1.export_keying_material([0; 32], b"EXPORTER-thalweg-data", None).unwrap();
    ByHand { control, id, key: hmac::Key::new(hmac::HMAC_SHA256, &secret) }
}

impl ByHand {
    /// The first bytes of a data connection of this link.
    fn hello(&self, stream: u8, key: &hmac::Key) -> Vec<u8> {
        let preamble = [b"tlwd", &[1, stream, 1, 1][..], &self.id].concat();
        let signed = [b"thalweg tcp data 1 client", &preamble[..]].concat();
        [&preamble, hmac::sign(key, &signed).as_ref()].concat()
    }
}

/// Opens a connection with a `hello` that the listener must refuse.
async fn refused(listener: &dyn Listener, hello: &[u8], kind: ErrorKind) {
    let mut stream = knock(listener).await;
    stream.write_all(hello).await.unwrap();
    let error = listener.accept().await.unwrap().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0, "the connection has ended");
}

async fn joined(listener: &dyn Listener, hello: &[u8]) -> TcpStream {
    let mut stream = knock(listener).await;
    stream.write_all(hello).await.unwrap();
    stream.read_exact(&mut [0; PROOF_BYTES]).await.unwrap();
    stream
}

#[tokio::test]
async fn only_who_proves_to_be_of_a_link_joins_it() {
    let trust = Trust::new();
    let listener = listen(&trust, Script::default()).await;
    let (mut one, other) = (begin(&*listener, &trust, 1).await, begin(&*listener, &trust, 2).await);
    let (pending, others) = (listener.accept().await.unwrap(), listener.accept().await.unwrap());
    let mut damaged = one.hello(0, &one.key);
    damaged[HELLO_BYTES - 1] ^= 1;
    refused(&*listener, &damaged, ErrorKind::Security).await;
    refused(&*listener, &one.hello(0, &other.key), ErrorKind::Security).await;
    refused(&*listener, &one.hello(1, &one.key), ErrorKind::Corrupt).await;
    let nobody = ByHand { id: [3; 16], ..begin(&*listener, &trust, 4).await };
    drop(listener.accept().await.unwrap());
    refused(&*listener, &nobody.hello(0, &nobody.key), ErrorKind::Security).await;
    let _data = joined(&*listener, &one.hello(0, &one.key)).await;
    let server = pending.await.unwrap();
    // The message, preceded by the mark for the one data connection.
    let message = [&[0; 8][..], &FrameHeader::control(b"in").encode(), b"in"].concat();
    one.control.write_all(&message).await.unwrap();
    assert_eq!(server.receive(&Recorder::new(0)).await.unwrap(), "in");
    drop(others);
}

#[tokio::test]
async fn a_data_connection_that_is_sent_again_joins_nothing() {
    let trust = Trust::new();
    let script = Script::default();
    let listener = listen(&trust, script.clone()).await;
    let options = sealed(trust.connect(None));
    let (client, server) = link(&*listener, &options).await;
    let hello = script.hellos.lock().unwrap()[0].clone();
    assert_eq!(hello.len(), HELLO_BYTES);
    refused(&*listener, &hello, ErrorKind::Security).await;
    // It also joins nothing while the link of another client waits for its data connection.
    let _other = begin(&*listener, &trust, 1).await;
    let _pending = listener.accept().await.unwrap();
    refused(&*listener, &hello, ErrorKind::Security).await;
    carries_an_update(&*client, &server).await;
}

#[tokio::test]
async fn each_place_of_a_link_is_taken_once() {
    let trust = Trust::new();
    let listener = listen(&trust, Script::default()).await;
    let one = begin(&*listener, &trust, 1).await;
    let pending = listener.accept().await.unwrap();
    let hello = one.hello(0, &one.key);
    let _data = joined(&*listener, &hello).await;
    refused(&*listener, &hello, ErrorKind::Security).await;
    pending.await.unwrap();
}

/// Both connections of a link, for a test that is the client.
async fn by_hand(listener: &dyn Listener, trust: &Trust) -> (ByHand, TcpStream, Arc<dyn Link>) {
    let hand = begin(listener, trust, 1).await;
    let pending = listener.accept().await.unwrap();
    let data = joined(listener, &hand.hello(0, &hand.key)).await;
    (hand, data, pending.await.unwrap())
}

fn chunk(payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    let chunk = ChunkHeader { job: 1, round: 1, sender: 1, layout: LayoutHash(1), offset: 0, length };
    [&FrameHeader::chunk(chunk, thalweg_wire::checksum(payload)).encode()[..], payload].concat()
}

#[tokio::test]
async fn a_frame_on_the_wrong_connection_ends_the_link() {
    let trust = Trust::new();
    let listener = listen(&trust, Script::default()).await;
    let message = [&FrameHeader::control(b"word").encode()[..], b"word"].concat();
    let (_hand, mut data, server) = by_hand(&*listener, &trust).await;
    data.write_all(&message).await.unwrap();
    let error = server.receive(&Recorder::new(0)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("belong on 0"), "{error}");
    let (mut hand, _data, server) = by_hand(&*listener, &trust).await;
    hand.control.write_all(&[&[0; 8][..], &chunk(b"payload")].concat()).await.unwrap();
    let error = server.receive(&Recorder::new(100)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains("data connections"), "{error}");
}

/// Without TLS, anybody on the path can end a connection. The bytes that came before must not be taken as
/// complete.
#[tokio::test]
async fn a_data_connection_that_is_cut_breaks_the_link() {
    let trust = Trust::new();
    let listener = listen(&trust, Script::default()).await;
    for complete in [true, false] {
        let (mut hand, mut data, server) = by_hand(&*listener, &trust).await;
        let frame = chunk(b"payload");
        data.write_all(&frame).await.unwrap();
        drop(data);
        let sent = (frame.len() as u64 + u64::from(!complete)).to_le_bytes();
        let message = [&sent[..], &FrameHeader::control(b"end").encode(), b"end"].concat();
        hand.control.write_all(&message).await.unwrap();
        match server.receive(&Recorder::new(100)).await {
            Ok(message) => assert!(complete && message == "end"),
            Err(error) => {
                assert!(!complete && error.kind() == ErrorKind::Closed, "{error}");
                assert!(error.to_string().contains("before all that was sent on it came"), "{error}");
            }
        }
    }
}
