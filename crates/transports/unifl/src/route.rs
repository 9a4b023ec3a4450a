//! Leads the packets of a port to a TUN device, though the addresses are the machine's own.
//!
//! A rule for the port, in front of the kernel's table of local addresses, sends them to a table of our own with one
//! route, to the device (ip-rule(8)). What comes out of the device has one of the machine's addresses, which its kernel
//! takes for forged unless told otherwise (`accept_local`). Incoming packets then count as forwarded, so forwarding is on
//! for the interfaces that have the addresses. When the device goes, its route goes, and the packets are the kernel's again.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use nix::net::if_::{if_indextoname, if_nametoindex};
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::route::RouteScope;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};
use rtnetlink::{new_connection, Handle, IpVersion, LinkUnspec, RouteMessageBuilder};

/// Our rules stand here, and behind them the kernel's for local addresses, which by itself stands at 0.
const OURS: u32 = 10;
const LOCAL: u32 = 20;
/// The kernel's table of local addresses.
const LOCAL_TABLE: u8 = 255;
/// Our tables' numbers: this and the device's.
const TABLES: u32 = 0x7468_0000;
/// Superpackets that may wait for us.
const QUEUE: u32 = 10_000;

/// A way that leads to a device.
#[derive(Debug)]
pub(crate) struct Way {
    table: u32,
    port: u16,
    addresses: Vec<Ipv4Addr>,
    /// Kernel settings, and what they were.
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
    /// Leads what comes for `port` of `address` to the device; for all addresses, to each of them.
    pub(crate) async fn open(device: &str, address: Ipv4Addr, port: u16) -> io::Result<Self> {
        let index = if_nametoindex(device).map_err(io::Error::from)?;
        let (connection, handle, _) = new_connection()?;
        let connection = tokio::spawn(connection);
        let mut way = Self { table: TABLES | index, port, addresses: Vec::new(), changed: Vec::new() };
        let done = way.lead(&handle, device, index, address).await;
        if done.is_err() {
            way.undo(&handle).await;
        }
        connection.abort();
        done.map(|()| way)
    }

    async fn lead(&mut self, handle: &Handle, device: &str, index: u32, address: Ipv4Addr) -> io::Result<()> {
        let up = LinkUnspec::new_with_index(index).txqueuelen(QUEUE).up().build();
        handle.link().set(up).execute().await.map_err(|e| refused(device, &e))?;
        for (setting, value) in [("accept_local", "1"), ("rp_filter", "0"), ("forwarding", "1")] {
            set(device, setting, value)?;
        }
        for (at, interface) in own_addresses(handle).await?.into_iter().filter(|(at, _)| wanted(address, *at))
        {
            self.forward(&interface)?;
            self.addresses.push(at);
        }
        let route = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(index).table_id(self.table);
        let route = route.scope(RouteScope::Link).build();
        handle.route().add(route).execute().await.map_err(|e| refused("a route", &e))?;
        self.make_place(handle).await?;
        for rule in rules(handle).await?.iter().filter(|rule| self.is_stale(rule)) {
            let _ = handle.rule().del(rule.clone()).execute().await;
        }
        for &at in &self.addresses {
            let mut request = handle.rule().add().v4();
            *request.message_mut() = self.rule(at);
            request.execute().await.map_err(|e| refused("a rule", &e))?;
        }
        Ok(())
    }

    /// Puts the kernel's own rule behind ours. There is one at any time.
    async fn make_place(&self, handle: &Handle) -> io::Result<()> {
        let there = rules(handle).await?;
        let at = |priority: u32| there.iter().find(|rule| is_local(rule) && self::priority(rule) == priority);
        if at(LOCAL).is_none() {
            handle
                .rule()
                .add()
                .v4()
                .priority(LOCAL)
                .table_id(LOCAL_TABLE.into())
                .action(RuleAction::ToTable)
                .execute()
                .await
                .map_err(|e| refused("a rule", &e))?;
        }
        if let Some(first) = at(0) {
            handle.rule().del(first.clone()).execute().await.map_err(|e| refused("a rule", &e))?;
        }
        Ok(())
    }

