//! A host of a lab: a namespace with one device, its addresses and kernel settings, and its kernel's
//! counters.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

use nix::net::if_::if_nametoindex;
use rtnetlink::packet_route::address::AddressHeaderFlags;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMetric, RouteProtocol, RouteScope};
use rtnetlink::{new_connection, LinkUnspec, RouteMessageBuilder};
use serde::Serialize;
use thalweg_tun::{Device, Hardware};

use crate::device;
use crate::egress;
use crate::fabric::addresses;
use crate::namespace::Namespace;
use crate::rdma;
use crate::spec::{Devices, Egress, Spec};
use crate::{Error, ErrorKind, Result};

/// Name of every host's device.
pub(crate) const DEVICE: &str = "eth0";
const LOOPBACK: &str = "lo";
/// Maximum number of packets or superpackets that may wait in the device for the relay: a sender's whole
/// window.
const QUEUE: u32 = 10_000;
/// Maximum number of packets that may wait for the relay in an RDMA host's device, which sends them as fast
/// as it can: the kernel's limit.
const RDMA_QUEUE: u32 = 32_767;
const PREFIX_V4: u8 = 15;
const PREFIX_V6: u8 = 64;
/// Priority of the kernel's own IPv6 routes (ip-route(8)).
const IPV6_PRIORITY: u32 = 256;
const CONGESTION: &str = "net.ipv4.tcp_congestion_control";

pub(crate) struct Host {
    pub name: String,
    pub namespace: Namespace,
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
    /// Name of its RDMA device, if it has one.
    pub rdma: Option<String>,
    has_limit: bool,
}

/// Settings of a host's device.
struct Wire {
    /// Index of the host.
    number: usize,
    /// Number of hosts of the lab.
    hosts: usize,
    mtu: usize,
    /// Hardware address of an Ethernet device.
    hardware: Option<Hardware>,
    queue: u32,
}

/// Counters of a host's kernel since the host was made.
#[derive(Debug, Default, Serialize)]
pub(crate) struct HostCounters {
    retransmitted_segments: u64,
    /// Retransmissions that the receiver already had (DSACK, RFC 2883).
    spurious_retransmissions: u64,
    receive_buffer_drops: u64,
    rx_packets: u64,
    tx_packets: u64,
    tx_dropped: u64,
    /// Drops by the rate limit of its device.
    limiter_drops: u64,
}

impl Host {
    /// Makes the host with this index, and its device.
    pub(crate) fn new(number: usize, lab: &Spec) -> Result<(Self, Device)> {
        let (spec, hosts) = (&lab.hosts[number], lab.hosts.len());
        let (ipv4, ipv6) = addresses(number);
        let hardware = (lab.devices != Devices::Tun).then(|| device::hardware(number));
        let rdma = (lab.devices == Devices::Rdma).then(|| rdma::name(number));
        let queue = if rdma.is_some() { RDMA_QUEUE } else { QUEUE };
        let wire = Wire { number, hosts, mtu: lab.mtu, hardware, queue };
        let (namespace, device) = Namespace::with(|| {
            let device = device::make(DEVICE, hardware)?;
            quiet_ipv6()?;
            let mut congestion = None;
            for (key, value) in &spec.sysctls {
                match set(&spec.name, key, value) {
                    // A namespace's default congestion control must be one that every user may choose. A
                    // route may have any.
                    Err(error) if key == CONGESTION && error.kind() == ErrorKind::Permission => {
                        congestion = Some(value.as_str());
                    }
                    done => done?,
                }
            }
            configure(&spec.name, &wire, (ipv4, ipv6), congestion, spec.egress)?;
            if let Some(name) = &rdma {
                rdma::add(name, DEVICE)?;
            }
            Ok(device)
        })?;
        let has_limit = spec.egress.is_some();
        Ok((Self { name: spec.name.clone(), namespace, ipv4, ipv6, rdma, has_limit }, device))
    }

