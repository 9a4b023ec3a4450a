//! Helpers of several test files: certificates, links, frames made by hand.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Link, Listener, Options, Result, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[path = "trust.rs"]
mod certificates;
pub mod lossy;
#[allow(unused_imports)]
pub use certificates::{identity, Trust};

/// Small socket buffers, so that a peer that receives nothing soon blocks its sender.
pub const BUFFER: u32 = 256 << 10;

pub fn plain() -> Options {
    Options { send_buffer: Some(BUFFER), receive_buffer: Some(BUFFER), ..Options::default() }
}

pub fn streams(streams: u8) -> Options {
    Options { streams, ..plain() }
}

pub async fn listen(options: &Options) -> Box<dyn Listener> {
    Tcp.listen(&Address::parse("tcp://127.0.0.1:0").unwrap(), options).await.unwrap()
}

/// Connects and accepts. Returns the client's link or error, and the server's.
pub async fn meet(
    listener: &dyn Listener,
    options: &Options,
) -> (Result<Arc<dyn Link>>, Result<Arc<dyn Link>>) {
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await };
    tokio::join!(Tcp.connect(&address, options), accept)
}

/// Makes a link and returns both ends.
pub async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (client, server) = meet(listener, options).await;
    (client.unwrap(), server.unwrap())
}

/// The preamble, built from README.md's table.
pub fn preamble(stream: u8, streams: u8, id: [u8; 16]) -> Vec<u8> {
    [b"tlwp", &[1, stream, streams, 0][..], &id].concat()
}

/// A connection whose preamble has been exchanged; the test writes all further bytes by hand.
pub async fn by_hand(listener: &dyn Listener) -> (TcpStream, Arc<dyn Link>) {
    let mut stream = knock(listener).await;
    let hello = preamble(0, 1, [9; 16]);
    stream.write_all(&hello).await.unwrap();
    let mut answer = vec![0; hello.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, hello);
    (stream, listener.accept().await.unwrap().await.unwrap())
}

/// A connection on which nothing has been sent.
pub async fn knock(listener: &dyn Listener) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", listener.address().port.unwrap())).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}
