//! The network between the hosts, without IO or clock: it takes packets from one host and delivers them to
//! another, after the links' queues, delays and losses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use thalweg_linkmodel::{Cause, Fate, Pass, Pipe, Shape};

use crate::histogram::{Histogram, Percentiles};
use crate::packet::{Destination, Packet, LARGEST};
use crate::spec::{impossible, Direction, Spec};
use crate::Result;

/// Time on the lab's clock.
pub type Time = Duration;

/// Segments of a superpacket stay together if their links deliver them within this time.
const BURST: Time = Duration::from_millis(1);
/// Maximum number of bytes in flight on one direction of a link: 400 ms at 10 Gbit/s.
const MOST_FLYING: usize = 512 << 20;
/// Time between two samples of a link.
const SAMPLE: Time = Duration::from_millis(10);
/// Maximum number of samples that are kept until [`Fabric::take_samples`] is called.
const MOST_SAMPLES: usize = 200_000;

/// A packet that has arrived at its host.
#[derive(Debug)]
pub struct Arrival {
    /// Number of the receiving host.
    pub host: usize,
    /// The packet that arrived.
    pub packet: Packet,
}

/// Counters of one direction of a link. Packets are segments.
#[derive(Debug, Clone, Default, Serialize)]
#[allow(missing_docs)] // docs/reference/record.md explains the names
pub struct Counters {
    pub packets_in: u64,
    pub bytes_in: u64,
    pub packets_out: u64,
    pub bytes_out: u64,
    pub lost: u64,
    pub queue_drops: u64,
    pub down_drops: u64,
    pub overflow_drops: u64,
    pub duplicated: u64,
    pub reordered: u64,
    pub queue_bytes_max: u64,
}

/// One direction of a link, for a report.
#[derive(Debug, Clone, Serialize)]
#[allow(missing_docs)]
pub struct LineStatus {
    pub link: String,
    pub direction: &'static str,
    pub source: String,
    pub target: String,
    pub shape: Shape,
    #[serde(flatten)]
    pub counters: Counters,
    pub queue_bytes: u64,
    pub queue_packets: u64,
    pub delay: Percentiles,
    pub lateness: Percentiles,
}

/// The queue and traffic of one direction of a link at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Seconds since the lab was started.
    pub seconds: f64,
    /// Index of the direction in [`Fabric::status`].
    #[serde(skip)]
    pub line: usize,
    /// Bytes in the queue.
    pub queue_bytes: u64,
    /// Packets in the queue.
    pub queue_packets: u64,
    /// Bytes that have arrived so far.
    pub bytes_out: u64,
    /// Packets that have arrived so far.
    pub packets_out: u64,
    /// Rate limit in bits a second; `None` without a limit, 0 while the link is down.
    pub rate: Option<u64>,
}

/// The state of one direction of a link.
struct LinkDirection {
    link: String,
    direction: Direction,
    source: usize,
    target: usize,
    pipe: Pipe,
    counters: Counters,
    flying: usize,
    delay: Histogram,
    lateness: Histogram,
    /// Whether something happened since the last sample, or packets are queued.
    busy: bool,
}

struct Flight {
    due: Time,
    order: u64,
    line: usize,
    entered: Time,
    packet: Packet,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.order) == (other.due, other.order)
    }
}
impl Eq for Flight {}
impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.order).cmp(&(other.due, other.order))
    }
}

struct Change {
    at: Time,
    line: usize,
    shape: Shape,
}

/// The network: hosts, switches, links, and the packets in flight.
pub struct Fabric {
    names: Vec<String>,
    hosts: usize,
    lines: Vec<LinkDirection>,
    by_name: HashMap<String, usize>,
    /// For each destination host and each node (host or switch): the link direction to take; `None` if there
    /// is no path.
    ways: Vec<Vec<Option<usize>>>,
    /// Packets in flight, for each relay worker that will deliver them.
    flights: Vec<BinaryHeap<Reverse<Flight>>>,
    /// The relay worker of each host.
    workers: Vec<usize>,
    order: u64,
    changes: VecDeque<Change>,
    started: Option<Time>,
    sampled: Time,
    samples: VecDeque<Sample>,
    /// Packets without a path to their destination, or that are not IP.
    astray: u64,
    spare: Vec<Vec<u8>>,
}

