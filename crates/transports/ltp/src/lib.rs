//! The ltp transport: chunks are sent as datagrams that are acknowledged one by one. Each chunk is sent once. Lost chunks are retransmitted while time permits: the receiver
//! closes an update early, at a share of its chunks or at a deadline. This is LTP as UniFL describes it
//! (section 2.2). Optional repair packets save the round trips of retransmissions at the end of an update.
//!
//! Sockets, the control connection, handshake, encryption and the order of chunks and messages are those of `udp`.
//! [`thalweg_sending::ltp`] decides when each packet is sent.
#![forbid(unsafe_code)]

mod critical;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod link;
mod options;
mod packet;
mod receive;
mod repair;
mod send;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_transport::trace::TraceFile;
use thalweg_transport::{Address, Capabilities, Link, Listener, Options, Result, Setting, Transport, Ways};
use thalweg_udp::connect::{connect, ways};
use thalweg_udp::hello::{self, Dialect, Ends};
use thalweg_udp::listener::listen;

use crate::link::LtpLink;
use crate::options::SETTINGS;

/// Maximum number of bytes of payload in a chunk. With all headers, the packet fits an Ethernet frame, with
/// IPv6 too.
pub const CHUNK: u32 = 1344;

const DIALECT: Dialect = Dialect { name: "ltp", magic: *b"tlwl\x03", settings: SETTINGS };

/// The transport over datagrams that may be lost: `ltp://host:port`. The port is that of the control
/// connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ltp;

#[async_trait]
impl Transport for Ltp {
    fn name(&self) -> &'static str {
        DIALECT.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            settled: true,
            detached: true,
            datagrams: true,
            encrypted: true,
            symmetric: true,
            remote: true,
            retransmissions: true,
            max_chunk: CHUNK,
            preferred_chunk: CHUNK,
            ..Capabilities::default()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        check("listen", address, options)?;
        Ok(Box::new(listen(address, options, &DIALECT, link).await?))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        check("connect", address, options)?;
        connect(address, options, &DIALECT, link).await
    }

    async fn ways(&self, address: &Address, round_trip: Duration) -> Result<Option<Ways>> {
        ways(address, round_trip).await.map(Some)
    }
}

fn link(ends: Ends, options: &Options) -> Result<Arc<dyn Link>> {
    let trace =
        TraceFile::open(&options.own.read(SETTINGS)?)?.map(|file| file.of(&ends.inner.peer().address));
    Ok(Arc::new(LtpLink::new(ends, options::read(options)?, trace)))
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    hello::check(operation, address, options, &DIALECT)?;
    options::read(options).map(drop)
}