    pub(crate) fn counters(&self) -> Result<HostCounters> {
        self.namespace.visit(|| {
            let table = |name: &str| {
                let path = format!("/proc/thread-self/net/{name}");
                fs::read_to_string(&path).map_err(|e| Error::io("lab", &path, &e))
            };
            let (snmp, netstat, snmp6) =
                (pairs(&table("snmp")?), pairs(&table("netstat")?), lines(&table("snmp6")?));
            let count = |from: &BTreeMap<String, u64>, key: &str| from.get(key).copied().unwrap_or_default();
            let device = columns(&table("dev")?);
            let column = |place: usize| device.get(place).copied().unwrap_or_default();
            Ok(HostCounters {
                retransmitted_segments: count(&snmp, "Tcp.RetransSegs"),
                spurious_retransmissions: count(&netstat, "TcpExt.TCPDSACKRecv")
                    + count(&netstat, "TcpExt.TCPDSACKOfoRecv"),
                receive_buffer_drops: count(&snmp, "Udp.RcvbufErrors")
                    + count(&snmp6, "Udp6RcvbufErrors")
                    + count(&netstat, "TcpExt.TCPRcvQDrop")
                    + count(&netstat, "TcpExt.TCPBacklogDrop")
                    + count(&netstat, "TcpExt.RcvPruned"),
                rx_packets: column(1),
                tx_packets: column(9),
                tx_dropped: column(11),
                limiter_drops: if self.has_limit { limiter_drops()? } else { 0 },
            })
        })
    }
}

/// Configures IPv6 without extra packets: no duplicate address detection, no router solicitation, no
/// generated addresses.
fn quiet_ipv6() -> Result<()> {
    for (key, value) in [("accept_dad", "0"), ("router_solicitations", "0"), ("addr_gen_mode", "1")] {
        let path = format!("/proc/sys/net/ipv6/conf/{DEVICE}/{key}");
        match fs::write(&path, value) {
            // The kernel has no IPv6.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            done => done.map_err(|e| Error::io("lab", &path, &e))?,
        }
    }
    Ok(())
}

/// Sets a kernel setting in the calling thread's namespace. Only settings that each namespace has can be set.
fn set(host: &str, key: &str, value: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let path = format!("/proc/sys/{}", key.replace('.', "/"));
    if !key.starts_with("net.") || key.contains("..") || !key.chars().all(plain) {
        return Err(crate::spec::impossible(format!(
            "the kernel setting {key:?} of host {host:?}; take net.*"
        )));
    }
    fs::write(&path, value).map_err(|e| {
        let error = |kind| Error::new(kind, "lab", format!("{key} = {value:?} of host {host:?}: {e}"));
        match e.raw_os_error() {
            Some(libc::EPERM) => {
                error(ErrorKind::Permission).hint("take a setting that a namespace may change")
            }
            Some(libc::EINVAL) => error(ErrorKind::Config).hint("take a value that the setting can have"),
            _ => error(ErrorKind::Unsupported).hint("take a setting that this kernel has in a namespace"),
        }
    })
}

fn configure(
    host: &str,
    wire: &Wire,
    (ipv4, ipv6): (Ipv4Addr, Ipv6Addr),
    congestion: Option<&str>,
    limit: Option<Egress>,
) -> Result<()> {
    let (loopback, device) = (index(LOOPBACK)?, index(DEVICE)?);
    let has_ipv6 = fs::exists("/proc/sys/net/ipv6").unwrap_or(false);
    netlink(async |handle| {
        let up = async {
            handle.link().set(LinkUnspec::new_with_index(loopback).up().build()).execute().await?;
            handle.address().add(device, ipv4.into(), PREFIX_V4).execute().await?;
            if has_ipv6 {
                let mut address = handle.address().add(device, ipv6.into(), PREFIX_V6);
                // Skip duplicate address detection (RFC 4862), so that sockets can be bound to the address at
                // once.
                address.message_mut().header.flags |= AddressHeaderFlags::Nodad;
                address.execute().await?;
            }
            let mut link = LinkUnspec::new_with_index(device).mtu(wire.mtu as u32).txqueuelen(wire.queue);
            if let Some(hardware) = wire.hardware {
                // Without ARP the kernel joins no multicast groups, which it would announce at random times.
                link = link.address(hardware.to_vec()).arp(false);
            }
            handle.link().set(link.up().build()).execute().await?;
            if wire.hardware.is_some() {
                know_neighbours(&handle, device, wire, has_ipv6).await?;
            }
            Ok(())
        };
        up.await.map_err(refused(format!("netlink of {DEVICE}")))?;
        if let Some(name) = congestion {
            let set = choose_congestion(&handle, device, ipv4, has_ipv6.then_some(ipv6), name).await;
            set.map_err(refused(format!("congestion control {name:?} of host {host:?}")))?;
        }
        if let Some(limit) = limit {
            egress::apply(&limit, &handle, device)
                .await
                .map_err(refused(format!("the limit of host {host:?} (tbf)")))?;
        }
        Ok(())
    })
}