impl Fabric {
    /// Builds the network that a spec describes, for this many relay workers.
    pub fn new(spec: &Spec, workers: usize) -> Result<Self> {
        let nodes = spec.nodes()?;
        let (mut lines, mut by_name) = (Vec::new(), HashMap::new());
        for link in &spec.links {
            by_name.insert(link.name.clone(), lines.len());
            let (a, b) = (nodes[link.a.as_str()], nodes[link.b.as_str()]);
            for (direction, shape) in Direction::BOTH.into_iter().zip([&link.ab, &link.ba]) {
                let (source, target) = if direction == Direction::Ab { (a, b) } else { (b, a) };
                let pipe = Pipe::new(shape.clone(), spec.seed, lines.len() as u64);
                let pipe = pipe.map_err(|e| impossible(format!("link {:?}: {e}", link.name)))?;
                lines.push(LinkDirection {
                    link: link.name.clone(),
                    direction,
                    source,
                    target,
                    pipe,
                    counters: Counters::default(),
                    flying: 0,
                    delay: Histogram::default(),
                    lateness: Histogram::default(),
                    busy: false,
                });
            }
        }
        let mut changes = Vec::new();
        for change in &spec.changes {
            let first = by_name[&change.link];
            for direction in Direction::BOTH {
                if change.direction.is_none_or(|d| d == direction) {
                    let at = Time::from_secs_f64(change.at);
                    changes.push(Change {
                        at,
                        line: first + direction as usize,
                        shape: change.shape.clone(),
                    });
                }
            }
        }
        changes.sort_by_key(|change| change.at);
        let names: Vec<String> =
            spec.hosts.iter().map(|h| h.name.clone()).chain(spec.switches.iter().cloned()).collect();
        let arriving = arriving(names.len(), &lines);
        let ways = (0..spec.hosts.len()).map(|host| ways_to(host, &arriving)).collect();
        Ok(Self {
            names,
            hosts: spec.hosts.len(),
            by_name,
            ways,
            flights: (0..workers).map(|_| BinaryHeap::new()).collect(),
            workers: shares(spec.hosts.len(), workers, &lines),
            lines,
            order: 0,
            changes: changes.into(),
            started: None,
            sampled: Time::ZERO,
            samples: VecDeque::new(),
            astray: 0,
            spare: Vec::new(),
        })
    }

    /// Takes a packet that the host `from` has sent.
    pub fn input(&mut self, now: Time, from: usize, packet: Packet) {
        let line = self.host_of(packet.destination).and_then(|to| self.ways[to][from]);
        match line {
            Some(line) => self.offer(now, line, packet),
            None => self.lose_way(packet),
        }
    }

    /// Returns the next packet that has arrived by `now` at one of a worker's hosts.
    pub fn output(&mut self, now: Time, worker: usize) -> Option<Arrival> {
        self.change(now);
        loop {
            let due = self.next_flight(worker).filter(|&due| due <= now)?;
            let Reverse(flight) = self.flights[worker].pop()?;
            let line = &mut self.lines[flight.line];
            let (segments, bytes) = (flight.packet.segments() as u64, flight.packet.bytes());
            line.flying -= bytes;
            line.counters.packets_out += segments;
            line.counters.bytes_out += bytes as u64;
            line.busy = true;
            let node = line.target;
            let to = self.host_of(flight.packet.destination);
            let last = to == Some(node);
            // On all but the last link a packet leaves exactly when it is due. Only delivery to a host can be
            // late.
            let left = if last { now } else { due };
            line_times(&mut self.lines[flight.line], flight.entered, due, left, segments);
            match to.and_then(|to| self.ways[to][node]) {
                _ if last => return Some(Arrival { host: node, packet: flight.packet }),
                Some(next) => self.offer(due, next, flight.packet),
                None => self.lose_way(flight.packet),
            }
        }
    }

