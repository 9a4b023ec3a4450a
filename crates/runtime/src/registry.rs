//! All transports of this release, one line each, and how to choose one for an address.

use std::sync::Arc;

use serde::Serialize;
use thalweg_layers::{Emulate, Fault, Layer, Rate, Throttle};
use thalweg_transport::{memory::Memory, Address, Capabilities, Options, Setting, Transport};

use crate::{options::Layers, Error, Kind};

/// Whether this build has the ways of papers that only comparisons need (cargo feature `baselines`).
pub const BASELINES: bool = cfg!(feature = "baselines");

/// The proxy that masks loss in front of any TCP server.
#[cfg(feature = "unifl")]
pub(crate) use thalweg_unifl::proxy as masking;
/// A stand-in for the proxy in builds without the feature `unifl`: opening it fails.
#[cfg(not(feature = "unifl"))]
pub(crate) mod masking {
    use thalweg_transport::{Error, ErrorKind, Result};
    use tokio::sync::{mpsc, watch};

    #[derive(serde::Deserialize)]
    pub struct ProxySettings {}
    pub struct Proxy(std::convert::Infallible);

    impl Proxy {
        pub async fn open(_: ProxySettings, _: u64, _: mpsc::Sender<String>) -> Result<Self> {
            let context = "built without the feature `unifl`";
            Err(Error::new(ErrorKind::Unsupported, "open the proxy", context)
                .hint("build with --features unifl"))
        }

        pub fn listening(&self) -> String {
            match self.0 {}
        }

        pub async fn run(self, _: watch::Receiver<bool>) {
            match self.0 {}
        }
    }
}

/// An RDMA device of this machine, described for the user.
#[derive(Debug, Clone, Serialize)]
pub struct RdmaDevice {
    /// Name of the device.
    pub name: String,
    /// Address of the device; `None` if it cannot be used.
    pub address: Option<String>,
    /// Payload bytes of a packet; 0 if it cannot be used.
    pub mtu: u32,
    /// Whether each grant uses a memory window; otherwise each grant registers its memory.
    pub windows: bool,
    /// Why the device cannot be used, and what to do; empty if it can.
    pub reason: String,
}

/// The RDMA devices of this machine.
///
/// # Errors
/// The reason why there are none, and what to do about it.
#[cfg(feature = "rdma")]
pub fn rdma_devices() -> Result<Vec<RdmaDevice>, Error> {
    let described = |device: thalweg_rdma::Described| match device.state {
        Ok((address, limits)) => RdmaDevice {
            name: device.name,
            address: Some(address.to_string()),
            mtu: limits.mtu,
            windows: limits.windows,
            reason: String::new(),
        },
        Err(error) => {
            let reason = error.to_string();
            RdmaDevice { name: device.name, address: None, mtu: 0, windows: false, reason }
        }
    };
    let devices =
        thalweg_rdma::devices().map_err(|error| Error::new(Kind::Unsupported, "", error.to_string()))?;
    Ok(devices.into_iter().map(described).collect())
}

/// The RDMA devices of this machine.
///
/// # Errors
/// Always: this build lacks the feature `rdma`.
#[cfg(not(feature = "rdma"))]
pub fn rdma_devices() -> Result<Vec<RdmaDevice>, Error> {
    Err(Error::new(Kind::Unsupported, "list RDMA devices", "built without the feature `rdma`")
        .hint("build with --features rdma"))
}

/// A transport, even if this build or machine lacks it.
#[derive(Clone, Serialize)]
pub struct Entry {
    /// Name of the transport, which is also the scheme of its addresses.
    pub name: &'static str,
    /// Whether the transport can be used here.
    pub available: bool,
    /// Why the transport cannot be used, and what to do; empty if it can.
    pub reason: String,
    /// The transport's capabilities; none if this build lacks it.
    pub capabilities: Capabilities,
    /// Settings that only this transport has.
    pub settings: &'static [Setting],
    #[serde(skip)]
    make: Option<Arc<dyn Transport>>,
}

fn entry(transport: impl Transport + 'static) -> Entry {
    entry_of(Arc::new(transport))
}

fn entry_of(make: Arc<dyn Transport>) -> Entry {
    let (name, capabilities, settings) = (make.name(), make.capabilities(), make.settings());
    Entry { name, available: true, reason: String::new(), capabilities, settings, make: Some(make) }
}

#[cfg(not(all(
    feature = "amqp",
    feature = "grpc",
    feature = "ltp",
    feature = "mqtt",
    feature = "quic",
    feature = "rdma",
    feature = "shm",
    feature = "tcp",
    feature = "udp",
    feature = "unifl",
    feature = "zmq",
    target_os = "linux"
)))]
fn absent(name: &'static str, reason: &str) -> Entry {
    let capabilities = Capabilities::default();
    Entry { name, available: false, reason: reason.into(), capabilities, settings: &[], make: None }
}

