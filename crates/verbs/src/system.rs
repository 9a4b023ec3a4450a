//! The machine's RDMA devices, over libibverbs.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use thalweg_arena::Arena;
use tokio::io::unix::AsyncFd;

use crate::abi::{self, constant};
use crate::channel::Channel;
use crate::domain::{device_names, Domain};
use crate::queue::{Event, Queue};
use crate::regions::{self, Held};
use crate::{Device, Done, Endpoint, Error, Fault, Limits, Memory, Pair, Work};

/// The port that is used of each device.
const PORT: u8 = 1;
/// Maximum work requests of a queue pair; fewer if the device allows fewer.
const WORKS: usize = 512;
/// Maximum scatter/gather elements of a work request; fewer if the device allows fewer.
const PARTS: usize = 16;
/// Maximum number of reads in flight on a pair, if the device allows as many. Each may be long.
const READS: usize = 16;
/// ACK timeout if the round-trip time is unknown, as an exponent: 4.096 us x 2^16 = 0.27 s. A packet is sent
/// seven times in all, since a retry count of 7 means "forever" on rxe.
const TIMEOUT: u8 = 16;
const RETRIES: u8 = 6;
/// With a known round-trip time, the ACK timeout is at least this many round trips, but from 67 ms to 4.3 s.
/// One ACK may stand for many packets, and ACKs may wait in queues.
const TIMEOUT_FACTOR: u32 = 3;
const TIMEOUTS: RangeInclusive<u8> = 14..=20;
const RNR_RETRIES: u8 = 7;
/// Exponent for 0.64 ms, after which a message is sent again whose receiver was not ready (RNR).
const RNR_TIMER: u8 = 12;
const HOPS: u8 = 64;

/// A description of a device, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Name of the device.
    pub name: String,
    /// Address and limits of the device, or why it cannot be used.
    pub state: Result<(IpAddr, Limits), Error>,
}

/// Describes all devices of the machine.
///
/// # Errors
/// [`Error::NoLibrary`], or [`Error::NoDevice`] if the kernel has no verbs at all.
pub fn devices() -> Result<Vec<Described>, Error> {
    let described = |name: String| {
        let state = Domain::open(&name).and_then(|domain| {
            let (_, gid) = address(&domain, &name, None)?;
            Ok((IpAddr::V6(gid.into()).to_canonical(), limits(&domain)?))
        });
        Described { name, state }
    };
    Ok(device_names()?.into_iter().map(described).collect())
}

/// The device whose address is `local`, an address of this machine. Any usable device if none has that
/// address.
///
/// # Errors
/// [`Error::NoLibrary`], [`Error::NoDevice`] or [`Error::Refused`].
pub fn device(local: Option<IpAddr>) -> Result<Arc<dyn Device>, Error> {
    let mut last = Error::NoDevice("this machine has no RDMA device".into());
    let mut found = None;
    for name in device_names()? {
        match domain(&name).and_then(|domain| System::open(name, domain, local)) {
            Ok(system) if local.is_some_and(|ip| system.has(ip)) => return Ok(Arc::new(system)),
            Ok(system) => found = found.or(Some(system)),
            Err(error) => last = error,
        }
    }
    found.map(|system| Arc::new(system) as Arc<dyn Device>).ok_or(last)
}

/// The open device of this name. The process opens each device once, so that each arena is registered once.
fn domain(name: &str) -> Result<Arc<Domain>, Error> {
    static DOMAINS: Mutex<Option<HashMap<String, Weak<Domain>>>> = Mutex::new(None);
    let mut domains = DOMAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let domains = domains.get_or_insert_default();
    if let Some(domain) = domains.get(name).and_then(Weak::upgrade) {
        return Ok(domain);
    }
    let domain = Arc::new(Domain::open(name)?);
    domains.insert(name.to_owned(), Arc::downgrade(&domain));
    Ok(domain)
}

fn limits(domain: &Domain) -> Result<Limits, Error> {
    let (device, port) = (domain.attributes()?, domain.port(PORT)?);
    if port.state != constant::PORT_ACTIVE {
        return Err(Error::NoDevice("its port is not active".into()));
    }
    let bound = |most: i32, wanted: usize| usize::try_from(most).map_or(1, |most| wanted.min(most.max(1)));
    Ok(Limits {
        message: port.max_msg_sz.into(),
        parts: bound(device.max_sge, PARTS),
        works: bound(device.max_qp_wr.min(device.max_cqe / 2), WORKS),
        reads: bound(device.max_qp_init_rd_atom, READS),
        windows: device.device_cap_flags & constant::MEM_WINDOW_2B as u32 != 0 && device.max_mw > 0,
        mtu: 128 << port.active_mtu.clamp(1, 5),
    })
}

