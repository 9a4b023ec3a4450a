//! Routes the packets of a port to a TUN device, although their destination is an address of this machine.
//!
//! The kernel has a rule that looks up local addresses. A rule of ours, for the port, comes before it. It
//! sends the packets to a routing table of ours, which has one route, to the device (ip-rule(8)). Packets
//! from the device have an address of this machine. The kernel takes them for forged unless `accept_local` is
//! set. Packets to the device count as forwarded, so forwarding is switched on for the interfaces with the
//! addresses. When the device disappears, so does its route, and the kernel gets the packets again.
//!
//! With IPv6, either all interfaces forward or none does. A host that forwards no longer accepts its address
//! and its default route from router advertisements (ip-sysctl.rst, `accept_ra`). So the administrator has to
//! decide that.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::net::if_::{if_indextoname, if_nametoindex};
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{LinkAttribute, LinkLayerType, LinkMessage};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};
use rtnetlink::{new_connection, Handle, IpVersion, LinkUnspec, RouteMessageBuilder};

/// Priority of our rules. The kernel's rule for local addresses moves from priority 0 to the second value.
const OURS: u32 = 10;
const LOCAL: u32 = 20;
/// The kernel's table of local addresses.
const LOCAL_TABLE: u8 = 255;
/// Base for the numbers of our routing tables. The index of the device is added.
const TABLES: u32 = 0x7468_0000;
const FORWARDING_V6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
const NO_FORWARDING_V6: &str = "packets of IPv6 can be led to the endpoint only where it is forwarded; set \
    net.ipv6.conf.all.forwarding = 1 (and accept_ra = 2 where addresses come from a router)";
/// Queue length of the device: the maximum number of superpackets that wait to be read.
const QUEUE: u32 = 10_000;

/// The routing rules of a port, and the settings that were changed for them.
#[derive(Debug)]
pub(crate) struct Way {
    table: u32,
    port: u16,
    version: IpVersion,
    addresses: Vec<IpAddr>,
    /// Changed kernel settings, each with its previous value.
    changed: Vec<(String, String)>,
}

fn refused(what: &str, error: &rtnetlink::Error) -> io::Error {
    let code = match error {
        rtnetlink::Error::NetlinkError(message) => Some(-message.raw_code()),
        _ => None,
    };
    let cause = code.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error);
    io::Error::new(cause.kind(), format!("{what}: {cause}"))
}

