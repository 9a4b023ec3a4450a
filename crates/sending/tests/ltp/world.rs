//! Test helper: senders and receivers over emulated links on a virtual clock. Several senders share the link
//! that carries packets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use thalweg_linkmodel::{Cause, Fate, Pipe, Shape};
use thalweg_rng::Rng;
use thalweg_sending::ltp::{Ack, ChunkId, Ended, Packet, Piece, Rebuild, Receiver, Rule, Sender, What};
use thalweg_sending::Time;

/// Bytes of a chunk's packet besides its payload, with UDP and IPv4 headers.
pub const AROUND: u32 = 92 + 28;
/// Bytes of a chunk's payload.
pub const PAYLOAD: u32 = 1344;
/// Bytes that the kernel charges for a packet besides its own.
const OVERHEAD: u64 = 1024;
/// Bytes of the kernel's receive buffer.
const BUFFER: u64 = 16 << 20;
const ACK_BYTES: usize = 200;
/// The greatest fraction of blocks that cannot be rebuilt although as many symbols as packets have arrived
/// (RFC 6330, section 5.8).
const FAILS: f64 = 0.01;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Packet(Packet),
    Ack(Ack),
    /// A sender wakes up.
    Sender,
    /// A receiver wakes up.
    Receiver,
}

type Queued = Reverse<(Time, u64, usize)>;

/// One sender with its receiver.
pub struct Party {
    pub sender: Sender,
    pub receiver: Receiver,
    transfer: u16,
    /// Indices of the chunks of the transfer that have arrived.
    pub received: Vec<u32>,
    /// When the last chunk arrived.
    pub last: Time,
    pub ended: Option<(Time, Ended)>,
    pub packets: u64,
    /// Chunks that were rebuilt.
    pub rebuilt: u64,
    /// Packets of blocks that were sent, by number.
    covered: HashMap<u64, Packet>,
    /// Maximum delay with which an end wakes up.
    pub late: Time,
    /// The receiver does not read until this time. Meanwhile packets wait in its buffer.
    pub asleep: Time,
    waiting: Vec<Packet>,
    /// Maximum delay with which an end wakes up.
    pub held: u64,
    /// When the sender and the receiver wake up next.
    timers: [Option<Time>; 2],
}

pub struct World {
    pub now: Time,
    pub parties: Vec<Party>,
    there: Pipe,
    back: Vec<Pipe>,
    events: BinaryHeap<Queued>,
    bodies: Vec<Option<Event>>,
    /// Number of packets that the queue dropped.
    pub full: u64,
    /// Number of packets that the link lost.
    pub lost: u64,
    pub dropped: u64,
    rng: Rng,
}

impl Party {
    /// The receiver processes a packet. In this test its symbols have no bytes.
    fn takes(&mut self, now: Time, packet: Packet, rng: &mut Rng) {
        if packet.block.is_some() {
            self.receiver.keep(packet.number, |_| {});
        }
        match packet.what {
            What::Chunk(part) => self.chunk(now, packet.number, Some(part)),
            What::Probe => self.chunk(now, packet.number, None),
            What::Repair(block, which) => self.receiver.handle_repair(packet.number, block, which, &[]),
        }
        while let Some(Rebuild { block, packets, repair }) = self.receiver.poll_rebuild() {
            if packets.len() + repair.len() == block.count as usize && rng.hits(FAILS) {
                continue;
            }
            let received: Vec<u32> = packets.iter().map(|(at, _)| *at).collect();
            self.receiver.rebuilt(block);
            for at in (0..block.count).filter(|at| !received.contains(at)) {
                let number = block.first + u64::from(at);
                match self.covered[&number].what {
                    What::Chunk(part) => {
                        self.rebuilt += 1;
                        self.chunk(now, number, Some(part));
                    }
                    _ => self.chunk(now, number, None),
                }
            }
        }
    }

    fn chunk(&mut self, now: Time, number: u64, part: Option<ChunkId>) {
        if self.receiver.handle_packet(now, number, part) {
            self.received.extend(part.filter(|part| part.transfer == self.transfer).map(|part| part.index));
            self.last = now;
        }
    }
}

impl World {
    /// Links of one shape in both directions. The link back has no rate limit.
    pub fn new(shape: &Shape, rules: &[Rule], seed: u64) -> Self {
        Self::between(shape, &Shape { rate: None, ..shape.clone() }, rules, seed)
    }

    /// One link carries all packets. Each party has a link of its own for ACKs.
    pub fn between(there: &Shape, way_back: &Shape, rules: &[Rule], seed: u64) -> Self {
        let there = Pipe::new(there.clone(), seed, 1).unwrap();
        let back =
            (0..rules.len() as u64).map(|n| Pipe::new(way_back.clone(), seed, 2 + n).unwrap()).collect();
        let party = |&rule: &Rule| Party {
            sender: Sender::new(Time::ZERO, BUFFER, OVERHEAD, PAYLOAD + AROUND),
            receiver: Receiver::new(rule),
            transfer: 0,
            received: Vec::new(),
            last: Time::ZERO,
            ended: None,
            packets: 0,
            rebuilt: 0,
            covered: HashMap::new(),
            late: Time::ZERO,
            asleep: Time::ZERO,
            waiting: Vec::new(),
            held: 0,
            timers: [None; 2],
        };
        Self {
            now: Time::ZERO,
            parties: rules.iter().map(party).collect(),
            there,
            back,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            full: 0,
            lost: 0,
            dropped: 0,
            rng: Rng::new(&[seed, 99]),
        }
    }

