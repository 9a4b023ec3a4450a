//! An endpoint holds many flows and runs on one thread. It finds the flow of a packet, calls flows whose
//! timers are due, and asks flows for packets to send.
//!
//! It finds flows in a tree, by the addresses and ports of both ends. A hash table would need a secret
//! against chosen collisions, and is no faster for a few thousand flows. All tables are bounded. If all flows
//! are in use, the endpoint does not answer a new connection. If too many handshakes are unfinished, a new
//! one replaces a random one of them, so a SYN flood evicts itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use thalweg_wire::Range;

use super::config::Config;
use super::emit::Outbound;
use super::event::{Counters, Ended, Event, FlowId, Happening, Stats, What};
use super::flow::{refusal, Context, Flow, Reset, State};
use super::options::Written;
use super::policy::{Budget, Policy};
use super::rate::Group;
use super::segment::{Offload, Segment, Senseless, ACK, FIN, RST, SYN};
use super::sequence::before;
use super::siphash::siphash;
use super::{Address, Peer, Tuple};
use crate::Time;
use thalweg_rng::Rng;

/// Microseconds after which the initial sequence number rises by one (RFC 6528 section 3).
const SEQUENCE_STEP: u128 = 4;

/// The receiving side of any number of connections.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    key: [u64; 2],
    rng: Rng,
    flows: Vec<Slot>,
    free: Vec<u32>,
    places: BTreeMap<Tuple, u32>,
    half_open: Vec<u32>,
    deadlines: BTreeSet<(Time, u32)>,
    ready: VecDeque<u32>,
    resets: VecDeque<Reset>,
    events: VecDeque<(FlowId, Happening)>,
    groups: BTreeMap<u32, Group>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Slot {
    age: u32,
    flow: Option<Box<Flow>>,
    deadline: Option<Time>,
    ready: bool,
}

/// The events of the packet that the caller has just handed in. They may borrow from that packet.
#[must_use = "bytes are acknowledged: who does not take them has lost them"]
#[derive(Debug)]
pub struct Turn<'e, 'p> {
    endpoint: &'e mut Endpoint,
    packet: &'p [u8],
}

impl<'p> Turn<'_, 'p> {
    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event<'p>> {
        let (flow, happening) = self.endpoint.events.pop_front()?;
        let what = match happening {
            Happening::Bytes { offset, start, end, late } => {
                What::Bytes { offset, bytes: self.packet.get(start..end).unwrap_or_default(), late }
            }
            Happening::Other(what) => what,
        };
        Some(Event { flow, what })
    }
}

impl Drop for Turn<'_, '_> {
    fn drop(&mut self) {
        // Drop the events that borrow from the packet. Other events stay in the queue.
        self.endpoint.events.retain(|(_, happening)| matches!(happening, Happening::Other(_)));
    }
}

impl Endpoint {
    /// Creates an endpoint without flows. `secret` determines the initial sequence numbers: nobody else may
    /// be able to predict it, and each endpoint needs its own secret.
    pub fn new(config: Config, secret: [u64; 2]) -> Self {
        Self {
            config,
            key: secret,
            rng: Rng::new(&secret),
            flows: Vec::new(),
            free: Vec::new(),
            places: BTreeMap::new(),
            half_open: Vec::new(),
            deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            resets: VecDeque::new(),
            events: VecDeque::new(),
            groups: BTreeMap::new(),
            counters: Counters::default(),
        }
    }

    /// Processes an IP packet. Poll its events before you hand in the next packet.
    pub fn handle_packet<'e, 'p>(
        &'e mut self,
        now: Time,
        packet: &'p [u8],
        offload: Offload,
    ) -> Turn<'e, 'p> {
        self.counters.packets += 1;
        match Segment::read(packet, offload) {
            Ok(segment) => self.segment(now, &segment),
            Err(Senseless::Checksum) => self.counters.checksum += 1,
            Err(Senseless::Form | Senseless::Fragment) => self.counters.senseless += 1,
        }
        Turn { endpoint: self, packet }
    }

