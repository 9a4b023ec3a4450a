//! Loads and attaches the eBPF programs, and reads and writes the maps that they share with us.

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thalweg_ebpf::aya::maps::{Array, HashMap as Table, Map, MapData, MapError, RingBuf};
use thalweg_ebpf::aya::programs::tc::TcAttachOptions;
use thalweg_ebpf::aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use thalweg_ebpf::aya::Ebpf;
use thalweg_ebpf::explain;
use thalweg_masking::Time;
use thalweg_masking::{Group, GroupRate};
use thalweg_tcp::line::Hole;
use thalweg_wire::Ranges;

use super::layout::{self, Critical, FlowReport, Handshake, Key, Opening, Wish, Wished, Words};
use crate::route::{self, Interface};

/// Flag of a map lookup: take the flow's lock (BPF_F_LOCK).
const LOCKED: u64 = 4;
/// How long the programs serve connections that this end has closed, unless both ends close them earlier.
const LINGER: Duration = Duration::from_secs(1);
const GLANCE: Duration = Duration::from_millis(10);
/// How long the state of a closed connection is kept for retransmissions (2 MSL).
const KEPT: Duration = Duration::from_secs(60);
/// How often to look in the ring buffer for a hole that the program has counted. Another processor is about
/// to write that hole. If the hole does not appear, it counts as lost.
const TRIES: u32 = 1 << 20;

/// The attached programs. Dropping this removes them, but only after the last connections have ended.
pub(super) struct Programs {
    attached: Mutex<Option<Attached>>,
    group: Mutex<Group>,
    began: Instant,
}

struct Attached {
    /// Keeps the programs loaded and attached.
    _ebpf: Ebpf,
    served: Array<MapData, u32>,
    flows: Table<MapData, Key, Words>,
    wishes: Table<MapData, Key, Wished>,
    criticals: Table<MapData, Key, Critical>,
    openings: Table<MapData, Key, Opening>,
    events: RingBuf<MapData>,
    /// Holes of open connections with their numbers, until the connection takes them.
    pending: HashMap<Key, Vec<(u32, Hole)>>,
    /// Closed connections, and when each was closed.
    left: Vec<(Key, Instant)>,
}

impl Programs {
    /// Attaches the programs to the devices on which packets to `address` arrive. The error says why that is
    /// not possible.
    pub(super) async fn attach(address: IpAddr) -> Result<Self, String> {
        let code = thalweg_ebpf::unifl();
        let interfaces = route::interfaces(address).await.map_err(|e| e.to_string())?;
        let attached = Attached::new(code, &interfaces).map_err(|e| explain(&*e))?;
        let group = Mutex::new(Group::default());
        Ok(Self { attached: Mutex::new(Some(attached)), group, began: Instant::now() })
    }

    /// Makes the programs serve a port.
    pub(super) fn serve(&self, port: u16) -> Result<(), String> {
        self.with(|attached| attached.served.set(0, layout::port(port), 0)).map_err(|e| explain(&e))
    }

    fn attached(&self) -> MutexGuard<'_, Option<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Attached) -> Result<T, MapError>) -> io::Result<T> {
        let mut attached = self.attached();
        let Some(attached) = attached.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        act(attached).map_err(|e| io::Error::other(format!("eBPF: {}", explain(&e))))
    }

    /// The values from the handshake of a connection. `None` if the programs did not see it.
    pub(super) fn handshake(&self, key: &Key) -> Option<Handshake> {
        let opening = self.with(|attached| attached.openings.get(key, 0)).ok()?;
        Some(Handshake::read(&opening))
    }

    /// Adds a connection.
    pub(super) fn open(&self, key: Key, handshake: &Handshake, wish: &Wish) -> io::Result<()> {
        self.with(|attached| {
            attached.sweep(key);
            attached.wishes.insert(key, wish.write(), 0)?;
            attached.flows.insert(key, handshake.flow(), 0)?;
            attached.pending.insert(key, Vec::new());
            // Ignore an error: newer handshakes evict old ones from this map, so this one may be gone.
            let _ = attached.openings.remove(&key);
            Ok(())
        })
    }

    pub(super) fn wish(&self, key: Key, wish: &Wish) -> io::Result<()> {
        self.with(|attached| attached.wishes.insert(key, wish.write(), 0))
    }

    /// Sets the critical ranges of a connection's updates.
    pub(super) fn protect(&self, key: Key, critical: &Ranges) -> io::Result<()> {
        self.with(|attached| {
            if critical.is_empty() {
                // Usually there was no entry, so ignore an error.
                let _ = attached.criticals.remove(&key);
                return Ok(());
            }
            attached.criticals.insert(key, layout::critical(critical), 0)
        })
    }

    /// The state of a connection, and its holes from number `next` on: at least those that the state counts.
    pub(super) fn look(&self, key: &Key, next: u64) -> io::Result<(FlowReport, Vec<Hole>)> {
        let mut attached = self.attached();
        let Some(attached) = attached.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        let words = attached.flows.get(key, LOCKED);
        let words = words.map_err(|e| io::Error::other(format!("eBPF: {}", explain(&e))))?;
        let seen = FlowReport::read(&words);
        let holes = attached.holes(key, next, seen.holes);
        let lost = || io::Error::other("eBPF: a hole was counted and not told");
        holes.map(|holes| (seen, holes)).ok_or_else(lost)
    }

    /// Notes that the link has closed this connection.
    pub(super) fn leave(&self, key: Key, member: u32) {
        if let Some(attached) = self.attached().as_mut() {
            attached.pending.remove(&key);
            attached.left.push((key, Instant::now()));
        }
        self.group().leave(member);
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Time {
        self.began.elapsed()
    }

    /// Publishes the rate of a connection. Returns the rate and target of all flows on the path.
    pub(super) fn share(&self, now: Time, member: u32, own: GroupRate) -> Option<GroupRate> {
        self.group().publish(now, member, own)
    }
}

