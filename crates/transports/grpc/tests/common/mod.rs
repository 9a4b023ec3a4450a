//! Helpers of several test files: certificates, links, clients made by hand.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

use thalweg_grpc::Grpc;
use thalweg_transport::{Address, Link, Listener, Options, Result, Transport, Value};

#[path = "../../../tcp/tests/common/trust.rs"]
mod certificates;
#[allow(unused_imports)]
pub use certificates::{identity, Trust};

/// Small socket buffers, so that a peer that receives nothing soon blocks its sender.
pub const BUFFER: u32 = 256 << 10;

pub fn plain() -> Options {
    Options { send_buffer: Some(BUFFER), receive_buffer: Some(BUFFER), ..Options::default() }
}

/// The same options in unary mode.
pub fn unary(options: Options) -> Options {
    Options { own: options.own.with("mode", Value::Text("unary".into())), ..options }
}

/// The same options in push mode, with pieces of `piece` bytes.
pub fn push(options: Options, piece: u64) -> Options {
    let own = options.own.with("mode", Value::Text("push".into())).with("piece", Value::Number(piece));
    Options { own, ..options }
}

pub async fn listen(options: &Options) -> Box<dyn Listener> {
    Grpc.listen(&Address::parse("grpc://127.0.0.1:0").unwrap(), options).await.unwrap()
}

/// Connects and accepts. Returns the client's link or error, and the server's.
pub async fn meet(
    listener: &dyn Listener,
    options: &Options,
) -> (Result<Arc<dyn Link>>, Result<Arc<dyn Link>>) {
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await };
    tokio::join!(Grpc.connect(&address, options), accept)
}

/// Makes a link and returns both ends.
pub async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (client, server) = meet(listener, options).await;
    (client.unwrap(), server.unwrap())
}

/// A connection on which nothing has been sent.
pub async fn knock(listener: &dyn Listener) -> tokio::net::TcpStream {
    let stream =
        tokio::net::TcpStream::connect(("127.0.0.1", listener.address().port.unwrap())).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}