    fn rule(&self, to: Ipv4Addr) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.family = AddressFamily::Inet;
        rule.header.action = RuleAction::ToTable;
        rule.header.dst_len = 32;
        rule.attributes = vec![
            RuleAttribute::Priority(OURS),
            RuleAttribute::Destination(IpAddr::V4(to)),
            RuleAttribute::IpProtocol(IpProtocol::Tcp),
            RuleAttribute::DestinationPortRange(RulePortRange { start: self.port, end: self.port }),
            RuleAttribute::Table(self.table),
        ];
        rule
    }

    /// Whether it is of somebody who had the port before and was killed.
    fn is_stale(&self, rule: &RuleMessage) -> bool {
        let ports = RulePortRange { start: self.port, end: self.port };
        priority(rule) == OURS
            && rule.attributes.contains(&RuleAttribute::DestinationPortRange(ports))
            && self
                .addresses
                .iter()
                .any(|&at| rule.attributes.contains(&RuleAttribute::Destination(at.into())))
    }

    fn forward(&mut self, interface: &str) -> io::Result<()> {
        let before = set(interface, "forwarding", "1")?;
        if before != "1" && !self.changed.iter().any(|(name, _)| name == interface) {
            self.changed.push((interface.to_owned(), before));
        }
        Ok(())
    }

    /// Takes all of it back. Called without a runtime, in the namespace of the device.
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

    /// What cannot be undone stays: without its device, none of it does anything.
    async fn undo(&self, handle: &Handle) {
        for &at in &self.addresses {
            let _ = handle.rule().del(self.rule(at)).execute().await;
        }
        for (interface, value) in &self.changed {
            let _ = set(interface, "forwarding", value);
        }
        let Ok(there) = rules(handle).await else { return };
        if there.iter().any(|rule| priority(rule) == OURS) {
            return;
        }
        let mut first = handle.rule().add().v4().table_id(LOCAL_TABLE.into()).action(RuleAction::ToTable);
        first.message_mut().attributes.push(RuleAttribute::Priority(0));
        let back = first.execute().await.is_ok();
        if let Some(moved) = there.iter().find(|rule| back && is_local(rule) && priority(rule) == LOCAL) {
            let _ = handle.rule().del(moved.clone()).execute().await;
        }
    }
}

fn wanted(address: Ipv4Addr, at: Ipv4Addr) -> bool {
    at == address || (address.is_unspecified() && !at.is_loopback())
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

async fn rules(handle: &Handle) -> io::Result<Vec<RuleMessage>> {
    use futures_util::TryStreamExt;
    handle.rule().get(IpVersion::V4).execute().try_collect().await.map_err(|e| refused("the rules", &e))
}

/// The machine's IPv4 addresses, each with its interface.
async fn own_addresses(handle: &Handle) -> io::Result<Vec<(Ipv4Addr, String)>> {
    use futures_util::TryStreamExt;
    let all: Vec<_> =
        handle.address().get().execute().try_collect().await.map_err(|e| refused("addresses", &e))?;
    let mut found = Vec::new();
    for message in all {
        let name = if_indextoname(message.header.index).map_err(io::Error::from)?;
        let name = name.to_string_lossy().into_owned();
        let local = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(IpAddr::V4(at)) => Some(*at),
            _ => None,
        });
        found.extend(local.map(|at| (at, name)));
    }
    Ok(found)
}

/// Sets a kernel setting of an interface; what it was.
fn set(interface: &str, setting: &str, value: &str) -> io::Result<String> {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/{setting}");
    let about = |e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
    let before = fs::read_to_string(&path).map_err(about)?.trim().to_owned();
    if before != value {
        fs::write(&path, value).map_err(about)?;
    }
    Ok(before)
}