impl Attached {
    fn new(code: &[u8], interfaces: &[Interface]) -> Result<Self, Box<dyn Error>> {
        let mut ebpf = Ebpf::load(code)?;
        for ethernet in [true, false] {
            let names: Vec<&str> =
                interfaces.iter().filter(|i| i.ethernet == ethernet).map(|i| i.name.as_str()).collect();
            let kind = if ethernet { "ethernet" } else { "bare" };
            for (way, at) in [("inward", TcAttachType::Ingress), ("outward", TcAttachType::Egress)] {
                attach(&mut ebpf, &format!("{way}_{kind}"), at, &names)?;
            }
        }
        Ok(Self {
            served: Array::try_from(map(&mut ebpf, "served")?)?,
            flows: Table::try_from(map(&mut ebpf, "flows")?)?,
            wishes: Table::try_from(map(&mut ebpf, "wishes")?)?,
            criticals: Table::try_from(map(&mut ebpf, "criticals")?)?,
            openings: Table::try_from(map(&mut ebpf, "openings")?)?,
            events: RingBuf::try_from(map(&mut ebpf, "events")?)?,
            _ebpf: ebpf,
            pending: HashMap::new(),
            left: Vec::new(),
        })
    }

    /// Reads all events that the programs have written.
    fn read_events(&mut self) {
        while let Some(record) = self.events.next() {
            let Some((key, number, hole)) = layout::event(&record) else { continue };
            if let Some(pending) = self.pending.get_mut(&key) {
                pending.push((number, hole));
            }
        }
    }

    /// The holes of a connection from number `next` on, at least up to `last`. `None` if one of them does not
    /// show up.
    fn holes(&mut self, key: &Key, next: u64, last: u64) -> Option<Vec<Hole>> {
        let mut holes = Vec::new();
        for _ in 0..TRIES {
            self.read_events();
            let pending = self.pending.get_mut(key)?;
            pending.sort_unstable_by_key(|(number, _)| *number);
            let mut number = next + holes.len() as u64;
            let ready = pending.iter().take_while(|(this, _)| {
                let follows = *this == number as u32;
                number += u64::from(follows);
                follows
            });
            let count = ready.count();
            holes.extend(pending.drain(..count).map(|(_, hole)| hole));
            if next + holes.len() as u64 > last {
                return Some(holes);
            }
            std::thread::yield_now();
        }
        None
    }

    /// Forgets connections that ended long ago, and an earlier one with the same addresses and ports.
    fn sweep(&mut self, key: Key) {
        let Self { left, flows, wishes, criticals, .. } = self;
        left.retain(|(other, since)| {
            let keep = *other != key && since.elapsed() < KEPT;
            if !keep {
                // Ignore an error: if a new connection has the same addresses and ports, the programs have
                // already forgotten the old one.
                let _ = flows.remove(other);
                let _ = wishes.remove(other);
                let _ = criticals.remove(other);
            }
            keep
        });
    }

    /// Whether a connection with holes that we have closed is not yet closed by both ends.
    fn lingers(&self) -> bool {
        self.left.iter().any(|(key, since)| {
            let flow = self.flows.get(key, LOCKED).map(|words| FlowReport::read(&words));
            since.elapsed() < LINGER && flow.is_ok_and(|seen| seen.holes > 0 && !seen.ended)
        })
    }
}

impl Drop for Programs {
    /// The programs must stay until the last ACKs of a stream with holes have been sent.
    fn drop(&mut self) {
        let Some(attached) = self.attached().take().filter(Attached::lingers) else { return };
        let wait = move || {
            while attached.lingers() {
                std::thread::sleep(GLANCE);
            }
        };
        // Ignore an error: if no thread can be started, the programs are removed at once.
        let _ = std::thread::Builder::new().name("thalweg-unifl".into()).spawn(wait);
    }
}

fn attach(ebpf: &mut Ebpf, program: &str, at: TcAttachType, names: &[&str]) -> Result<(), Box<dyn Error>> {
    if names.is_empty() {
        return Ok(());
    }
    let found = ebpf.program_mut(program).ok_or_else(|| format!("no program {program}"))?;
    let program: &mut SchedClassifier = found.try_into()?;
    program.load()?;
    for name in names {
        program.attach_with_options(name, at, TcAttachOptions::TcxOrder(LinkOrder::default()))?;
    }
    Ok(())
}

fn map(ebpf: &mut Ebpf, name: &str) -> Result<Map, String> {
    ebpf.take_map(name).ok_or_else(|| format!("no map {name}"))
}
