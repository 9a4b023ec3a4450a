//! Senders, lossy links, optionally a shared link, and the endpoint. Time is virtual.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::app::App;
use super::sender::{Sender, FIRST, PORTS};
use super::wire::*;
use thalweg_linkmodel::{Cause, Fate, Pass, Pipe, Shape};
use thalweg_masking::Time;
use thalweg_masking::{Config, Endpoint, FlowId, Offload};

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A packet of a sender arrives at the shared link.
    Shared(usize, Vec<u8>),
    Endpoint(usize, Vec<u8>),
    Sender(usize, Vec<u8>),
}

pub struct World {
    pub now: Time,
    pub endpoint: Endpoint,
    /// A receiver of its own for one sender, by the sender's number.
    other: Option<(usize, Endpoint)>,
    pub senders: Vec<Sender>,
    pub apps: Vec<App>,
    pub ends: Vec<Option<Time>>,
    /// Packets lost by links, and dropped by full queues.
    pub lost: u64,
    pub full: u64,
    group: Option<u32>,
    settled: bool,
    /// Number of senders that are not done, and the senders' timers.
    left: usize,
    timers: BTreeSet<(Time, usize)>,
    armed: Vec<Option<Time>>,
    over: Vec<bool>,
    up: Vec<Pipe>,
    down: Vec<Pipe>,
    shared: Option<Pipe>,
    events: BinaryHeap<Reverse<(Time, u64, What)>>,
    count: u64,
    flows: BTreeMap<(bool, FlowId), usize>,
    /// One past the highest offset that reached the endpoint, and the right edge that it has advertised.
    seen: Vec<(u64, u64)>,
}

impl World {
    pub fn new(config: Config, senders: Vec<Sender>, up: &Shape, shared: Option<Shape>, seed: u64) -> Self {
        let count = senders.len();
        let pipe = |shape: &Shape, stream| Pipe::new(shape.clone(), seed, stream).expect("a possible shape");
        let back = Shape { delay: up.delay, ..Shape::default() };
        Self {
            now: Time::ZERO,
            endpoint: Endpoint::new(config, [seed, 9]),
            other: None,
            apps: (0..count).map(|_| App::default()).collect(),
            ends: vec![None; count],
            lost: 0,
            full: 0,
            group: None,
            settled: false,
            left: count,
            timers: BTreeSet::new(),
            armed: vec![None; count],
            over: vec![false; count],
            up: (0..count as u64).map(|i| pipe(up, i)).collect(),
            down: (0..count as u64).map(|i| pipe(&back, 1000 + i)).collect(),
            shared: shared.map(|shape| pipe(&shape, 2000)),
            events: BinaryHeap::new(),
            count: 0,
            flows: BTreeMap::new(),
            seen: vec![(0, 0); count],
            senders,
        }
    }

    /// Puts all flows into one group.
    pub fn grouped(mut self) -> Self {
        self.group = Some(1);
        self
    }

    /// Gives sender `of` a receiver of its own.
    pub fn apart(mut self, of: usize, config: Config) -> Self {
        self.other = Some((of, Endpoint::new(config, [5, 9])));
        self
    }

    /// Establishes the connections before any data is sent, as a session does. No SYN is lost.
    pub fn settled(mut self) -> Self {
        self.settled = true;
        self
    }

    /// Gives each sender's path its own one-way delay, in seconds.
    pub fn delayed(mut self, delay: impl Fn(usize) -> f64) -> Self {
        for (i, (up, down)) in self.up.iter_mut().zip(&mut self.down).enumerate() {
            for pipe in [up, down] {
                let shape = Shape { delay: delay(i), ..pipe.shape().clone() };
                pipe.set(shape).expect("a possible shape");
            }
        }
        self
    }

