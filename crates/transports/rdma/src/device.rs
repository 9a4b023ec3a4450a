//! Which device a link uses.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use thalweg_verbs::{system, Device};

/// Where devices come from.
#[derive(Clone, Default)]
pub(crate) enum Source {
    /// The machine's.
    #[default]
    System,
    Given(Arc<dyn Device>),
}

impl Source {
    /// The device by which `peer`, an address with a port, is reached, or why there is none.
    pub(crate) fn towards(&self, peer: &str) -> Result<Arc<dyn Device>, String> {
        match self {
            Source::Given(device) => Ok(device.clone()),
            Source::System => system::device(local(peer)).map_err(|error| error.to_string()),
        }
    }

    /// Why there is no device at all, if so.
    pub(crate) fn missing(&self) -> Option<String> {
        match self {
            Source::Given(_) => None,
            Source::System => system::device(None).err().map(|error| error.to_string()),
        }
    }
}

/// This machine's address on the way to the peer. Nothing is sent to find it.
fn local(peer: &str) -> Option<IpAddr> {
    let peer = peer.rsplit_once("://").map_or(peer, |(_, authority)| authority);
    let peer: SocketAddr = peer.parse().ok()?;
    let any: IpAddr = if peer.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
