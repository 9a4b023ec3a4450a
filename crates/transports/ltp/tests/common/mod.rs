//! Helpers of several test files.
#![allow(dead_code, clippy::unwrap_used)] // each file uses a part; a panic is how tests report

use std::sync::Arc;

#[path = "../../../tcp/tests/common/trust.rs"]
mod certificates;
#[allow(unused_imports)]
pub use certificates::Trust;

use thalweg_ltp::Ltp;
use thalweg_transport::{Address, Link, Listener, Options, Transport};

/// Options without TLS, to which tests add certificates.
pub fn plain() -> Options {
    small()
}

/// Small socket buffers, so that a peer that receives nothing soon blocks its sender.
pub fn small() -> Options {
    Options { send_buffer: Some(256 << 10), receive_buffer: Some(256 << 10), ..Options::default() }
}

pub async fn listen(transport: &dyn Transport, options: &Options) -> Box<dyn Listener> {
    transport.listen(&Address::parse("ltp://127.0.0.1:0").unwrap(), options).await.unwrap()
}

/// Both ends of a link: the connecting and the accepted one.
pub async fn link(listener: &dyn Listener, options: &Options) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let address = listener.address();
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let connect = async { Ltp.connect(&address, options).await.unwrap() };
    tokio::join!(connect, accept)
}
