//! Helpers of several test files.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

use thalweg_quic::Quic;
use thalweg_transport::{Address, Link, Listener, Options, Result, Transport};

#[path = "../../../tcp/tests/common/trust.rs"]
mod certificates;
#[allow(unused_imports)]
pub use certificates::{identity, Trust};

/// Small windows, so that a peer that receives nothing soon blocks its sender.
pub const BUFFER: u32 = 256 << 10;

pub fn plain() -> Options {
    Options { send_buffer: Some(BUFFER), receive_buffer: Some(BUFFER), ..Options::default() }
}

pub async fn listen(options: &Options) -> Box<dyn Listener> {
    Quic.listen(&Address::parse("quic://127.0.0.1:0").unwrap(), options).await.unwrap()
}

/// Connects and accepts. Returns the client's link or error, and the server's.
pub async fn meet(
    listener: &dyn Listener,
    options: &Options,
) -> (Result<Arc<dyn Link>>, Result<Arc<dyn Link>>) {
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await };
    tokio::join!(Quic.connect(&address, options), accept)
}

/// Makes a link and returns both ends.
pub async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (client, server) = meet(listener, options).await;
    (client.unwrap(), server.unwrap())
}
