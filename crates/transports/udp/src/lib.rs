//! The udp transport: chunks travel as datagrams, control messages over a TCP connection (FedComm, section 3.2,
//! sends END over TCP for the same reason: it must not be lost).
//!
//! A link is one inner `tcp` link and two pairs of UDP sockets, one for each direction of chunks, so that whoever
//! sends reads the reports of its own direction and nobody else's. Every datagram carries the link's
//! [key](datagram) and one whole chunk; nothing is split, so what is lost is exactly one chunk, and nothing is
//! sent again here: the session asks for what is missing. A [window](window) bounds what is under way. With TLS the
//! control connection is encrypted and each datagram [sealed](secure).
//!
//! [`connect`], [`listener`], [`hello`], [`socket`], [`secure`], [`deliver`], [`turns`], [`said`] and [`shared`] know nothing of
//! windows and reports: another transport over datagrams is made of them too.
#![forbid(unsafe_code)]

pub mod connect;
pub mod datagram;
pub mod deliver;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod hello;
mod link;
pub mod listener;
#[cfg(test)]
mod paths;
mod receive;
#[cfg(test)]
#[path = "../../../proto/tests/common/recorded.rs"]
mod recorded;
pub mod said;
pub mod secure;
mod send;
pub mod shared;
pub mod socket;
pub mod turns;
pub mod window;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_transport::trace::{TraceFile, TRACE};
use thalweg_transport::{
    Address, Capabilities, Kind, Link, Listener, Options, Result, Setting, Settings, Transport,
};

use crate::hello::{Dialect, Ends};
use crate::link::UdpLink;

/// Bytes of payload in a chunk unless somebody says otherwise: with all headers it fits an Ethernet frame, under
/// IPv6 too, and it is a multiple of 64 as chunks are.
pub const CHUNK: u32 = 1344;
/// Most bytes of payload in one chunk: one datagram, in fragments beyond [`CHUNK`], has less than 64 KiB.
pub const MAX_CHUNK: u32 = 60 << 10;

pub(crate) const SETTINGS: &[Setting] = &[
    secure::CIPHER,
    TRACE,
    Setting {
        name: "paced",
        kind: Kind::Flag { default: true },
        meaning: "false, for comparison only: this end sends as fast as its socket takes it, whatever is lost of it",
        needs: &[],
    },
];

const DIALECT: Dialect = Dialect { name: "udp", magic: *b"tlwu\x03", settings: SETTINGS };

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
            detached: true,
            datagrams: true,
            encrypted: true,
            symmetric: true,
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
        Ok(Box::new(listener::listen(address, options, &DIALECT, link).await?))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        check("connect", address, options)?;
        link(connect::connect(address, options, &DIALECT).await?, options)
    }
}

fn link(ends: Ends, options: &Options) -> Result<Arc<dyn Link>> {
    let chosen = options.own.read(SETTINGS)?;
    let trace = TraceFile::open(&chosen)?.map(|file| file.of(&ends.inner.peer().address));
    Ok(Arc::new(UdpLink::new(ends, chosen.flag("paced"), trace)))
}

/// What the control connection is made with.
fn control(options: &Options) -> Options {
    Options { own: Settings::default(), ..options.clone() }
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    hello::check(operation, address, options, &DIALECT)
}