    fn segment(&mut self, now: Time, segment: &Segment) {
        let Some(&place) = self.places.get(&segment.tuple) else { return self.stranger(now, segment) };
        if segment.has(SYN) && self.may_replace(place, segment) {
            self.work(now, place, |flow, _| flow.state = State::Closed);
            return self.stranger(now, segment);
        }
        self.work(now, place, |flow, cx| flow.segment(cx, segment));
        self.share(now, place);
    }

    /// Whether a SYN may replace a connection in TIME-WAIT. Its sequence number must be beyond those of the
    /// old connection (RFC 6191, RFC 9293 section 3.10.7.4).
    fn may_replace(&self, place: u32, segment: &Segment) -> bool {
        let flow = self.flows.get(place as usize).and_then(|slot| slot.flow.as_ref());
        let waiting = flow.filter(|flow| flow.state == State::TimeWait && !segment.has(ACK));
        waiting.is_some_and(|flow| before(flow.next_sequence(), segment.sequence))
    }

    /// Handles a segment that belongs to no connection. A SYN to one of our ports begins a connection; the
    /// endpoint refuses all other segments.
    fn stranger(&mut self, now: Time, segment: &Segment) {
        let plain = segment.has(SYN) && segment.flags & (ACK | RST | FIN) == 0;
        if !plain || !self.config.ports.contains(&segment.tuple.local.port) {
            self.counters.stray += 1;
            if let Some(reset) = refusal(segment).filter(|_| self.resets.len() < self.config.resets) {
                self.resets.push_back(reset);
            }
            return;
        }
        if self.half_open.len() >= self.config.half_open.max(1) {
            let chosen = self.rng.draw() as usize % self.half_open.len();
            let place = self.half_open[chosen];
            self.counters.evicted += 1;
            self.work(now, place, |flow, _| flow.state = State::Closed);
        }
        if self.places.len() >= self.config.flows {
            self.counters.crowded += 1;
            return;
        }
        let secret = self.secret(now, &segment.tuple);
        let place = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Slot::default());
            self.flows.len() as u32 - 1
        });
        let Some(slot) = self.flows.get_mut(place as usize) else { return };
        slot.age = slot.age.wrapping_add(1);
        let id = FlowId { place, age: slot.age };
        slot.flow = Some(Box::new(Flow::accept(id, segment, secret, now, &self.config)));
        self.places.insert(segment.tuple, place);
        self.half_open.push(place);
        self.work(now, place, |_, _| ());
    }

    /// Initial sequence number and timestamp offset of a connection (RFC 6528 section 3, RFC 7323 section
    /// 5.4).
    fn secret(&self, now: Time, tuple: &Tuple) -> (u32, u32) {
        let mut bytes = Vec::with_capacity(36);
        for Peer { address, port } in [tuple.remote, tuple.local] {
            match address {
                Address::V4(address) => bytes.extend(address),
                Address::V6(address) => bytes.extend(address),
            }
            bytes.extend(port.to_be_bytes());
        }
        let hash = siphash(self.key, &bytes);
        let clock = (now.as_micros() / SEQUENCE_STEP) as u32;
        ((hash as u32).wrapping_add(clock), (hash >> 32) as u32)
    }

    /// Lets a flow act. Afterwards updates the tables: timers, unfinished handshakes, and flows that may have
    /// a packet to send. Removes the flow if it is over.
    fn work<T>(
        &mut self,
        now: Time,
        place: u32,
        act: impl FnOnce(&mut Flow, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let slot = self.flows.get_mut(place as usize)?;
        let flow = slot.flow.as_mut()?;
        let opening = flow.state == State::SynReceived;
        let mut cx = Context {
            now,
            config: &self.config,
            events: &mut self.events,
            resets: &mut self.resets,
            counters: &mut self.counters,
        };
        let result = act(flow, &mut cx);
        if opening && flow.state != State::SynReceived {
            self.half_open.retain(|&other| other != place);
        }
        let over = flow.is_over();
        let deadline = if over { None } else { flow.deadline(&self.config) };
        if slot.deadline != deadline {
            if let Some(old) = std::mem::replace(&mut slot.deadline, deadline) {
                self.deadlines.remove(&(old, place));
            }
            self.deadlines.extend(deadline.map(|at| (at, place)));
        }
        if over {
            self.places.remove(&flow.tuple);
            if let Some(group) = flow.group.and_then(|group| self.groups.get_mut(&group)) {
                group.leave(place);
            }
            slot.flow = None;
            self.free.push(place);
            self.groups.retain(|_, group| group.members() > 0);
        } else if !std::mem::replace(&mut slot.ready, true) {
            self.ready.push_back(place);
        }
        Some(result)
    }

    fn share(&mut self, now: Time, place: u32) {
        let Some(flow) = self.flows.get_mut(place as usize).and_then(|slot| slot.flow.as_mut()) else {
            return;
        };
        if let Some(group) = flow.group {
            flow.share = self.groups.entry(group).or_default().publish(now, place, flow.own_share());
        }
    }

    /// Runs all timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(at, place)) = self.deadlines.first() {
            if at > now {
                break;
            }
            self.deadlines.pop_first();
            if let Some(slot) = self.flows.get_mut(place as usize) {
                slot.deadline = None;
            }
            self.work(now, place, |flow, cx| flow.timeout(cx));
            // If a timer of this flow is still due, run it a millisecond later. Otherwise this loop might
            // never end.
            let again =
                self.flows.get_mut(place as usize).filter(|slot| slot.deadline.is_some_and(|d| d <= now));
            if let Some(slot) = again {
                let next = now + Time::from_millis(1);
                if let Some(old) = slot.deadline.replace(next) {
                    self.deadlines.remove(&(old, place));
                }
                self.deadlines.insert((next, place));
            }
        }
    }

    /// The time of the earliest timer. Call [`Self::handle_timeout`] then.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// The next event that does not borrow from a packet. Timers and calls of the application cause such
    /// events.
    pub fn poll_event(&mut self) -> Option<Event<'static>> {
        Turn { endpoint: self, packet: &[] }.poll_event()
    }

    /// Writes the next IP packet into `packet`. Returns the work that the device has to do on it (none unless
    /// `Config::offload` is set), or `None` if there is no packet. Call it after a batch of packets, so that
    /// one ACK covers the batch.
    pub fn poll_packet(&mut self, now: Time, packet: &mut Vec<u8>) -> Option<Offload> {
        if let Some(reset) = self.resets.pop_front() {
            return Some(write_reset(&reset, packet));
        }
        while let Some(&place) = self.ready.front() {
            let wrote = self.work(now, place, |flow, cx| flow.poll(now, cx.config, packet));
            if let Some(Some(offload)) = wrote {
                return Some(offload);
            }
            self.ready.pop_front();
            if let Some(slot) = self.flows.get_mut(place as usize) {
                slot.ready = false;
            }
        }
        None
    }

    fn place(&self, flow: FlowId) -> Option<u32> {
        let slot = self.flows.get(flow.place as usize)?;
        (slot.age == flow.age && slot.flow.is_some()).then_some(flow.place)
    }

    fn with<T>(
        &mut self,
        now: Time,
        flow: FlowId,
        act: impl FnOnce(&mut Flow, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let place = self.place(flow)?;
        self.work(now, place, act)
    }

    /// Queues bytes for the peer. Returns how many fit, or `None` if the flow is over.
    pub fn send(&mut self, now: Time, flow: FlowId, bytes: &[u8]) -> Option<usize> {
        self.with(now, flow, |flow, _| flow.send(bytes))
    }

    /// Closes our side. The peer still receives the bytes that were sent before this call.
    pub fn close(&mut self, now: Time, flow: FlowId) {
        self.with(now, flow, |flow, _| flow.close());
    }

    /// Resets the connection.
    pub fn abort(&mut self, now: Time, flow: FlowId) {
        self.with(now, flow, |flow, cx| flow.abort(cx, Ended::Aborted));
    }

    /// Changes the loss policy of a flow, and judges its open gaps again.
    pub fn change(&mut self, now: Time, flow: FlowId, change: impl FnOnce(&mut Policy)) {
        self.with(now, flow, |flow, cx| flow.change(cx, change));
    }

    /// From now on, holes in `range` must be retransmitted.
    pub fn protect(&mut self, now: Time, flow: FlowId, range: Range) {
        self.change(now, flow, |policy| policy.protect(range));
    }

    /// From now on, holes in `range` may be masked.
    pub fn permit(&mut self, now: Time, flow: FlowId, range: Range) {
        self.change(now, flow, |policy| policy.permit(range));
    }

    /// Adds a budget to the flow's loss policy.
    pub fn limit(&mut self, now: Time, flow: FlowId, budget: Budget) {
        self.change(now, flow, |policy| policy.limit(budget));
    }

    /// Notes that the application could still use late bytes that filled a masked hole. Budgets stop counting
    /// them as lost.
    pub fn filled(&mut self, now: Time, flow: FlowId, part: Range) {
        self.with(now, flow, |flow, _| flow.filled(part));
    }

    /// Notes that the application needs no late data before `offset`, and will not change the policy for
    /// bytes before it.
    pub fn forget(&mut self, now: Time, flow: FlowId, offset: u64) {
        self.with(now, flow, |flow, _| flow.forget(offset));
    }

    /// Notes that the application has room for the stream up to `offset`. Until the first call, it has room
    /// for all of the stream. A smaller offset does not take back a window that was already advertised. Each
    /// ACK may still move the right edge by less than one unit of the scaled window.
    pub fn admit(&mut self, now: Time, flow: FlowId, offset: u64) {
        self.with(now, flow, |flow, _| flow.admit(offset));
    }

    /// Sets whether the application expects more data soon. While it does, the receiver delays the ACK of the
    /// last segment. The sender then has more than one segment in flight, so it sends a tail loss probe after
    /// two round trips (RFC 8985 section 7.2).
    pub fn expect(&mut self, now: Time, flow: FlowId, more: bool) {
        self.with(now, flow, |flow, _| flow.expect(more));
    }

    /// Puts the flow into a group. The flows of a group share their path fairly.
    pub fn join(&mut self, now: Time, flow: FlowId, group: u32) {
        self.with(now, flow, |flow, _| flow.group = Some(group));
        self.share(now, flow.place);
    }

    /// Listens on these ports only. Existing flows continue.
    pub fn listen(&mut self, ports: Vec<u16>) {
        self.config.ports = ports;
    }

    /// Statistics of a flow.
    pub fn stats(&self, flow: FlowId) -> Option<Stats> {
        let place = self.place(flow)?;
        self.flows.get(place as usize)?.flow.as_ref().map(|flow| flow.stats())
    }

    /// Number of flows, including those that only answer retransmissions (TIME-WAIT).
    pub fn flows(&self) -> usize {
        self.places.len()
    }

    /// Counts of dropped packets, by reason.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

fn write_reset(reset: &Reset, packet: &mut Vec<u8>) -> Offload {
    let flags = RST | if reset.acknowledgement.is_some() { ACK } else { 0 };
    let segment = Outbound {
        tuple: &reset.tuple,
        sequence: reset.sequence,
        acknowledgement: reset.acknowledgement.unwrap_or_default(),
        flags,
        window: 0,
        options: Written::new(),
        payload: (&[], &[]),
        ect: false,
    };
    segment.write(packet, None)
}
