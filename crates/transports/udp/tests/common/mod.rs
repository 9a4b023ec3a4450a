//! Helpers that several test files use.
#![allow(dead_code, clippy::unwrap_used)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

#[path = "../../../tcp/tests/common/trust.rs"]
mod certificates;
#[allow(unused_imports)]
pub use certificates::Trust;

use thalweg_transport::{Address, Link, Listener, Options, Transport};
use thalweg_udp::Udp;

/// Options without certificates.
pub fn plain() -> Options {
    small()
}

/// Small socket buffers, so that a peer that does not receive soon blocks its sender.
pub fn small() -> Options {
    Options { send_buffer: Some(256 << 10), receive_buffer: Some(256 << 10), ..Options::default() }
}

pub async fn listen(transport: &dyn Transport, options: &Options) -> Box<dyn Listener> {
    transport.listen(&Address::parse("udp://127.0.0.1:0").unwrap(), options).await.unwrap()
}

/// Returns both ends of a link: first the connecting one, then the accepted one.
pub async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let connect = async { Udp.connect(&address, options).await.unwrap() };
    tokio::join!(connect, accept)
}