    /// When a worker must do something next.
    pub fn next_due(&self, worker: usize) -> Option<Time> {
        let change = self.started.and_then(|started| Some(started + self.changes.front()?.at));
        [self.next_flight(worker), change].into_iter().flatten().min()
    }

    /// Counts a packet that its host did not take.
    pub fn refused(&mut self, arrival: Arrival) {
        // The link direction is known only if the host has one link; otherwise the first one counts it.
        let line = self.lines.iter_mut().find(|line| line.target == arrival.host);
        if let Some(line) = line {
            line.counters.overflow_drops += arrival.packet.segments() as u64;
        }
        self.recycle(arrival.packet);
    }

    /// Adds buffers for packets of any length until there are `wanted`. Used buffers are taken first.
    pub fn fill_up(&mut self, buffers: &mut Vec<Vec<u8>>, wanted: usize) {
        while buffers.len() < wanted {
            buffers.push(self.spare.pop().unwrap_or_else(|| vec![0; LARGEST]));
        }
    }

    /// Keeps a packet's buffer for reuse, unless another run of segments still uses it.
    pub fn recycle(&mut self, packet: Packet) {
        if let Some(buffer) = packet.into_buffer().filter(|b| b.len() == LARGEST && self.spare.len() < SPARE)
        {
            self.spare.push(buffer);
        }
    }

    /// Counts frames from hosts that are not IP packets.
    pub fn strays(&mut self, count: u64) {
        self.astray += count;
    }

    /// Starts the clock of changes and samples.
    pub fn start(&mut self, now: Time) {
        self.started = Some(now);
        self.samples.clear();
        self.sampled = now;
    }

    /// Seconds since [`Fabric::start`]; `None` before it.
    pub fn elapsed(&self, now: Time) -> Option<f64> {
        self.started.map(|started| now.saturating_sub(started).as_secs_f64())
    }

    /// Changes the shape of a link, in one direction or, with `None`, in both.
    pub fn set(&mut self, link: &str, direction: Option<Direction>, shape: &Shape) -> Result<()> {
        let first = *self.by_name.get(link).ok_or_else(|| {
            let known: BTreeMap<_, _> = self.by_name.iter().collect();
            let known: Vec<_> = known.keys().map(|name| name.as_str()).collect();
            impossible(format!("no link is called {link:?}; there are {}", known.join(", ")))
        })?;
        for direction in Direction::BOTH.into_iter().filter(|&d| direction.is_none_or(|only| only == d)) {
            let line = &mut self.lines[first + direction as usize];
            line.busy = true; // take a sample after the change
            let changed = line.pipe.set(shape.clone());
            changed.map_err(|e| impossible(format!("link {link:?}: {e}")))?;
        }
        Ok(())
    }

    /// The status of all link directions, in the order of the links; a to b comes first.
    pub fn status(&mut self, now: Time) -> Vec<LineStatus> {
        let names = &self.names;
        let status = |line: &mut LinkDirection| {
            let (queue_bytes, queue_packets) = line.pipe.queue(now);
            LineStatus {
                link: line.link.clone(),
                direction: line.direction.name(),
                source: names[line.source].clone(),
                target: names[line.target].clone(),
                shape: line.pipe.shape().clone(),
                counters: line.counters.clone(),
                queue_bytes,
                queue_packets,
                delay: line.delay.percentiles(),
                lateness: line.lateness.percentiles(),
            }
        };
        self.lines.iter_mut().map(status).collect()
    }

    /// Packets without a path to their destination, or that are not IP.
    pub fn astray(&self) -> u64 {
        self.astray
    }

