//! The `udp` transport. Chunks travel as UDP datagrams. Control messages must not be lost, so they travel over a
//! control connection: a stream of datagrams that are repeated until they arrive, or a TCP connection, as FedComm
//! (section 3.2) has for its END message.
//!
//! A link consists of one inner `tcp` link and two pairs of UDP sockets, one pair for each direction of
//! chunks. A sender therefore reads only the reports about its own direction. Each datagram holds the link's
//! [key](datagram) and one whole chunk, so a lost datagram is exactly one lost chunk. This transport never
//! retransmits a chunk; the session asks for missing ranges again. A [window](window) limits the bytes in
//! flight. With TLS, the control connection is encrypted and each datagram is [sealed](secure).
//!
//! [`connect`], [`listener`], [`hello`], [`moving`], [`socket`], [`secure`], [`deliver`], [`turns`], [`repetition`]
//! and [`link_state`] do not depend on the window or on reports. The `ltp` transport uses them too.
#![forbid(unsafe_code)]

pub mod connect;
mod control;
pub mod datagram;
pub mod deliver;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod hello;
mod link;
pub mod link_state;
pub mod listener;
pub mod moving;
mod over_tcp;
#[cfg(test)]
mod paths;
mod receive;
#[cfg(test)]
#[path = "../../../proto/tests/machines/common/recorded.rs"]
mod recorded;
pub mod repetition;
pub mod secure;
mod send;
pub mod socket;
pub mod turns;
pub mod window;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_transport::trace::{TraceFile, TRACE};
use thalweg_transport::{
    Address, Capabilities, Kind, Link, Listener, Options, Result, Setting, Settings, Transport, Ways,
};

use crate::hello::{Dialect, Ends};
use crate::link::UdpLink;

/// Default payload of a chunk, in bytes. With all headers, such a datagram fits into an Ethernet frame, over
/// IPv6 too. Like every chunk size, it is a multiple of 64.
pub const CHUNK: u32 = 1344;
/// Largest payload of a chunk, in bytes. A chunk is one datagram, and a UDP datagram is shorter than 64 KiB.
/// IP fragments datagrams that are longer than the path's MTU.
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

/// The `udp` transport, at `udp://host:port`. The port belongs to the control connection; the system chooses
/// the ports of the sockets for chunks.
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
        connect::connect(address, options, &DIALECT, link).await
    }

    async fn ways(&self, address: &Address, round_trip: Duration) -> Result<Option<Ways>> {
        connect::ways(address, round_trip).await.map(Some)
    }
}

fn link(ends: Ends, options: &Options) -> Result<Arc<dyn Link>> {
    let chosen = options.own.read(SETTINGS)?;
    let trace = TraceFile::open(&chosen)?.map(|file| file.of(&ends.inner.peer().address));
    Ok(Arc::new(UdpLink::new(ends, chosen.flag("paced"), trace)))
}

/// The options of the inner `tcp` link: all but the `udp` transport's own settings.
fn control_options(options: &Options) -> Options {
    Options { own: Settings::default(), ..options.clone() }
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    hello::check(operation, address, options, &DIALECT)
}