impl Way {
    /// Routes packets to `port` of `address` to the device. If the address is unspecified, this covers all
    /// addresses of the machine.
    ///
    /// # Errors
    /// System errors; `Unsupported` for IPv6 if the system does not forward it.
    pub(crate) async fn open(device: &str, address: IpAddr, port: u16) -> io::Result<Self> {
        let index = if_nametoindex(device).map_err(io::Error::from)?;
        let (connection, handle, _) = new_connection()?;
        let connection = tokio::spawn(connection);
        let version = if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 };
        let (addresses, changed) = (Vec::new(), Vec::new());
        let mut way = Self { table: TABLES | index, port, version, addresses, changed };
        let done = way.lead(&handle, device, index, address).await;
        if done.is_err() {
            way.undo(&handle).await;
        }
        connection.abort();
        done.map(|()| way)
    }

    async fn lead(&mut self, handle: &Handle, device: &str, index: u32, address: IpAddr) -> io::Result<()> {
        let up = LinkUnspec::new_with_index(index).txqueuelen(QUEUE).up().build();
        handle.link().set(up).execute().await.map_err(|e| refused(device, &e))?;
        if address.is_ipv4() {
            for (setting, value) in [("accept_local", "1"), ("rp_filter", "0"), ("forwarding", "1")] {
                set(device, setting, value)?;
            }
        } else if fs::read_to_string(FORWARDING_V6)?.trim() == "0" {
            return Err(io::Error::new(io::ErrorKind::Unsupported, NO_FORWARDING_V6));
        }
        for (at, interface) in own_addresses(handle).await?.into_iter().filter(|(at, _)| wanted(address, *at))
        {
            if at.is_ipv4() {
                self.forward(&interface)?;
            }
            self.addresses.push(at);
        }
        let route = self.route(index);
        handle.route().add(route).execute().await.map_err(|e| refused("a route", &e))?;
        self.make_place(handle).await?;
        for rule in self.rules(handle).await?.iter().filter(|rule| self.is_stale(rule)) {
            let _ = handle.rule().del(rule.clone()).execute().await;
        }
        for &at in &self.addresses {
            add(handle, self.rule(at)).await?;
        }
        Ok(())
    }

    /// The route of our table: every destination goes to the device.
    fn route(&self, index: u32) -> RouteMessage {
        match self.version {
            IpVersion::V4 => {
                let route = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(index);
                route.table_id(self.table).scope(RouteScope::Link).build()
            }
            IpVersion::V6 => {
                RouteMessageBuilder::<Ipv6Addr>::new().output_interface(index).table_id(self.table).build()
            }
        }
    }

    /// Moves the kernel's rule for local addresses behind ours. Adds the new rule before it removes the old
    /// one, so there always is one.
    async fn make_place(&self, handle: &Handle) -> io::Result<()> {
        let there = self.rules(handle).await?;
        let at = |priority: u32| there.iter().find(|rule| is_local(rule) && self::priority(rule) == priority);
        if at(LOCAL).is_none() {
            add(handle, self.local(LOCAL)).await?;
        }
        if let Some(first) = at(0) {
            handle.rule().del(first.clone()).execute().await.map_err(|e| refused("a rule", &e))?;
        }
        Ok(())
    }

    fn family(&self) -> AddressFamily {
        match self.version {
            IpVersion::V4 => AddressFamily::Inet,
            IpVersion::V6 => AddressFamily::Inet6,
        }
    }

    async fn rules(&self, handle: &Handle) -> io::Result<Vec<RuleMessage>> {
        use futures_util::TryStreamExt;
        let all = handle.rule().get(self.version.clone()).execute();
        all.try_collect().await.map_err(|e| refused("the rules", &e))
    }

    /// The kernel's rule for local addresses, at a priority.
    fn local(&self, priority: u32) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.family = self.family();
        rule.header.table = LOCAL_TABLE;
        rule.header.action = RuleAction::ToTable;
        rule.attributes = vec![RuleAttribute::Priority(priority)];
        rule
    }

    fn rule(&self, to: IpAddr) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.family = self.family();
        rule.header.action = RuleAction::ToTable;
        rule.header.dst_len = if to.is_ipv4() { 32 } else { 128 };
        rule.attributes = vec![
            RuleAttribute::Priority(OURS),
            RuleAttribute::Destination(to),
            RuleAttribute::IpProtocol(IpProtocol::Tcp),
            RuleAttribute::DestinationPortRange(RulePortRange { start: self.port, end: self.port }),
            RuleAttribute::Table(self.table),
        ];
        rule
    }

    /// Whether the rule was left behind by a killed process that listened at this port.
    fn is_stale(&self, rule: &RuleMessage) -> bool {
        let ports = RulePortRange { start: self.port, end: self.port };
        priority(rule) == OURS
            && rule.attributes.contains(&RuleAttribute::DestinationPortRange(ports))
            && self.addresses.iter().any(|&at| rule.attributes.contains(&RuleAttribute::Destination(at)))
    }

    fn forward(&mut self, interface: &str) -> io::Result<()> {
        let before = set(interface, "forwarding", "1")?;
        if before != "1" && !self.changed.iter().any(|(name, _)| name == interface) {
            self.changed.push((interface.to_owned(), before));
        }
        Ok(())
    }

    /// Restores everything. Call it outside an async runtime, in the network namespace of the device.
    pub(crate) fn close(self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let Ok((connection, handle, _)) = new_connection() else { return };
            let connection = tokio::spawn(connection);
            self.undo(&handle).await;
            connection.abort();
        });
    }

    /// Restores all settings that it can. The others have no effect without the device.
    async fn undo(&self, handle: &Handle) {
        for &at in &self.addresses {
            let _ = handle.rule().del(self.rule(at)).execute().await;
        }
        for (interface, value) in &self.changed {
            let _ = set(interface, "forwarding", value);
        }
        let Ok(there) = self.rules(handle).await else { return };
        if there.iter().any(|rule| priority(rule) == OURS) {
            return;
        }
        let back = add(handle, self.local(0)).await.is_ok();
        if let Some(moved) = there.iter().find(|rule| back && is_local(rule) && priority(rule) == LOCAL) {
            let _ = handle.rule().del(moved.clone()).execute().await;
        }
    }
}