    /// From now on, the link for packets has this shape.
    pub fn change(&mut self, there: &Shape) {
        self.there.set(there.clone()).unwrap();
    }

    /// Uses `share` repair packets for each packet in a block.
    pub fn with_repair(mut self, share: f64) -> Self {
        for party in &mut self.parties {
            party.sender = Sender::new(Time::ZERO, BUFFER, OVERHEAD, PAYLOAD + AROUND).with_repair(share);
        }
        self
    }

    /// Begins a transfer of `chunks` chunks; `critical` selects the critical ones.
    pub fn begin(&mut self, party: usize, chunks: u32, critical: impl Fn(u32) -> bool) {
        let pieces = (0..chunks).map(|n| Piece { bytes: PAYLOAD + AROUND, critical: critical(n) }).collect();
        let one = &mut self.parties[party];
        one.transfer = one.sender.begin(pieces);
        (one.received, one.ended, one.rebuilt) = (Vec::new(), None, 0);
        self.wake(party, 0, self.now);
    }

    /// Wakes up an end at `at`, unless it wakes up earlier anyway.
    fn wake(&mut self, party: usize, end: usize, at: Time) {
        let at = at.max(self.now);
        let timer = &mut self.parties[party].timers[end];
        if timer.is_none_or(|sooner| at < sooner) {
            *timer = Some(at);
            self.at(at, party, if end == 0 { Event::Sender } else { Event::Receiver });
        }
    }

    fn at(&mut self, at: Time, party: usize, event: Event) {
        self.bodies.push(Some(event));
        self.events.push(Reverse((at.max(self.now), self.bodies.len() as u64 - 1, party)));
    }

    fn lateness(&mut self, party: usize) -> Time {
        let late = self.parties[party].late;
        if late.is_zero() {
            return late;
        }
        late.mul_f64(self.rng.unit())
    }

    /// Runs until all transfers have ended, or until `limit`.
    pub fn run(&mut self, limit: Time) {
        while !self.parties.iter().all(|party| party.ended.is_some()) && self.step(limit) {}
    }

    /// Runs until `limit`, even if the transfers end earlier.
    pub fn go_on(&mut self, limit: Time) {
        while self.step(limit) {}
    }

    fn step(&mut self, limit: Time) -> bool {
        let Some(Reverse((at, body, party))) = self.events.pop() else { return false };
        if at > limit {
            self.events.push(Reverse((at, body, party)));
            return false;
        }
        self.now = self.now.max(at);
        match self.bodies[body as usize].take().unwrap() {
            Event::Sender if self.parties[party].timers[0] != Some(at) => {} // woken up sooner
            Event::Receiver if self.parties[party].timers[1] != Some(at) => {}
            Event::Packet(packet) => self.arrives(party, packet),
            Event::Ack(ack) => {
                let now = self.now;
                self.parties[party].sender.handle_ack(now, &ack);
                self.send(party);
            }
            Event::Sender => {
                let now = self.now;
                self.parties[party].timers[0] = None;
                self.parties[party].sender.handle_timeout(now);
                self.send(party);
            }
            Event::Receiver => {
                self.parties[party].timers[1] = None;
                self.receive(party);
            }
        }
        true
    }

    fn arrives(&mut self, party: usize, packet: Packet) {
        let one = &mut self.parties[party];
        let room = BUFFER - one.waiting.len() as u64 * (u64::from(PAYLOAD + AROUND) + OVERHEAD);
        if room < BUFFER / 2 {
            self.dropped += 1; // a receive buffer twice as large as what was said would hold it
        }
        one.waiting.push(packet);
        one.held = one.held.max(BUFFER - room);
        let at = self.now.max(one.asleep) + self.lateness(party);
        self.wake(party, 1, at);
    }

    fn receive(&mut self, party: usize) {
        let (now, one) = (self.now, &mut self.parties[party]);
        one.receiver.handle_timeout(now);
        for packet in std::mem::take(&mut one.waiting) {
            one.takes(now, packet, &mut self.rng);
        }
        if let Some(at) = one.receiver.poll_timeout() {
            self.wake(party, 1, at);
        }
        if let Some(ack) = self.parties[party].receiver.poll_ack() {
            if let Fate::Passes(pass) = self.back[party].offer(now, ACK_BYTES) {
                let due = pass.due + self.lateness(party);
                self.at(due, party, Event::Ack(ack));
            }
        }
    }

    fn send(&mut self, party: usize) {
        let now = self.now;
        while let Some(packet) = self.parties[party].sender.poll_packet(now) {
            let bytes = match packet.what {
                What::Chunk(_) | What::Repair(..) => (PAYLOAD + AROUND) as usize,
                What::Probe => 92,
            };
            let one = &mut self.parties[party];
            one.packets += 1;
            if packet.block.is_some() {
                one.covered.insert(packet.number, packet);
            }
            match self.there.offer(now, bytes) {
                Fate::Passes(pass) => {
                    if pass.twice {
                        self.at(pass.due, party, Event::Packet(packet));
                    }
                    self.at(pass.due, party, Event::Packet(packet));
                }
                Fate::Dropped(Cause::Queue) => self.full += 1,
                Fate::Dropped(_) => self.lost += 1,
            }
        }
        let one = &mut self.parties[party];
        if let Some(ended) = one.sender.poll_ended() {
            one.ended = Some((now, ended));
        }
        if let Some(at) = one.sender.poll_timeout() {
            let at = at.max(now + Time::from_micros(1)) + self.lateness(party);
            self.wake(party, 0, at);
        }
    }
}
