//! What several test files need: certificates, links, hand-made frames.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

use thalweg_pki::Authority;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Identity, Link, Listener, Options, Result, Tls, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Small socket buffers, so that a peer that does not receive soon blocks its sender.
pub const BUFFER: u32 = 256 << 10;

pub fn plain() -> Options {
    Options { send_buffer: Some(BUFFER), receive_buffer: Some(BUFFER), ..Options::default() }
}

pub fn streams(streams: u8) -> Options {
    Options { streams, ..plain() }
}

/// An authority and what it has issued for a server on this machine.
pub struct Trust {
    pub authority: Authority,
    pub server: Identity,
}

impl Trust {
    pub fn new() -> Self {
        let authority = Authority::new("test authority", 30).unwrap();
        let hosts = ["127.0.0.1".to_owned(), "::1".into(), "localhost".into()];
        let server = identity(authority.issue("server", &hosts, 30, true).unwrap());
        Self { authority, server }
    }

    pub fn client(&self, name: &str, days: i64) -> Identity {
        identity(self.authority.issue(name, &[], days, false).unwrap())
    }

    /// Options of a server.
    pub fn listen(&self, require_client: bool) -> Options {
        self.options(Some(self.server.clone()), require_client)
    }

    /// Options of a client.
    pub fn connect(&self, own: Option<Identity>) -> Options {
        self.options(own, false)
    }

    fn options(&self, identity: Option<Identity>, require_client: bool) -> Options {
        let authority = self.authority.certificate_pem().to_owned();
        Options { tls: Some(Tls { authority, identity, require_client, server_name: None }), ..plain() }
    }
}

pub fn identity(made: thalweg_pki::Identity) -> Identity {
    Identity { certificate: made.certificate, key: made.key }
}

pub async fn listen(options: &Options) -> Box<dyn Listener> {
    Tcp.listen(&Address::parse("tcp://127.0.0.1:0").unwrap(), options).await.unwrap()
}

/// What both ends get: the client's link or error, and the server's.
pub async fn meet(
    listener: &dyn Listener,
    options: &Options,
) -> (Result<Arc<dyn Link>>, Result<Arc<dyn Link>>) {
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await };
    tokio::join!(Tcp.connect(&address, options), accept)
}

/// Both ends of a link.
pub async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (client, server) = meet(listener, options).await;
    (client.unwrap(), server.unwrap())
}

/// The preamble of README.md's table.
pub fn preamble(stream: u8, streams: u8, id: [u8; 16]) -> Vec<u8> {
    [b"tlwp", &[1, stream, streams, 0][..], &id].concat()
}

/// A connection whose bytes the test writes by hand, past its preamble.
pub async fn by_hand(listener: &dyn Listener) -> (TcpStream, Arc<dyn Link>) {
    let mut stream = knock(listener).await;
    let hello = preamble(0, 1, [9; 16]);
    stream.write_all(&hello).await.unwrap();
    let mut answer = vec![0; hello.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, hello);
    (stream, listener.accept().await.unwrap().await.unwrap())
}

/// A connection without a word.
pub async fn knock(listener: &dyn Listener) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", listener.address().port.unwrap())).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}
