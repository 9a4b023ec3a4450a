//! Chooses the RDMA device of a link, and sets the timeouts of its pairs.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use thalweg_arena::Arena;
use thalweg_verbs::{system, Device, Error, Limits, Pair};

/// Where devices come from.
#[derive(Clone, Default)]
pub(crate) enum Source {
    /// The machine's devices.
    #[default]
    System,
    Given(Arc<dyn Device>),
}

impl Source {
    /// The device that reaches `peer` (an address with a port), or the reason why there is none.
    pub(crate) fn towards(&self, peer: &str) -> Result<Arc<dyn Device>, String> {
        match self {
            Source::Given(device) => Ok(device.clone()),
            Source::System => system::device(local(peer)).map_err(|error| error.to_string()),
        }
    }

    /// The reason why this machine has no device at all; `None` if it has one.
    pub(crate) fn missing(&self) -> Option<String> {
        match self {
            Source::Given(_) => None,
            Source::System => system::device(None).err().map(|error| error.to_string()),
        }
    }
}

/// Shortest round trip that a replacement pair assumes; its timeouts follow from that. So three pairs in a
/// row outlast a path that is down for seconds.
const AFTER_LOSS: Duration = Duration::from_millis(80);

/// A device for links to one peer. Its pairs know the round-trip time to that peer.
pub(crate) struct Towards {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) round_trip: Option<Duration>,
}

impl Towards {
    /// A pair of the handshake. Unlike later pairs, it takes the round-trip time as measured.
    pub(crate) fn first_pair(&self, notes: usize) -> Result<Box<dyn Pair>, Error> {
        self.pair_for(notes, self.round_trip)
    }

    fn pair_for(&self, notes: usize, round_trip: Option<Duration>) -> Result<Box<dyn Pair>, Error> {
        let mut pair = self.device.pair(notes)?;
        if let Some(round_trip) = round_trip {
            pair.expect(round_trip);
        }
        Ok(pair)
    }
}

impl Device for Towards {
    fn name(&self) -> String {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn register(&self, arena: &Arena) -> Result<(), Error> {
        self.device.register(arena)
    }

    fn pair(&self, notes: usize) -> Result<Box<dyn Pair>, Error> {
        self.pair_for(notes, self.round_trip.map(|round_trip| round_trip.max(AFTER_LOSS)))
    }
}

/// This machine's address on the route to the peer. Connecting a UDP socket sends no packet.
fn local(peer: &str) -> Option<IpAddr> {
    let peer = peer.rsplit_once("://").map_or(peer, |(_, authority)| authority);
    let peer: SocketAddr = peer.parse().ok()?;
    let any: IpAddr = if peer.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