    /// Takes a sample of each busy link direction, if one is due.
    pub fn sample(&mut self, now: Time) {
        let Some(started) = self.started.filter(|_| now >= self.sampled + SAMPLE) else { return };
        self.sampled = now;
        for (number, line) in self.lines.iter_mut().enumerate().filter(|(_, line)| line.busy) {
            let (queue_bytes, queue_packets) = line.pipe.queue(now);
            line.busy = queue_packets > 0;
            if self.samples.len() == MOST_SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample {
                seconds: (now - started).as_secs_f64(),
                line: number,
                queue_bytes,
                queue_packets,
                bytes_out: line.counters.bytes_out,
                packets_out: line.counters.packets_out,
                rate: if line.pipe.shape().down { Some(0) } else { line.pipe.shape().rate },
            });
        }
    }

    /// When the next sample is due; `None` if nothing happened.
    pub fn next_sample(&self) -> Option<Time> {
        let busy = self.started.is_some() && self.lines.iter().any(|line| line.busy);
        busy.then(|| self.sampled + SAMPLE)
    }

    /// The samples since the last call, each with the name of its link and its direction.
    pub fn take_samples(&mut self) -> Vec<(String, &'static str, Sample)> {
        let lines = &self.lines;
        let named = |s: Sample| (lines[s.line].link.clone(), lines[s.line].direction.name(), s);
        self.samples.drain(..).map(named).collect()
    }

    /// The relay worker that delivers a host's packets.
    pub fn worker_of(&self, host: usize) -> usize {
        self.workers[host]
    }

    fn next_flight(&self, worker: usize) -> Option<Time> {
        self.flights[worker].peek().map(|Reverse(flight)| flight.due)
    }

    fn host_of(&self, destination: Destination) -> Option<usize> {
        host_of(destination).filter(|&host| host < self.hosts)
    }

    fn lose_way(&mut self, packet: Packet) {
        self.astray += packet.segments() as u64;
        self.recycle(packet);
    }

    fn change(&mut self, now: Time) {
        let Some(started) = self.started else { return };
        while let Some(change) = self.changes.pop_front() {
            if started + change.at > now {
                self.changes.push_front(change);
                return;
            }
            let line = &mut self.lines[change.line];
            // A busy direction is sampled after the change. The shape was checked when the spec was read.
            line.busy = true;
            let _ = line.pipe.set(change.shape);
        }
    }

    fn offer(&mut self, now: Time, number: usize, packet: Packet) {
        let line = &mut self.lines[number];
        let segments = packet.segments();
        line.busy = true;
        line.counters.packets_in += segments as u64;
        line.counters.bytes_in += packet.bytes() as u64;
        if line.flying > MOST_FLYING {
            line.counters.overflow_drops += segments as u64;
            return self.recycle(packet);
        }
        let together = line.pipe.keeps_together();
        // The current run of segments: their indices, when the first is due, and when the last is due.
        let mut run: Option<(Range<usize>, Time, Time)> = None;
        for index in 0..segments {
            let line = &mut self.lines[number];
            let pass = match line.pipe.offer(now, packet.segment_bytes(index)) {
                Fate::Passes(pass) => Some(pass),
                Fate::Dropped(cause) => {
                    line.counters.count(cause);
                    None
                }
            };
            let joins = |(_, first, _): &(_, Time, Time), pass: &Pass| together && pass.due <= *first + BURST;
            match (&mut run, pass) {
                (Some(open), Some(pass)) if joins(open, &pass) => {
                    open.0.end = index + 1;
                    open.2 = pass.due;
                }
                (_, pass) => {
                    if let Some((range, _, due)) = run.take() {
                        self.fly(number, now, due, packet.run(range));
                    }
                    if let Some(pass) = pass {
                        self.note(number, &pass);
                        if pass.twice {
                            self.fly(number, now, pass.due, packet.run(index..index + 1));
                        }
                        run = Some((index..index + 1, pass.due, pass.due));
                    }
                }
            }
        }
        let line = &mut self.lines[number];
        let (queued, _) = line.pipe.queue(now);
        line.counters.queue_bytes_max = line.counters.queue_bytes_max.max(queued);
        match run {
            // The usual case: no segment was lost, and the packet stays whole.
            Some((range, _, due)) if range == (0..segments) => self.fly(number, now, due, packet),
            Some((range, _, due)) => self.fly(number, now, due, packet.run(range)),
            None => self.recycle(packet),
        }
    }

    fn note(&mut self, line: usize, pass: &Pass) {
        let counters = &mut self.lines[line].counters;
        counters.reordered += u64::from(pass.overtakes);
        counters.duplicated += u64::from(pass.twice);
    }

    fn fly(&mut self, line: usize, entered: Time, due: Time, packet: Packet) {
        self.lines[line].flying += packet.bytes();
        self.order += 1;
        let worker = self.host_of(packet.destination).map_or(0, |host| self.workers[host]);
        self.flights[worker].push(Reverse(Flight { due, order: self.order, line, entered, packet }));
    }
}

