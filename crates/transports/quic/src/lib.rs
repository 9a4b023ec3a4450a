//! The quic transport: a link is a QUIC connection (RFC 9000), by quinn.
//!
//! Each end opens unidirectional streams. The first one carries control messages. Each further one carries
//! one [chunk](thalweg_wire::FrameHeader) and ends with it. So a chunk is cancelled by a reset of its stream,
//! and a lost packet delays only the chunks whose bytes it carried. Frames begin with [marks](mod@marks),
//! which keep messages and chunks in the order that the contract asks for.
//!
//! QUIC always encrypts. With certificates it trusts as `tcp` does. Without them the peers remain
//! [unverified](mod@unverified), as they do over `tcp` without TLS.
#![forbid(unsafe_code)]

mod config;
mod connect;
mod link;
mod listener;
mod marks;
mod receive;
mod send;
mod trust;
mod unverified;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Link, Listener, Options, Result, Transport,
};
use thalweg_wire::MAX_CHUNK;

/// The transport over QUIC: `quic://host:port`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quic;

#[async_trait]
impl Transport for Quic {
    fn name(&self) -> &'static str {
        "quic"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            settled: true,
            encrypted: true,
            symmetric: true,
            remote: true,
            congestion: true,
            retransmissions: true,
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
    if address.scheme != "quic" || address.port.is_none() {
        return Err(Error::new(ErrorKind::Address, operation, format!("{address} is not quic://host:port"))
            .hint("write it as quic://127.0.0.1:7070"));
    }
    if options.streams != 1 {
        let context = format!("{} streams; a link of quic is one connection", options.streams);
        return Err(Error::new(ErrorKind::Unsupported, operation, context)
            .hint("leave streams out: each chunk has a stream of its own"));
    }
    Ok(())
}
