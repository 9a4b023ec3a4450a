//! The tcp transport: a link has one or several kernel TCP connections, without encryption or under TLS 1.3.
//!
//! Every connection begins with a [preamble](mod@preamble) that says which link it belongs to; then it
//! carries [frames](thalweg_wire::FrameHeader). A payload goes from the sender's arena into the kernel, and
//! from the kernel into the receiver's place. It is not copied in between, except under TLS, which copies it
//! once in each direction; such copies are counted. Control messages go on the first connection, chunks on
//! any connection that is free. If parts of sealed chunks may be lost, chunks go on [data
//! connections](mod@data), and only the first connection is under TLS.
//!
//! The code for single connections, which other transports use too, is in [`thalweg_sockets`]. [`line`] makes
//! links of connections that the kernel does not carry.
#![forbid(unsafe_code)]

mod connect;
mod data;
mod gather;
mod inlet;
pub mod line;
mod link;
mod listener;
mod marks;
mod masked_socket;
mod preamble;
mod receive;
mod send;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Link, Listener, Options, Result, Transport,
};
use thalweg_wire::MAX_CHUNK;

/// Maximum number of connections of one link.
pub const MAX_STREAMS: u8 = 16;
/// Best number of payload bytes in a chunk: large enough that system calls do not matter, and small enough
/// that the payload is still in the cache for the checksum (measured: README.md).
pub const BEST_CHUNK: u32 = 256 << 10;

/// The transport over kernel TCP: `tcp://host:port`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

#[async_trait]
impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            zero_copy: true,
            encrypted: true,
            symmetric: true,
            sender_unmodified: true,
            remote: true,
            congestion: cfg!(target_os = "linux"),
            retransmissions: cfg!(target_os = "linux"),
            max_chunk: MAX_CHUNK,
            ..Capabilities::default()
        }
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        check("listen", address, options)?;
        Ok(Box::new(listener::listen(address, options).await?))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        check("connect", address, options)?;
        Ok(Arc::new(connect::connect(address, options).await?))
    }
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    if address.scheme != "tcp" || address.port.is_none() {
        return Err(Error::new(ErrorKind::Address, operation, format!("{address} is not tcp://host:port"))
            .hint("write it as tcp://127.0.0.1:7070"));
    }
    if !(1..=MAX_STREAMS).contains(&options.streams) {
        let context = format!("{} streams; a link has 1 to {MAX_STREAMS}", options.streams);
        return Err(Error::new(ErrorKind::Unsupported, operation, context).hint("set streams within that"));
    }
    Ok(())
}
