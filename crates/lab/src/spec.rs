//! The user's description of a lab, read from JSON.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use thalweg_linkmodel::Shape;

use crate::{Error, ErrorKind, Result};

/// Maximum number of hosts of a lab. Each has a namespace, a device and a few kernel objects.
pub const MOST_HOSTS: usize = 1000;
const LONGEST_NAME: usize = 63;
/// Bits of a byte. Also the lowest rate limit of a device in bits a second.
pub(crate) const BITS: u64 = 8;
/// The smallest MTU that IPv6 allows (RFC 8200, section 5), and the length of the largest IP packet.
const MTUS: std::ops::RangeInclusive<usize> = 1280..=65_535;

/// A network: hosts, switches and the links between them.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Seed of all random events.
    #[serde(default)]
    pub seed: u64,
    /// Largest IP packet in bytes.
    #[serde(default = "ethernet")]
    pub mtu: usize,
    /// Kind of the hosts' devices.
    #[serde(default)]
    pub devices: Devices,
    /// Hosts: each has a network stack of its own.
    pub hosts: Vec<HostSpec>,
    /// Names of switches, which only forward packets.
    #[serde(default)]
    pub switches: Vec<String>,
    /// Links between hosts and switches.
    pub links: Vec<LinkSpec>,
    /// Changes of links while the lab runs.
    #[serde(default)]
    pub changes: Vec<ChangeSpec>,
}

fn ethernet() -> usize {
    1500
}

/// The kind of device that connects a host to the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Devices {
    /// A TUN device, for IP packets.
    #[default]
    Tun,
    /// A TAP device, for Ethernet frames.
    Tap,
    /// A TAP device with an RDMA device on top (RoCE v2, by the kernel's rxe). Only the guest kernel supports
    /// RDMA in each host's namespace.
    Rdma,
}

/// Description of a host.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Name of the host.
    pub name: String,
    /// Kernel settings of its namespace, such as `net.ipv4.tcp_sack`.
    #[serde(default)]
    pub sysctls: BTreeMap<String, String>,
    /// Rate limit of its device, in addition to those of its links.
    #[serde(default)]
    pub egress: Option<Egress>,
}

/// Rate limit of a host's device: a token bucket as in tc-tbf(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// Rate of IP packets in bits a second.
    pub rate: u64,
    /// Maximum number of bytes in the queue. Packets beyond are dropped.
    pub queue_bytes: u32,
    /// Size of the bucket in bytes: the most that leaves at once after a pause. If the kernel's timer is late
    /// by more than this, that rate is lost.
    pub burst_bytes: u32,
}

impl Egress {
    fn check(&self, host: &str, mtu: usize) -> Result<()> {
        let Self { rate, queue_bytes: queue, burst_bytes: burst } = *self;
        if rate < BITS {
            return Err(impossible(format!("host {host:?} sends {rate} bit/s; it is at least {BITS}")));
        }
        if (burst as usize) < mtu || queue < burst {
            return Err(impossible(format!(
                "host {host:?} has a burst of {burst} bytes and a queue of {queue}; a burst holds at least a packet of \
                 {mtu} bytes, and the queue a burst"
            )));
        }
        Ok(())
    }
}

/// A link with two directions.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Name of the link.
    pub name: String,
    /// Name of the host or switch at one end.
    pub a: String,
    /// Name of the host or switch at the other end.
    pub b: String,
    /// Shape of the direction from a to b.
    #[serde(default)]
    pub ab: Shape,
    /// Shape of the direction from b to a.
    #[serde(default)]
    pub ba: Shape,
}

/// A change of a link while the lab runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSpec {
    /// When it happens, in seconds after the lab's start.
    pub at: f64,
    /// Name of the link.
    pub link: String,
    /// The direction that changes; `None` for both.
    #[serde(default)]
    pub direction: Option<Direction>,
    /// The shape from then on.
    pub shape: Shape,
}

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From a to b.
    Ab,
    /// From b to a.
    Ba,
}

impl Direction {
    /// Both directions, in the order in which the fabric numbers them.
    pub const BOTH: [Direction; 2] = [Direction::Ab, Direction::Ba];

    /// The direction's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Ab => "ab",
            Direction::Ba => "ba",
        }
    }
}

impl Spec {
    /// Reads a spec from JSON and checks it.
    pub fn parse(text: &str) -> Result<Self> {
        let spec: Spec =
            serde_json::from_str(text).map_err(|e| impossible(format!("the lab's JSON: {e}")))?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<()> {
        if self.hosts.is_empty() || self.hosts.len() > MOST_HOSTS {
            return Err(impossible(format!("{} hosts; a lab has 1 to {MOST_HOSTS}", self.hosts.len())));
        }
        if !MTUS.contains(&self.mtu) {
            return Err(impossible(format!("an MTU of {}; it is 1280 to 65535", self.mtu)));
        }
        for host in &self.hosts {
            if let Some(egress) = &host.egress {
                egress.check(&host.name, self.mtu)?;
            }
        }
        let nodes = self.nodes()?;
        let mut links = HashMap::new();
        for link in &self.links {
            checked(&link.name)?;
            if links.insert(link.name.as_str(), ()).is_some() {
                return Err(impossible(format!("two links are called {:?}", link.name)));
            }
            for end in [&link.a, &link.b] {
                if !nodes.contains_key(end.as_str()) {
                    return Err(impossible(format!(
                        "link {:?} ends at {end:?}, which is not there",
                        link.name
                    )));
                }
            }
            if link.a == link.b {
                return Err(impossible(format!("link {:?} joins {:?} with itself", link.name, link.a)));
            }
            shape(&link.name, &link.ab)?;
            shape(&link.name, &link.ba)?;
        }
        for change in &self.changes {
            if !links.contains_key(change.link.as_str()) {
                return Err(impossible(format!("a change of link {:?}, which is not there", change.link)));
            }
            if !(0.0..=1e9).contains(&change.at) {
                return Err(impossible(format!("a change of {:?} at {} seconds", change.link, change.at)));
            }
            shape(&change.link, &change.shape)?;
        }
        Ok(())
    }

    /// The number of each host and switch by name: hosts come first.
    pub(crate) fn nodes(&self) -> Result<HashMap<&str, usize>> {
        let names = self.hosts.iter().map(|h| &h.name).chain(&self.switches);
        let mut nodes = HashMap::new();
        for (number, name) in names.enumerate() {
            checked(name)?;
            if nodes.insert(name.as_str(), number).is_some() {
                return Err(impossible(format!("two hosts or switches are called {name:?}")));
            }
        }
        Ok(nodes)
    }
}

/// Checks a name. Names are used in files and host tables, so they are like host names.
fn checked(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(good) {
        return Err(impossible(format!(
            "the name {name:?}; names have letters, digits and -_. and up to 63 of them"
        )));
    }
    Ok(())
}

fn shape(link: &str, shape: &Shape) -> Result<()> {
    shape.check().map_err(|e| impossible(format!("link {link:?}: {e}")))
}

pub(crate) fn impossible(context: String) -> Error {
    Error::new(ErrorKind::Config, "lab", context).hint("correct the network's description")
}
