//! The udp transport: chunks travel as datagrams, control messages over a TCP connection (FedComm, section 3.2,
//! sends END over TCP for the same reason: it must not be lost).
//!
//! A link is one inner `tcp` link and two pairs of UDP sockets, one for each direction of chunks, so that whoever
//! sends reads the reports of its own direction and nobody else's. Every datagram carries the link's
//! [key](datagram) and one whole chunk; nothing is split, so what is lost is exactly one chunk, and nothing is
//! sent again here: the session asks for what is missing. A [window](window) bounds what is under way. With TLS the
//! control connection is encrypted and each datagram [sealed](secure).
#![forbid(unsafe_code)]

mod connect;
mod datagram;
mod hello;
mod link;
mod listener;
mod receive;
mod secure;
mod send;
mod shared;
mod socket;
mod turns;
mod window;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Kind, Link, Listener, Options, Result, Setting, Settings,
    Transport,
};

/// Bytes of payload in a chunk unless somebody says otherwise: with all headers it fits an Ethernet frame, under
/// IPv6 too, and it is a multiple of 64 as chunks are.
pub const CHUNK: u32 = 1344;
/// Most bytes of payload in one chunk: one datagram, in fragments beyond [`CHUNK`], has less than 64 KiB.
pub const MAX_CHUNK: u32 = 60 << 10;

pub(crate) const SETTINGS: &[Setting] = &[
    secure::CIPHER,
    Setting {
        name: "paced",
        kind: Kind::Flag { default: true },
        meaning: "false, for comparison only: this end sends as fast as its socket takes it, whatever is lost of it",
    },
];

/// Datagrams over UDP: `udp://host:port`. The port is the control connection's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Udp;

#[async_trait]
impl Transport for Udp {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            settled: true,
            encrypted: true,
            remote: true,
            max_chunk: MAX_CHUNK,
            preferred_chunk: CHUNK,
            ..Capabilities::default()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
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

/// Whether what this end sends is paced.
fn paced(options: &Options) -> Result<bool> {
    Ok(options.own.read(SETTINGS)?.flag("paced"))
}

/// What the control connection is made with.
fn control(options: &Options) -> Options {
    Options { own: Settings::default(), ..options.clone() }
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    if address.scheme != "udp" || address.port.is_none() {
        return Err(Error::new(ErrorKind::Address, operation, format!("{address} is not udp://host:port"))
            .mend("write it as udp://127.0.0.1:7070"));
    }
    let unsupported = |what: &str, mend| Err(Error::new(ErrorKind::Unsupported, operation, what).mend(mend));
    if options.congestion.is_some() {
        return unsupported("the udp transport has no choice of congestion", "leave that option out");
    }
    if options.streams != 1 {
        return unsupported("a udp link has one stream", "leave streams at 1");
    }
    options.own.read(SETTINGS).map(drop)
}