/// Whether a listener at `address` gets the packets to `at`, an address of this machine.
fn wanted(address: IpAddr, at: IpAddr) -> bool {
    // Leave out link-local addresses: they are ambiguous without their interface.
    let any = address.is_unspecified() && !at.is_loopback() && !is_link_local(at);
    at == address || (any && at.is_ipv4() == address.is_ipv4())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(at) if at.segments()[0] & 0xffc0 == 0xfe80)
}

/// A network device with an address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub name: String,
    /// Whether its packets have Ethernet headers. Otherwise they begin with the IP header.
    pub ethernet: bool,
}

/// The devices on which packets to `address` arrive. For an unspecified address: all but loopback.
///
/// # Errors
///
/// System errors; `AddrNotAvailable` if no device has the address.
pub(crate) async fn interfaces(address: IpAddr) -> io::Result<Vec<Interface>> {
    use futures_util::TryStreamExt;
    let (connection, handle, _) = new_connection()?;
    let connection = tokio::spawn(connection);
    let own = own_addresses(&handle).await;
    let links: Result<Vec<LinkMessage>, _> = handle.link().get().execute().try_collect().await;
    connection.abort();
    let any =
        |at: IpAddr| address.is_unspecified() && !at.is_loopback() && (address.is_ipv6() || at.is_ipv4());
    let names: Vec<String> =
        own?.into_iter().filter(|&(at, _)| at == address || any(at)).map(|(_, name)| name).collect();
    let found = links.map_err(|e| refused("devices", &e))?.into_iter().filter_map(|link| {
        let ethernet = link.header.link_layer_type == LinkLayerType::Ether;
        link.attributes.into_iter().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) if names.contains(&name) => Some(Interface { name, ethernet }),
            _ => None,
        })
    });
    let found: Vec<Interface> = found.collect();
    if found.is_empty() {
        let why = format!("no device has the address {address}");
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why));
    }
    Ok(found)
}

async fn add(handle: &Handle, rule: RuleMessage) -> io::Result<()> {
    let mut request = handle.rule().add();
    *request.message_mut() = rule;
    request.execute().await.map_err(|e| refused("a rule", &e))
}

fn priority(rule: &RuleMessage) -> u32 {
    let given = rule.attributes.iter().find_map(|attribute| match attribute {
        RuleAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    given.unwrap_or_default()
}

fn is_local(rule: &RuleMessage) -> bool {
    rule.header.table == LOCAL_TABLE
}

/// The addresses of this machine, each with its interface.
async fn own_addresses(handle: &Handle) -> io::Result<Vec<(IpAddr, String)>> {
    use futures_util::TryStreamExt;
    let all: Vec<_> =
        handle.address().get().execute().try_collect().await.map_err(|e| refused("addresses", &e))?;
    let mut found = Vec::new();
    for message in all {
        let name = if_indextoname(message.header.index).map_err(io::Error::from)?;
        let name = name.to_string_lossy().into_owned();
        // On a point-to-point link, IPv4's `Address` is the address of the other end, and `Local` is ours.
        // IPv6 has no `Local` on other links.
        let local = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(at @ IpAddr::V4(_)) | AddressAttribute::Address(at @ IpAddr::V6(_)) => {
                Some(*at)
            }
            _ => None,
        });
        found.extend(local.map(|at| (at, name)));
    }
    Ok(found)
}

/// Changes a kernel setting of an interface, and returns its previous value.
fn set(interface: &str, setting: &str, value: &str) -> io::Result<String> {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/{setting}");
    let about = |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
    let before = fs::read_to_string(&path).map_err(about)?.trim().to_owned();
    if before != value {
        fs::write(&path, value).map_err(about)?;
    }
    Ok(before)
}
