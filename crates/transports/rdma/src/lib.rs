//! The rdma transport: chunks are written into the receiver's memory by RDMA; control messages, offers and grants go over an
//! inner tcp link. Without a device at either end, or a path between them, a link is that tcp link, and says why.
//!
//! ```text
//! words      what the ends say to each other beside control messages
//! hello      the handshake: endpoints, rings, a first packet
//! outgoing   chunks that are offered; thalweg-pieces says which piece is written when
//! incoming   chunks that are granted memory; a grant is revoked before its bytes are looked at
//! assembling chunks that are put together from pieces with headers, instead of incoming (FedRDMA's first version)
//! printed    chunks whose header is polled for, instead of incoming (FedRDMA-E as printed)
//! lending    chunks that the peer reads, instead of outgoing
//! reading    chunks that are read, instead of incoming; thalweg-pieces says which piece is read when
//! joined     the pair that the peer writes over, joined again when it was lost
//! arrivals   what every receiving side has: credit, what has come, whom to wake
//! shared     the tasks of a link: read, write, drive
//! link       the contract
//! ```
#![forbid(unsafe_code)]

mod arrivals;
mod assembling;
mod device;
#[cfg(test)]
mod ends;
mod entry;
mod hello;
mod incoming;
mod joined;
mod lending;
mod link;
mod listener;
mod offers;
mod outbox;
mod outgoing;
mod parts;
mod piece;
mod plain;
mod pool;
mod printed;
mod reading;
mod settings;
mod shared;
mod sides;
mod stock;
mod tracker;
mod words;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_tcp::Tcp;
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Link, Listener, Options, Result, Setting, Settings, Transport,
};
use thalweg_verbs::Device;
use thalweg_wire::MAX_CHUNK;

pub use thalweg_verbs::system::{devices, Described};

use crate::device::Source;
use crate::hello::{shake, End, Shaken};
use crate::link::RdmaLink;
use crate::plain::Plain;
use crate::settings::Choices;

/// Chunks that may be offered at a time, and granted. Fewer than the ring has slots.
pub(crate) const GRANTS: usize = 240;
/// Work requests under way in one pair.
pub(crate) const WORKS: usize = 250;
/// Notes that a pair may have unread: one for each slot of the ring.
pub(crate) const NOTES: usize = settings::SLOTS;
/// Bytes of payload in a chunk where nobody says otherwise: an offer, a grant and two work requests are little beside it.
const PREFERRED_CHUNK: u32 = 1 << 20;

/// RDMA: `rdma://host:port`. The port is that of the inner tcp link.
#[derive(Clone, Default)]
pub struct Rdma(Source);

impl Rdma {
    /// Over this device alone, whatever the machine has.
    pub fn on(device: Arc<dyn Device>) -> Self {
        Self(Source::Given(device))
    }
}

#[async_trait]
impl Transport for Rdma {
    fn name(&self) -> &'static str {
        "rdma"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            settled: true,
            encrypted: true,
            symmetric: true,
            remote: true,
            max_chunk: MAX_CHUNK,
            preferred_chunk: PREFERRED_CHUNK,
            ..Capabilities::default()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        settings::SETTINGS
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        check("listen", address, options)?;
        listener::listen(self.0.clone(), address, options).await
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        check("connect", address, options)?;
        let choices = Choices::read(options)?;
        let late = || {
            let context = format!("{address} did not finish its handshake in time");
            Error::new(ErrorKind::Timeout, "connect", context).mend("raise connect_timeout_ms")
        };
        let connecting = async {
            let inner = Tcp.connect(&as_tcp(address), &inner(options)).await?;
            let device = match choices.refusal(options) {
                Some(why) => Err(why),
                None => self.0.towards(&inner.peer().address),
            };
            finish(inner, End::Connecting, device, &choices, false).await
        };
        tokio::time::timeout(options.connect_timeout(), connecting).await.unwrap_or_else(|_| Err(late()))
    }
}

/// Shakes hands on an inner link, and makes of it what both ends can do.
pub(crate) async fn finish(
    inner: Arc<dyn Link>,
    end: End,
    device: std::result::Result<Arc<dyn Device>, String>,
    choices: &Choices,
    has_lobby: bool,
) -> Result<Arc<dyn Link>> {
    Ok(match shake(&*inner, end, device, choices.style).await? {
        Shaken::Rdma(pairs) => Arc::new(RdmaLink::new(inner, *pairs, choices, has_lobby)?),
        Shaken::Tcp(why) => {
            let notice = format!("the link to {} is tcp: {why}", inner.peer().address);
            Arc::new(Plain { inner, notice: Some(notice) })
        }
    })
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    if address.scheme != "rdma" || address.port.is_none() {
        return Err(Error::new(ErrorKind::Address, operation, format!("{address} is not rdma://host:port"))
            .mend("write it as rdma://192.0.2.1:7070"));
    }
    let wanted = [("congestion", options.congestion.is_some()), ("streams", options.streams != 1)];
    wanted.iter().find(|(_, set)| *set).map_or(Ok(()), |(name, _)| {
        let context = format!("the rdma transport has no {name}");
        Err(Error::new(ErrorKind::Unsupported, operation, context).mend("leave that option out"))
    })
}

/// The same address for tcp.
fn as_tcp(address: &Address) -> Address {
    Address { scheme: Tcp.name().into(), ..address.clone() }
}

/// The options of the inner link. Chunks do not go there, so nothing of them is sealed.
fn inner(options: &Options) -> Options {
    Options { own: Settings::default(), sealed: None, ..options.clone() }
}
