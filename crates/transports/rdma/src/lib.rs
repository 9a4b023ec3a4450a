//! The `rdma` transport: it moves chunks by RDMA (FedRDMA, sections 3 and 4), and everything else over an
//! inner tcp link. If an end has no RDMA device, or the path between them carries no RDMA, the link is that
//! tcp link, and its notice says why.
//!
//! A chunk travels over a queue pair ("pair"): the RDMA counterpart of a connection. Each direction of chunks has
//! a pair of its own, or several with the option `pairs`.
//!
//! ```text
//! extent     what is offered: an update, or its missing bytes, in parts of one chunk or of all
//! words      messages between the two ends of a link, beside the session's control messages
//! hello      the handshake: endpoints, rings, a first packet over each pair
//! outgoing   sender that writes; thalweg-rdma-proto decides which piece is written when
//! lane       what that sender keeps for each of its pairs
//! incoming   receiver of these; it revokes a grant before it looks at the bytes
//! assembling receiver that copies pieces with headers out of one slot (FedRDMA's first version); a baseline
//! printed    receiver that polls for a chunk's header (FedRDMA-E as printed); a baseline
//! lending    sender whose chunks the peer reads
//! reading    receiver that reads; thalweg-rdma-proto decides which piece is read when
//! joined     receiving end of the pair that the peer writes over; rejoins after a loss
//! delivery   hands a part's chunks to the sink
//! arrivals   what all receivers share: credit, received chunks, wakers
//! shared     a link's tasks: read, write, drive, pull
//! link       `RdmaLink`, the implementation of the transport contract
//! ```
#![forbid(unsafe_code)]

mod arrivals;
#[cfg(feature = "baselines")]
mod assembling;
mod delivery;
mod device;
#[cfg(test)]
mod ends;
mod entry;
mod extent;
#[cfg(test)]
mod extent_tests;
mod hello;
mod incoming;
mod joined;
mod lane;
mod lending;
mod link;
mod listener;
mod offers;
mod outbox;
mod outgoing;
mod parts;
#[cfg(feature = "baselines")]
mod piece;
mod plain;
mod pool;
#[cfg(feature = "baselines")]
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

/// Maximum number of parts that a sender may have offered, and that a receiver may have granted, at a time.
/// It is less than the number of the ring's slots.
pub(crate) const GRANTS: usize = 240;
/// Maximum number of work requests in flight on one pair.
pub(crate) const WORKS: usize = 250;
/// Receive requests of a pair, each for one write with immediate data (a "note"): one for each slot of the
/// ring.
pub(crate) const NOTES: usize = settings::SLOTS;
/// Payload bytes of a chunk, unless the job sets another size. Beside so many bytes, an offer, a grant and
/// two work requests cost little.
const PREFERRED_CHUNK: u32 = 1 << 20;

/// The RDMA transport, for addresses `rdma://host:port`. The port is the port of the inner tcp link.
#[derive(Clone, Default)]
pub struct Rdma(Source);

impl Rdma {
    /// A transport that uses only this device, whatever devices the machine has.
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
            Error::new(ErrorKind::Timeout, "connect", context).hint("raise the timeout")
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

/// Shakes hands over an inner link. Returns an RDMA link if both ends and the path allow it, else the inner
/// link.
pub(crate) async fn finish(
    inner: Arc<dyn Link>,
    end: End,
    device: std::result::Result<Arc<dyn Device>, String>,
    choices: &Choices,
    has_admission_queue: bool,
) -> Result<Arc<dyn Link>> {
    Ok(match shake(&*inner, end, device, choices).await? {
        Shaken::Rdma(pairs) => Arc::new(RdmaLink::new(inner, *pairs, choices, has_admission_queue)?),
        Shaken::Tcp(why) => {
            let notice = format!("the link to {} is tcp: {why}", inner.peer().address);
            Arc::new(Plain { inner, notice: Some(notice) })
        }
    })
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    if address.scheme != "rdma" || address.port.is_none() {
        return Err(Error::new(ErrorKind::Address, operation, format!("{address} is not rdma://host:port"))
            .hint("write it as rdma://192.0.2.1:7070"));
    }
    let wanted = [("congestion", options.congestion.is_some()), ("streams", options.streams != 1)];
    wanted.iter().find(|(_, set)| *set).map_or(Ok(()), |(name, _)| {
        let context = format!("the rdma transport has no {name}");
        Err(Error::new(ErrorKind::Unsupported, operation, context).hint("leave that option out"))
    })
}

/// The same address with the scheme of tcp.
fn as_tcp(address: &Address) -> Address {
    Address { scheme: Tcp.name().into(), ..address.clone() }
}

/// The options of the inner link. No update goes over it, so it needs no sealing.
fn inner(options: &Options) -> Options {
    Options { own: Settings::default(), sealed: None, ..options.clone() }
}