/// Gives the kernel the hardware addresses of all other hosts, so that it need not ask for them. ARP is
/// switched on, because otherwise rxe would take every host for its own.
async fn know_neighbours(
    handle: &rtnetlink::Handle,
    device: u32,
    wire: &Wire,
    has_ipv6: bool,
) -> std::result::Result<(), rtnetlink::Error> {
    handle.link().set(LinkUnspec::new_with_index(device).arp(true).build()).execute().await?;
    for other in (0..wire.hosts).filter(|&other| other != wire.number) {
        let (ipv4, ipv6) = addresses(other);
        for ip in [Some(ipv4.into()), has_ipv6.then(|| ipv6.into())].into_iter().flatten() {
            let known = handle.neighbours().add(device, ip);
            known.link_layer_address(&device::hardware(other)).execute().await?;
        }
    }
    Ok(())
}

/// Packets that the rate limit dropped in the calling thread's namespace.
fn limiter_drops() -> Result<u64> {
    let device = index(DEVICE)?;
    netlink(async |handle| {
        egress::drops(&handle, device).await.map_err(refused(format!("netlink of {DEVICE}")))
    })
}

/// Runs netlink requests in the calling thread's namespace.
fn netlink<T>(work: impl AsyncFnOnce(rtnetlink::Handle) -> Result<T>) -> Result<T> {
    let failed = |e: std::io::Error| Error::io("lab", "netlink", &e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    runtime.block_on(async {
        let (connection, handle, _) = new_connection().map_err(failed)?;
        let connection = tokio::spawn(connection);
        let done = work(handle).await;
        connection.abort();
        done
    })
}

fn index(name: &str) -> Result<u32> {
    if_nametoindex(name).map_err(|e| Error::io("lab", name, &e.into()))
}

fn refused(what: String) -> impl Fn(rtnetlink::Error) -> Error {
    move |e| Error::new(ErrorKind::System, "lab", format!("{what}: {e}"))
}

/// Sets the congestion control of all connections over the device, as a metric of its routes (ip-route(8),
/// "congctl").
async fn choose_congestion(
    handle: &rtnetlink::Handle,
    device: u32,
    ipv4: Ipv4Addr,
    ipv6: Option<Ipv6Addr>,
    name: &str,
) -> std::result::Result<(), rtnetlink::Error> {
    let metric = || RouteAttribute::Metrics(vec![RouteMetric::CcAlgo(name.to_owned())]);
    let builder = RouteMessageBuilder::<Ipv4Addr>::new().output_interface(device).scope(RouteScope::Link);
    let network = Ipv4Addr::from(u32::from(ipv4) & (u32::MAX << (32 - PREFIX_V4)));
    let builder = builder.protocol(RouteProtocol::Kernel).pref_source(ipv4);
    let mut route = builder.destination_prefix(network, PREFIX_V4).build();
    route.attributes.push(metric());
    handle.route().add(route).replace().execute().await?;
    let Some(ipv6) = ipv6 else { return Ok(()) };
    let network = Ipv6Addr::from(u128::from(ipv6) & (u128::MAX << (128 - PREFIX_V6)));
    let builder =
        RouteMessageBuilder::<Ipv6Addr>::new().output_interface(device).protocol(RouteProtocol::Kernel);
    let mut route = builder.destination_prefix(network, PREFIX_V6).priority(IPV6_PRIORITY).build();
    route.attributes.push(metric());
    handle.route().add(route).replace().execute().await
}

/// Parses /proc/net/snmp and netstat: a line of keys, then a line of values, each after the name of the
/// group.
fn pairs(text: &str) -> BTreeMap<String, u64> {
    let lines: Vec<_> = text.lines().filter_map(|line| line.split_once(':')).collect();
    let both = lines.chunks_exact(2).flat_map(|pair| {
        let (group, keys, values) = (pair[0].0, pair[0].1, pair[1].1);
        let named = move |(key, value): (&str, &str)| Some((format!("{group}.{key}"), value.parse().ok()?));
        keys.split_whitespace().zip(values.split_whitespace()).filter_map(named)
    });
    both.collect()
}

/// Parses /proc/net/snmp6: a key and a value in each line.
fn lines(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// The numbers in the device's line of /proc/net/dev.
fn columns(text: &str) -> Vec<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{DEVICE}:")));
    line.map(|l| l.split_whitespace().filter_map(|word| word.parse().ok()).collect()).unwrap_or_default()
}