/// Index and value of the port's GID by which peers reach this machine. Prefers `local`, then a routable
/// address (RoCE v2), then an IPv4 address, then one that is not link-local.
fn address(domain: &Domain, name: &str, local: Option<IpAddr>) -> Result<(u8, [u8; 16]), Error> {
    let mut best: Option<(u32, u8, [u8; 16])> = None;
    for index in 0..domain.port(PORT)?.gid_tbl_len.clamp(0, 255) as u8 {
        let Some(gid) = domain.gid(PORT, index.into()).filter(|gid| gid.iter().any(|&byte| byte != 0)) else {
            continue;
        };
        let ip = Ipv6Addr::from(gid);
        let types = format!("/sys/class/infiniband/{name}/ports/{PORT}/gid_attrs/types/{index}");
        let routable = std::fs::read_to_string(types).is_ok_and(|kind| kind.trim() == "RoCE v2");
        let rank = 8 * u32::from(local == Some(IpAddr::V6(ip).to_canonical()))
            + 4 * u32::from(routable)
            + 2 * u32::from(ip.to_ipv4_mapped().is_some())
            + u32::from(ip.segments()[0] != 0xfe80);
        if best.is_none_or(|(other, ..)| rank > other) {
            best = Some((rank, index, gid));
        }
    }
    let none = || Error::NoDevice(format!("{name} has no address"));
    best.map(|(_, index, gid)| (index, gid)).ok_or_else(none)
}

/// The exponent n of the ACK timeout, which is 4.096 us x 2^n.
fn timeout(round_trip: Duration) -> u8 {
    let lasts = |n: u8| Duration::from_nanos(4096 << n);
    let least = round_trip.saturating_mul(TIMEOUT_FACTOR);
    TIMEOUTS.into_iter().find(|&n| lasts(n) >= least).unwrap_or(*TIMEOUTS.end())
}

struct System {
    name: String,
    domain: Arc<Domain>,
    limits: Limits,
    index: u8,
    gid: [u8; 16],
}

impl System {
    fn open(name: String, domain: Arc<Domain>, local: Option<IpAddr>) -> Result<Self, Error> {
        let limits = limits(&domain)?;
        let (index, gid) = address(&domain, &name, local)?;
        Ok(Self { name, domain, limits, index, gid })
    }

    fn has(&self, ip: IpAddr) -> bool {
        IpAddr::V6(self.gid.into()).to_canonical() == ip
    }
}

impl Device for System {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn register(&self, arena: &Arena) -> Result<(), Error> {
        regions::register(&self.domain, self.limits.windows, arena)
    }

    fn pair(&self, notes: usize) -> Result<Box<dyn Pair>, Error> {
        let Limits { works, parts, windows, mtu, reads, .. } = self.limits;
        let answers = self.domain.attributes()?.max_qp_rd_atom.clamp(1, READS as i32) as u32;
        let mut queue = Queue::new(&self.domain, windows, (works, parts), notes)?;
        let mut init = abi::QpAttr::zero();
        (init.qp_state, init.port_num) = (constant::INIT, PORT);
        let access =
            [constant::LOCAL_WRITE, constant::REMOTE_WRITE, constant::REMOTE_READ, constant::MW_BIND];
        init.qp_access_flags = access.iter().sum::<i32>() as u32;
        queue.modify(init, constant::TO_INIT)?;
        for _ in 0..notes {
            queue.expect_note()?;
        }
        let endpoint = Endpoint { gid: self.gid, number: queue.number, first: 0, mtu, reads: answers };
        Ok(Box::new(SystemPair {
            queue,
            endpoint,
            reads,
            index: self.index,
            timeout: TIMEOUT,
            events: None,
            lost: false,
        }))
    }
}

struct SystemPair {
    events: Option<AsyncFd<Arc<Channel>>>,
    queue: Queue,
    endpoint: Endpoint,
    /// Maximum number of reads that this end may have in flight.
    reads: usize,
    index: u8,
    /// Exponent of the ACK timeout.
    timeout: u8,
    lost: bool,
}

