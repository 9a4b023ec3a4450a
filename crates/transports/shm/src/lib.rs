//! The shm transport: peers on one machine that run as one user copy updates out of each other's memory.
//!
//! A link is a connection of an abstract Unix socket, which has no file and ends with its process. It carries
//! control messages, and [notes](mod@frame) that say where a chunk lies: in which memory, at which offset.
//! The memory itself is passed once, as a sealed descriptor. The receiver copies a chunk out of this memory
//! straight into the place that its sink gives. This is the only copy.
//!
//! Bytes in a shared arena (`Arena::shared`) are lent from there. Other bytes are first copied into shared
//! memory of the [link's own](mod@lend), and this copy is counted.
//!
//! The bytes stay lent until the receiver says that it has taken them. To take them back earlier, the sender
//! revokes the note in [shared words](thalweg_arena::SharedWords) that both ends map. The receiver drops a
//! chunk that was revoked during the copy.
#![cfg(target_os = "linux")]
#![forbid(unsafe_code)]

mod connect;
mod frame;
mod lend;
mod link;
mod listener;
mod name;
mod read;
mod send;
mod socket;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Link, Listener, Options, Result, Transport,
};
use thalweg_wire::MAX_CHUNK;

/// Usual bytes of a chunk, also of a small model. Other transports cut small models into smaller chunks, since a link that
/// breaks loses the chunk that is on its way. Here each chunk wakes the receiving process.
const CHUNK: u32 = 256 << 10;

/// The transport over shared memory of one machine: `shm://localhost:port`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shm;

#[async_trait]
impl Transport for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            zero_copy: true,
            symmetric: true,
            lends: true,
            max_chunk: MAX_CHUNK,
            preferred_chunk: CHUNK,
            ..Capabilities::default()
        }
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        check("listen", options)?;
        Ok(Box::new(listener::listen(address, options)?))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        check("connect", options)?;
        Ok(Arc::new(connect::connect(address, options).await?))
    }
}

fn check(operation: &'static str, options: &Options) -> Result<()> {
    let wanted = [
        ("congestion control", options.congestion.is_some()),
        ("several streams", options.streams > 1),
        ("TLS", options.tls.is_some()),
        ("kernel buffers", options.send_buffer.is_some() || options.receive_buffer.is_some()),
    ];
    wanted.iter().find(|(_, set)| *set).map_or(Ok(()), |(what, _)| {
        let context = format!("bytes stay in this machine's memory, so there is no choice of {what}");
        Err(Error::new(ErrorKind::Unsupported, operation, context).hint("leave that option out"))
    })
}