/// All transports that this release knows.
pub fn registry() -> Vec<Entry> {
    vec![
        entry(Memory),
        #[cfg(test)]
        Entry { name: crate::graph::stalled::SCHEME, ..entry_of(crate::graph::stalled::transport()) },
        #[cfg(feature = "tcp")]
        entry(thalweg_tcp::Tcp),
        #[cfg(not(feature = "tcp"))]
        absent("tcp", "built without the feature `tcp`; build with --features tcp"),
        #[cfg(all(feature = "shm", target_os = "linux"))]
        entry(thalweg_shm::Shm),
        #[cfg(not(all(feature = "shm", target_os = "linux")))]
        absent("shm", "built without the feature `shm`, or not for Linux; build there with --features shm"),
        #[cfg(feature = "udp")]
        entry(thalweg_udp::Udp),
        #[cfg(not(feature = "udp"))]
        absent("udp", "built without the feature `udp`; build with --features udp"),
        #[cfg(feature = "ltp")]
        entry(thalweg_ltp::Ltp),
        #[cfg(not(feature = "ltp"))]
        absent("ltp", "built without the feature `ltp`; build with --features ltp"),
        #[cfg(feature = "unifl")]
        entry(thalweg_unifl::Unifl),
        #[cfg(not(feature = "unifl"))]
        absent("unifl", "built without the feature `unifl`; build with --features unifl"),
        #[cfg(feature = "quic")]
        entry(thalweg_quic::Quic),
        #[cfg(not(feature = "quic"))]
        absent("quic", "built without the feature `quic`; build with --features quic"),
        #[cfg(feature = "grpc")]
        entry(thalweg_grpc::Grpc),
        #[cfg(not(feature = "grpc"))]
        absent("grpc", "built without the feature `grpc`; build with --features grpc"),
        #[cfg(feature = "rdma")]
        entry(thalweg_rdma::Rdma::default()),
        #[cfg(not(feature = "rdma"))]
        absent("rdma", "built without the feature `rdma`; build with --features rdma"),
        #[cfg(feature = "mqtt")]
        entry(thalweg_mqtt::transport()),
        #[cfg(not(feature = "mqtt"))]
        absent("mqtt", "built without the feature `mqtt`; build with --features mqtt"),
        #[cfg(feature = "zmq")]
        entry(thalweg_zmq::Zmq::default()),
        #[cfg(not(feature = "zmq"))]
        absent("zmq", "built without the feature `zmq`; build with --features zmq"),
        #[cfg(feature = "amqp")]
        entry(thalweg_amqp::transport()),
        #[cfg(not(feature = "amqp"))]
        absent("amqp", "built without the feature `amqp`; build with --features amqp"),
    ]
}

/// The transport for an address, wrapped in the requested layers.
///
/// # Errors
/// `unsupported`, with the available transports; `options` for an impossible layer; `address` for a job's
/// name with a transport that has no broker.
pub fn transport_for(
    address: &Address,
    options: &Options,
    wanted: &Layers,
    seed: u64,
) -> Result<Arc<dyn Transport>, Error> {
    let entries = registry();
    let names: Vec<&str> = entries.iter().filter(|e| e.available).map(|e| e.name).collect();
    let found = entries.iter().find(|e| e.name == address.scheme);
    let transport = found.and_then(|e| e.make.clone()).ok_or_else(|| {
        let why = found.map_or("there is none of that name".into(), |e| e.reason.clone());
        let context = format!("transport {:?}: {why}", address.scheme);
        Error::new(Kind::Unsupported, "choose transport", context)
            .hint(format!("this build has {}", names.join(", ")))
    })?;
    options.own.read(transport.settings())?;
    if address.job.is_some() && !transport.capabilities().broker {
        let context = format!("{address}: only a broker knows jobs by name");
        return Err(
            Error::new(Kind::Address, "choose transport", context).hint("leave out what is behind the slash")
        );
    }
    wrap(transport, wanted, seed)
}

fn wrap(mut transport: Arc<dyn Transport>, wanted: &Layers, seed: u64) -> Result<Arc<dyn Transport>, Error> {
    if let Some(emulate) = &wanted.emulate {
        emulate.check()?;
        transport = Emulate { seed: emulate.seed ^ seed, ..emulate.clone() }.wrap(transport);
    }
    if let Some(fault) = &wanted.fault {
        fault.check()?;
        let fault = Fault { seed: fault.seed ^ seed, ..fault.clone() };
        transport = fault.wrap(transport);
    }
    if let Some(rate) = &wanted.throttle {
        transport = Throttle::new(Rate::parse(rate)?).wrap(transport);
    }
    // Sealing comes outside these layers: they lose, damage and pace sealed bytes, as a network would.
    if let Some(seal) = &wanted.seal {
        seal.check()?;
        transport = seal.wrap(transport);
    }
    // Compression comes outside sealing, because sealed bytes cannot be compressed.
    if let Some(compress) = &wanted.compress {
        compress.check(&transport.capabilities())?;
        transport = compress.wrap(transport);
    }
    Ok(transport)
}