/// Maximum number of buffers that are kept for reuse.
const SPARE: usize = 256;

impl Counters {
    fn count(&mut self, cause: Cause) {
        match cause {
            Cause::Loss => self.lost += 1,
            Cause::Queue => self.queue_drops += 1,
            Cause::Down => self.down_drops += 1,
        }
    }
}

fn line_times(line: &mut LinkDirection, entered: Time, due: Time, left: Time, segments: u64) {
    line.delay.add(left.saturating_sub(entered), segments);
    line.lateness.add(left.saturating_sub(due), segments);
}

/// The addresses of the host with this number. A program that plays a change of networks may give the host
/// 10.76.x.y in place of 10.77.x.y: the lab carries packets to both.
pub fn addresses(host: usize) -> (Ipv4Addr, Ipv6Addr) {
    let [_, _, high, low] = (host as u32 + 1).to_be_bytes();
    (Ipv4Addr::new(10, 77, high, low), Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host as u16 + 1))
}

fn host_of(destination: Destination) -> Option<usize> {
    let number = match destination {
        Destination::V4(address) => match address.octets() {
            [10, 76 | 77, high, low] => usize::from(high) << 8 | usize::from(low),
            _ => return None,
        },
        Destination::V6(address) => match address.segments() {
            [0xfd77, 0, 0, 0, 0, 0, 0, number] => usize::from(number),
            _ => return None,
        },
    };
    number.checked_sub(1)
}

/// Assigns each host to a relay worker, so that all workers have about the same load. The first host counts
/// as many: it usually is the server, so most traffic goes to or from it.
fn shares(hosts: usize, workers: usize, lines: &[LinkDirection]) -> Vec<usize> {
    let mut weights = vec![0; hosts];
    for line in lines.iter().filter(|line| line.target < hosts) {
        weights[line.target] += 1;
    }
    weights[0] = weights[0].max(hosts - 1);
    let mut loads = vec![0; workers];
    let share = |weight| {
        let least = (0..workers).min_by_key(|&worker| loads[worker]).unwrap_or(0);
        loads[least] += weight;
        least
    };
    weights.into_iter().map(share).collect()
}

/// For each node, the link directions that end there: index and source.
fn arriving(nodes: usize, lines: &[LinkDirection]) -> Vec<Vec<(usize, usize)>> {
    let mut arriving = vec![Vec::new(); nodes];
    for (number, line) in lines.iter().enumerate() {
        arriving[line.target].push((number, line.source));
    }
    arriving
}

/// For each node, the first link direction of a shortest path to a host. Of several, the earliest link is
/// chosen.
fn ways_to(host: usize, arriving: &[Vec<(usize, usize)>]) -> Vec<Option<usize>> {
    let mut ways = vec![None; arriving.len()];
    let mut ring = VecDeque::from([host]);
    while let Some(node) = ring.pop_front() {
        for &(number, source) in &arriving[node] {
            if source != host && ways[source].is_none() {
                ways[source] = Some(number);
                ring.push_back(source);
            }
        }
    }
    ways
}