    /// Whether all senders are done.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    fn endpoints(&mut self) -> impl Iterator<Item = (bool, &mut Endpoint)> {
        let other = self.other.iter_mut().map(|(_, endpoint)| (true, endpoint));
        [(false, &mut self.endpoint)].into_iter().chain(other)
    }

    fn push(&mut self, at: Time, what: What) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, what)));
    }

    /// Runs until everything is acknowledged, or until `most`.
    pub fn run(&mut self, most: Time) {
        (0..self.senders.len()).for_each(|i| self.send(i));
        while self.left > 0 {
            let other = self.other.as_ref().and_then(|(_, endpoint)| endpoint.poll_timeout());
            let timer = self.timers.first().map(|&(at, _)| at);
            let wake = [timer, self.endpoint.poll_timeout(), other].into_iter().flatten().min();
            let next = self.events.peek().map(|Reverse((at, ..))| *at);
            let at = wake.into_iter().chain(next).min().expect("something will happen");
            if at > most {
                break;
            }
            self.now = self.now.max(at);
            if next.is_some_and(|next| next <= self.now) {
                let Some(Reverse((_, _, what))) = self.events.pop() else { break };
                self.happen(what);
            } else {
                let now = self.now;
                self.endpoints().for_each(|(_, endpoint)| endpoint.handle_timeout(now));
                let due: Vec<usize> = self.timers.range(..=(now, usize::MAX)).map(|&(_, i)| i).collect();
                due.into_iter().for_each(|i| {
                    self.senders[i].expired(now);
                    self.send(i);
                });
            }
            self.listen();
        }
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Shared(from, packet) => {
                let Some(shared) = &mut self.shared else { return };
                match shared.offer(self.now, packet.len()) {
                    Fate::Passes(pass) => self.push(pass.due, What::Endpoint(from, packet)),
                    Fate::Dropped(_) => self.full += 1,
                }
            }
            What::Endpoint(from, packet) => {
                self.note(from, &packet);
                let apart = self.other.as_ref().is_some_and(|(of, _)| *of == from);
                let now = self.now;
                let mut ends = self.endpoints().filter(|(other, _)| *other == apart);
                let (_, endpoint) = ends.next().expect("its receiver");
                let mut turn = endpoint.handle_packet(now, &packet, Offload::default());
                let mut events = Vec::new();
                while let Some(event) = turn.poll_event() {
                    events.push(event);
                }
                drop(turn);
                drop(ends);
                for event in events {
                    if let (false, Some(group)) = (self.flows.contains_key(&(apart, event.flow)), self.group)
                    {
                        self.endpoint.join(self.now, event.flow, group);
                    }
                    self.flows.insert((apart, event.flow), from);
                    self.apps[from].see(event);
                }
            }
            What::Sender(to, packet) => {
                let seg = Seg::decode(&packet);
                self.senders[to].receive(self.now, &seg);
                if self.senders[to].done && self.ends[to].is_none() {
                    self.ends[to] = Some(self.now);
                }
                self.send(to);
            }
        }
    }

    /// Puts a sender's packets into its link.
    fn send(&mut self, from: usize) {
        while let Some(seg) = self.senders[from].poll(self.now) {
            let packet = seg.encode();
            let fate = if self.settled && seg.flags & SYN > 0 {
                let due = self.now + Time::from_secs_f64(self.up[from].shape().delay);
                Fate::Passes(Pass { due, overtakes: false, twice: false })
            } else {
                self.up[from].offer(self.now, packet.len())
            };
            match fate {
                Fate::Passes(pass) => {
                    let shared = self.shared.is_some();
                    let to = |packet| {
                        if shared {
                            What::Shared(from, packet)
                        } else {
                            What::Endpoint(from, packet)
                        }
                    };
                    if pass.twice {
                        self.push(pass.due, to(packet.clone()));
                    }
                    self.push(pass.due, to(packet));
                }
                Fate::Dropped(Cause::Queue) => self.full += 1,
                Fate::Dropped(_) => self.lost += 1,
            }
        }
        self.arm(from);
    }

    /// Updates a sender's timer. Called after everything that happens to the sender.
    fn arm(&mut self, of: usize) {
        let sender = &self.senders[of];
        let over = sender.done || sender.reset;
        let deadline = sender.deadline.filter(|_| !over);
        if let Some(old) = std::mem::replace(&mut self.armed[of], deadline) {
            self.timers.remove(&(old, of));
        }
        self.timers.extend(deadline.map(|at| (at, of)));
        if over && !std::mem::replace(&mut self.over[of], true) {
            self.left -= 1;
        }
    }

    /// Delivers the endpoint's packets to the senders.
    fn listen(&mut self) {
        let now = self.now;
        let (mut events, mut packets) = (Vec::new(), Vec::new());
        for (other, endpoint) in self.endpoints() {
            while let Some(event) = endpoint.poll_event() {
                events.push((other, event));
            }
            let mut packet = Vec::new();
            while endpoint.poll_packet(now, &mut packet).is_some() {
                packets.push(std::mem::take(&mut packet));
            }
        }
        for (other, event) in events {
            let of = self.flows[&(other, event.flow)];
            self.apps[of].see(event);
        }
        for packet in packets {
            let seg = Seg::decode(&packet);
            let to = usize::from(seg.port - PORTS - FIRST);
            self.check(to, &seg);
            if let Fate::Passes(pass) = self.down[to].offer(now, packet.len()) {
                self.push(pass.due, What::Sender(to, packet));
            }
        }
    }

    fn note(&mut self, from: usize, packet: &[u8]) {
        let seq = u32::from_be_bytes([packet[24], packet[25], packet[26], packet[27]]);
        let payload = packet.len() - 20 - usize::from(packet[32] >> 4) * 4;
        let length = payload as u32 + u32::from(packet[33] & FIN);
        let end = u64::from(seq.wrapping_sub(0xfff0_0001).wrapping_add(length));
        if packet[33] & SYN == 0 {
            self.seen[from].0 = self.seen[from].0.max(end);
        }
    }

    /// Checks that nothing is acknowledged that has not arrived, and that the right edge never moves left.
    fn check(&mut self, of: usize, seg: &Seg) {
        if seg.flags & (RST | SYN) > 0 {
            return;
        }
        let (highest, right_edge) = &mut self.seen[of];
        let ack = seg.ack.wrapping_sub(0xfff0_0001);
        assert!(u64::from(ack) <= *highest, "acknowledges {ack} of {highest}");
        let promised = u64::from(ack) + (u64::from(seg.window) << 10);
        assert!(promised >= *right_edge, "{promised} after {right_edge}: {seg:?}");
        *right_edge = promised;
    }

    /// Number of bytes in the queue of the shared link.
    pub fn queued(&mut self) -> u64 {
        let now = self.now;
        self.shared.as_mut().map_or(0, |shared| shared.queue(now).0)
    }

    /// Goodput of a flow in bytes a second.
    pub fn goodput(&self, of: usize) -> f64 {
        let took = self.ends[of].unwrap_or(self.now).as_secs_f64();
        self.apps[of].got.bytes() as f64 * 8e-6 / took
    }
}
