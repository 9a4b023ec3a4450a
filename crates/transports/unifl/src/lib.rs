//! The transport unifl: a server that masks loss for unmodified `tcp` clients (UniFL, section 3).
//!
//! A listener has a kernel listener at its port. In front of that is an [`endpoint`](thalweg_masking) behind
//! a TUN device. The kernel [routes](route) the packets of the port to that device. The endpoint provides
//! connections to the tcp transport, which have [holes](thalweg_tcp::line) in the payloads of chunks. A
//! [`scout`] tells the endpoint where payloads are.
//!
//! ```text
//! TUN -> driver -> masking's Endpoint -> pipe: buffer -> tcp's link -> the session's sink
//!         ^                              |
//!         +--- permits <-- scout <-------+      what may be lost
//! ```
//!
//! If the endpoint cannot be put in front of the kernel's listener, the listener is plain tcp and says why.
//!
//! The [`proxy`] puts the same endpoint in front of any TCP server. The server gets zeros for lost bytes, and
//! a map of these holes.
#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod believed;
#[cfg(target_os = "linux")]
mod buffer;
#[cfg(target_os = "linux")]
mod content;
#[cfg(target_os = "linux")]
mod driver;
#[cfg(target_os = "linux")]
mod ebpf;
mod endpoint;
mod link;
mod listener;
#[cfg(target_os = "linux")]
mod pipe;
#[cfg(target_os = "linux")]
mod place;
pub mod proxy;
#[cfg(target_os = "linux")]
mod route;
#[cfg(target_os = "linux")]
mod scout;
mod settings;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_tcp::Tcp;
use thalweg_transport::{
    Address, Capabilities, Error, ErrorKind, Link, Listener, Options, Result, Setting, Settings, Transport,
};

/// A server that masks loss, at `unifl://host:port`. A client connects as with `tcp`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unifl;

#[async_trait]
impl Transport for Unifl {
    fn name(&self) -> &'static str {
        "unifl"
    }

    fn capabilities(&self) -> Capabilities {
        // Only the listening end masks loss.
        Capabilities {
            reliable: false,
            symmetric: false,
            zero_copy: false,
            retransmissions: false,
            ..Tcp.capabilities()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        settings::SETTINGS
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        check("listen", address)?;
        listener::listen(address, options).await
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        check("connect", address)?;
        options.own.read(settings::SETTINGS)?;
        let link = Tcp.connect(&as_tcp(address), &inner(options)).await?;
        Ok(Arc::new(link::Connected(link)))
    }
}

fn check(operation: &'static str, address: &Address) -> Result<()> {
    if address.scheme != "unifl" || address.port.is_none() {
        return Err(Error::new(ErrorKind::Address, operation, format!("{address} is not unifl://host:port"))
            .hint("write it as unifl://192.0.2.1:7070"));
    }
    Ok(())
}

/// The same address, for the tcp transport.
fn as_tcp(address: &Address) -> Address {
    Address { scheme: Tcp.name().into(), ..address.clone() }
}

/// The same options without those of unifl, for the tcp transport.
fn inner(options: &Options) -> Options {
    Options { own: Settings::default(), ..options.clone() }
}