impl SystemPair {
    /// Appends all events; of several failures only the first.
    fn take(&mut self, done: &mut Vec<Done>) {
        for event in self.queue.poll() {
            match event {
                Event::Written(id) => done.push(Done::Written(id)),
                Event::Read(id, into) => done.push(Done::Read(id, into)),
                Event::Opened(id, remote) => done.push(Done::Opened(id, remote)),
                Event::Closed(id, memory) => done.push(Done::Closed(id, memory)),
                Event::Noted(note) => done.push(Done::Noted(note)),
                Event::Failed(_) if self.lost => {}
                Event::Failed(status) => {
                    self.lost = true;
                    done.push(Done::Lost(fault(status)));
                }
            }
        }
    }

    /// Whether the channel has a notification. Otherwise the context is woken by the next one.
    fn noticed(&mut self, context: &mut Context<'_>) -> std::io::Result<bool> {
        if self.events.is_none() {
            self.events = Some(self.queue.channel.notices()?);
        }
        let Some(events) = &self.events else { return Ok(false) };
        match events.poll_read_ready(context) {
            Poll::Pending => Ok(false),
            Poll::Ready(guard) => {
                guard?.clear_ready();
                self.queue.channel.acknowledge();
                Ok(true)
            }
        }
    }
}

fn fault(status: i32) -> Fault {
    match status {
        constant::RETRIES | constant::RNR_RETRIES => Fault::Retries,
        constant::FLUSHED => Fault::Flushed,
        constant::REMOTE_ACCESS | constant::REMOTE_INVALID => Fault::Access,
        _ => Fault::Other,
    }
}

impl Pair for SystemPair {
    fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    fn expect(&mut self, round_trip: Duration) {
        self.timeout = timeout(round_trip);
    }

    fn connect(&mut self, peer: &Endpoint) -> Result<(), Error> {
        let mut ready = abi::QpAttr::zero();
        ready.qp_state = constant::RTR;
        ready.path_mtu = (peer.mtu.min(self.endpoint.mtu) / 128).ilog2() as i32;
        (ready.dest_qp_num, ready.rq_psn) = (peer.number, peer.first);
        (ready.max_dest_rd_atomic, ready.min_rnr_timer) = (self.endpoint.reads as u8, RNR_TIMER);
        let to = &mut ready.ah_attr;
        (to.is_global, to.port_num, to.sgid_index, to.hop_limit) = (1, PORT, self.index, HOPS);
        let half = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&peer.gid[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        to.dgid = [half(0), half(8)];
        self.queue.modify(ready, constant::TO_RTR)?;
        let mut send = abi::QpAttr::zero();
        (send.qp_state, send.sq_psn) = (constant::RTS, self.endpoint.first);
        (send.timeout, send.retry_cnt, send.rnr_retry) = (self.timeout, RETRIES, RNR_RETRIES);
        // No more than the other end answers at once.
        send.max_rd_atomic = peer.reads.clamp(1, self.reads as u32) as u8;
        self.queue.modify(send, constant::TO_RTS)
    }

    fn post(&mut self, id: u64, work: Work) -> Result<(), Error> {
        match work {
            Work::Write { bytes, to } => self.queue.write(id, bytes, to, None),
            Work::Note { bytes, to, note } => self.queue.write(id, bytes, to, Some(note)),
            Work::Read { into, from } => self.queue.read(id, into, from),
            Work::Open(memory) => self.queue.open(id, Held::Written(memory)),
            Work::Lend(bytes) => self.queue.open(id, Held::Lent(bytes)),
            Work::Close { key } => self.queue.close(id, key),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>, done: &mut Vec<Done>) -> Poll<()> {
        let before = done.len();
        loop {
            self.take(done);
            if done.len() > before {
                return Poll::Ready(());
            }
            self.queue.arm();
            // A completion that arrived before `arm` gives no notification, so look again.
            self.take(done);
            if done.len() > before {
                return Poll::Ready(());
            }
            match self.noticed(context) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(_) if self.lost => return Poll::Pending,
                Err(_) => {
                    self.lost = true;
                    done.push(Done::Lost(Fault::Other));
                    return Poll::Ready(());
                }
            }
        }
    }

    fn peek(&self, key: u32, at: usize, out: &mut [u8]) -> bool {
        self.queue.peek(key, at, out)
    }

    fn break_off(&mut self) -> Vec<(u32, Memory)> {
        self.lost = true;
        self.queue.break_off()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_sent_again_after_three_round_trips_and_more() {
        let after = |millis| timeout(Duration::from_millis(millis));
        assert_eq!([0, 1, 20, 22].map(after), [14; 4]);
        assert_eq!([23, 44].map(after), [15; 2]);
        assert_eq!(after(80), 16);
        assert_eq!([800, 1_000_000].map(after), [20; 2]);
        assert_eq!(timeout(Duration::MAX), 20);
    }
}
