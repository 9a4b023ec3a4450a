//! The sender of LTP. It numbers packets, detects their loss, and sends chunks, repair packets and probes at
//! the rate of [`Rate`].

use std::collections::VecDeque;

use thalweg_wire::Ranges;

use super::receiver::{Ack, Closed};
use super::repair::{Block, Blocks, Hope};
use super::transfer::{ChunkId, Piece, SendQueue};
use crate::Time;
use crate::{AckSample, Belief, Delivery, Pacer, Rate, Stamp, Trips, Waits};

/// Bytes that a probe adds to the bytes in flight.
const PROBE_BYTES: u32 = 64;
/// Initial cwnd in packets. TCP starts with 10 (RFC 6928) and retransmits all that is lost.
const INITIAL_WINDOW: u64 = 32;
/// The maximum fraction of the sent bytes that makes up for path loss. If a short queue is full of other
/// senders' packets, a sender cannot distinguish that loss from the path's loss. With this limit it sends at
/// most 2.6 times the bytes that arrive. With a lower limit, the cwnd would shrink for ever on a path that
/// loses 70 %, since it is at most 1.3 times the bytes that a round trip delivered. A path that loses more than
/// senders with this limit can cause has [a higher one](Rate::making_up).
const MAX_MADE_UP: f64 = 0.62;

/// A packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The packet number. Only an unanswered probe is sent again under its old number.
    pub number: u64,
    /// Content of the packet.
    pub what: What,
    /// First packet number of its block, if repair packets may follow. Keep the packet until they have been
    /// sent.
    pub block: Option<u64>,
}

/// Content of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A chunk.
    Chunk(ChunkId),
    /// A packet without data. It asks for an ACK.
    Probe,
    /// A repair packet: its block, and its index from 0.
    Repair(Block, u32),
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Number of the transfer.
    pub transfer: u16,
    /// Reason.
    pub why: Closed,
    /// Number of retransmissions.
    pub again: u64,
    /// Number of repair packets sent.
    pub repair: u64,
    /// Number of chunks that are not acknowledged: an upper bound of the number of missing chunks.
    pub missing: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    /// The packet counts as lost, but may still be acknowledged.
    Lost,
    /// The packet was acknowledged.
    Done,
}

/// Content of a sent packet, as the sender remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Transfer and index.
    Chunk(u16, u32),
    Probe,
    Repair,
}

/// What loss detection decides about a packet in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The packet was acknowledged, or already counts as lost.
    Decided,
    /// The packet may still arrive. If the time is known, the packet counts as lost from then on.
    Open(Option<Time>),
    /// The packet is lost now.
    Lost,
}

#[derive(Debug)]
struct Sent {
    at: Time,
    bytes: u32,
    state: State,
    load: Load,
    /// Whether the packet may be rebuilt from others. Then its ACK does not prove that it arrived.
    covered: bool,
    /// Whether the packet was sent twice under the same number. Then it gives no RTT sample (Karn and
    /// Partridge 1987).
    twice: bool,
    stamp: Stamp,
}

/// The sender of packets in one direction. It sends one transfer after the other.
#[derive(Debug)]
pub struct Sender {
    /// Bytes of the peer's receive buffer.
    buffer: u64,
    /// Bytes that a packet costs in the peer's receive buffer besides its own.
    overhead: u64,
    /// The packets that the sender remembers: those from number `base` on.
    sent: VecDeque<Sent>,
    base: u64,
    /// Bytes in flight.
    under_way: u64,
    /// Bytes that the packets in flight cost in the peer's receive buffer.
    cost: u64,
    packets: u64,
    largest: Option<u64>,
    /// The ranges of the last ACK.
    last_ack_ranges: Ranges,
    transfer: Option<SendQueue>,
    transfers: u16,
    ended: Option<Ended>,
    trips: Trips,
    rate: Rate,
    pacer: Pacer,
    delivery: Delivery,
    /// Whether to send a probe at the next poll, whatever the cwnd allows.
    probe: bool,
    /// Whether to send the last probe again, because nothing has answered it.
    again: bool,
    /// Whether a chunk was sent and no probe has been sent after it. A probe follows the last chunk, so that
    /// the loss of that chunk is detected.
    tail: bool,
    last_sent: Time,
    last_ack: Time,
    loss_at: Option<Time>,
    /// Every packet before this number was acknowledged or counts as lost.
    decided: u64,
    pace_at: Option<Time>,
    waits: Waits,
    lost: u64,
    lost_bytes: u64,
    /// Bytes that arrived and bytes that were lost, as detected since the last update of the rate controller.
    fates: (u64, u64),
    blocks: Blocks,
    /// Number of repair packets of this transfer.
    repaired: u64,
}

impl Sender {
    /// Creates a sender. Its peer has a receive buffer of `buffer` bytes, in which a packet costs `overhead`
    /// besides its bytes. `full` is the longest packet that is known so far.
    pub fn new(now: Time, buffer: u64, overhead: u64, full: u32) -> Self {
        Self {
            buffer: buffer.max(u64::from(full) + overhead),
            overhead,
            sent: VecDeque::new(),
            base: 0,
            under_way: 0,
            cost: 0,
            packets: 0,
            largest: None,
            last_ack_ranges: Ranges::new(),
            transfer: None,
            transfers: 0,
            ended: None,
            trips: Trips::new(),
            rate: Rate::new(full.into(), INITIAL_WINDOW)
                .making_up(MAX_MADE_UP)
                .starting_fast()
                .acknowledged_each(),
            pacer: Pacer::new(now),
            delivery: Delivery::default(),
            probe: false,
            again: false,
            tail: false,
            last_sent: now,
            last_ack: now,
            loss_at: None,
            decided: 0,
            pace_at: None,
            waits: Waits::Idle,
            lost: 0,
            lost_bytes: 0,
            fates: (0, 0),
            blocks: Blocks::default(),
            repaired: 0,
        }
    }

    /// Adds `share` (0 to 1) repair packets for each packet whose loss the sender would detect too late.
    #[must_use]
    pub fn with_repair(self, share: f64) -> Self {
        Self { blocks: Blocks::new(share), ..self }
    }

    /// Begins a transfer. If another transfer has not ended, gives it up.
    pub fn begin(&mut self, pieces: Vec<Piece>) -> u16 {
        self.transfers = self.transfers.wrapping_add(1);
        self.rate.carry(pieces.iter().map(|piece| piece.bytes).max().unwrap_or(0).into());
        (self.transfer, self.ended) = (Some(SendQueue::new(self.transfers, pieces)), None);
        self.blocks.give_up();
        self.repaired = 0;
        self.conclude();
        self.transfers
    }

    /// Gives up the transfer, since its receiver no longer wants it.
    pub fn abandon(&mut self) {
        self.transfer = None;
        self.blocks.give_up();
    }

    /// Sends a probe at the next poll, whatever the cwnd allows. The probe has its own number, so its ACK
    /// says nothing about other packets.
    pub fn request_probe(&mut self) {
        self.probe = true;
    }

    /// The transfer that has ended since the last call.
    pub fn poll_ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// The smoothed RTT.
    pub fn round_trip(&self) -> Option<Time> {
        self.trips.smooth()
    }

    /// Number of packets that counted as lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Cwnd and bytes in flight.
    pub fn window(&self) -> (u64, u64) {
        (self.rate.window(), self.under_way)
    }

    /// The sender's estimates about its path.
    pub fn believes(&self) -> Belief {
        let (in_flight, delivered) = (self.under_way, self.delivery.delivered());
        let (lost, waits) = (self.lost_bytes, self.waits);
        Belief { in_flight, delivered, lost, waits, ..self.rate.believes(&self.trips) }
    }

    /// Returns the packet to send now, if there is one.
    pub fn poll_packet(&mut self, now: Time) -> Option<Packet> {
        self.pace_at = None;
        if std::mem::take(&mut self.probe) {
            return Some(self.send(now, PROBE_BYTES, What::Probe));
        }
        if std::mem::take(&mut self.again) {
            return Some(self.send_again(now));
        }
        if !self.may_send(now) {
            return None;
        }
        if let Some(packet) = self.send_repair(now) {
            return Some(packet);
        }
        if let Some((chunk, piece)) = self.transfer.as_mut().and_then(SendQueue::next) {
            self.tail = true;
            let packet = self.send(now, piece.bytes, What::Chunk(chunk));
            self.pacer.sent(piece.bytes.into());
            self.conclude();
            return Some(packet);
        }
        self.blocks.close();
        if let Some(packet) = self.send_repair(now) {
            return Some(packet);
        }
        self.delivery.idle(self.under_way);
        let tail = std::mem::take(&mut self.tail);
        tail.then(|| self.send(now, PROBE_BYTES, What::Probe))
    }

    fn send_repair(&mut self, now: Time) -> Option<Packet> {
        let (block, which, bytes) = self.blocks.next()?;
        let packet = self.send(now, bytes, What::Repair(block, which));
        self.pacer.sent(bytes.into());
        self.blocks.repaired(packet.number, now);
        self.repaired += 1;
        Some(packet)
    }

    fn may_send(&mut self, now: Time) -> bool {
        let full = self.rate.full();
        let alone = self.under_way == 0;
        self.waits = Waits::Idle;
        if !alone && self.under_way + full > self.rate.flight() {
            self.waits = Waits::Window;
            return false;
        }
        if !alone && self.cost + full + self.overhead > self.buffer {
            self.waits = Waits::Buffer;
            return false;
        }
        let Some(pace) = self.rate.pace() else { return true };
        let at = self.pacer.at(now, pace, full as f64);
        if at > now {
            (self.waits, self.pace_at) = (Waits::Pace, Some(at));
        }
        at <= now
    }

    fn send(&mut self, now: Time, bytes: u32, what: What) -> Packet {
        let stamp = self.delivery.sent(now, self.packets == 0);
        self.count(bytes, 1);
        let number = self.base + self.sent.len() as u64;
        let (load, block) = match what {
            What::Chunk(chunk) => {
                let late = self.is_late();
                self.blocks.expect(self.rate.path_loss(), self.rate.flight() / self.rate.full());
                (Load::Chunk(chunk.transfer, chunk.index), self.blocks.covers(number, bytes, late))
            }
            What::Probe => (Load::Probe, self.blocks.covers(number, bytes, false)),
            What::Repair(..) => (Load::Repair, None),
        };
        let covered = block.is_some();
        self.sent.push_back(Sent {
            at: now,
            bytes,
            state: State::UnderWay,
            load,
            covered,
            twice: false,
            stamp,
        });
        self.last_sent = now;
        Packet { number, what, block }
    }

    /// Whether the sender will have sent all waiting chunks before it could detect the loss of the current
    /// packet. Earlier losses are retransmitted while there are other chunks to send, so repair packets would
    /// gain nothing.
    fn is_late(&self) -> bool {
        let waits = |transfer: &SendQueue| transfer.waiting() as u64 * self.rate.full() <= self.rate.flight();
        self.transfer.as_ref().is_some_and(|transfer| transfer.closed.is_none() && waits(transfer))
    }

    /// Sends an unanswered probe again under its number, so that the sender need not remember more probes.
    fn send_again(&mut self, now: Time) -> Packet {
        let next = self.base + self.sent.len() as u64;
        let probe = |packet: &&mut Sent| packet.load == Load::Probe && packet.state == State::UnderWay;
        if let Some(last) = self.sent.back_mut().filter(probe) {
            (last.twice, self.last_sent) = (true, now);
            return Packet { number: next - 1, what: What::Probe, block: None };
        }
        self.send(now, PROBE_BYTES, What::Probe)
    }

    /// Adds a packet to the counts of bytes in flight (`by` is 1), or subtracts it (-1).
    fn count(&mut self, bytes: u32, by: i64) {
        let cost = u64::from(bytes) + self.overhead;
        self.under_way = self.under_way.saturating_add_signed(by * i64::from(bytes));
        self.cost = self.cost.saturating_add_signed(by * cost as i64);
        self.packets = self.packets.saturating_add_signed(by);
    }

    /// Processes an ACK. Ignores it if it names packets that were never sent.
    pub fn handle_ack(&mut self, now: Time, ack: &Ack) {
        let next = self.base + self.sent.len() as u64;
        let falling = ack.ranges.windows(2).all(|pair| pair[1].end < pair[0].start);
        if !falling || ack.ranges.iter().any(|range| range.is_empty() || range.end > next) {
            return;
        }
        self.last_ack = now;
        self.trips.answered();
        let before = self.delivery.delivered();
        let trip = self.acknowledge(now, ack);
        self.detect(now);
        if let (Some(transfer), Some((id, why))) = (&mut self.transfer, ack.closed) {
            if transfer.id == id {
                transfer.closed = Some(why);
                self.blocks.give_up();
            }
        }
        self.conclude();
        let delivered = self.delivery.delivered();
        if delivered > before {
            let measured = self.delivery.measure(self.rate.base());
            let (bytes, under_way, fates) =
                (delivered - before, self.under_way, std::mem::take(&mut self.fates));
            self.rate.on_ack(&AckSample { now, bytes, fates, delivered, under_way, trip, measured });
            if let answered @ 1.. = self.rate.answered() {
                self.trips.lossy(answered as u32);
            }
        }
        self.forget(now);
    }

    /// Processes the ranges of an ACK. Returns the RTT of the newest packet, if this ACK is the first to
    /// acknowledge it. There is no sample while the packet before the newest may still arrive. The newest may
    /// then have overtaken it, so its RTT would be too short.
    fn acknowledge(&mut self, now: Time, ack: &Ack) -> Option<Time> {
        let (mut trip, largest) = (None, ack.ranges.first()?.end - 1);
        if self.largest.is_some_and(|newer| newer > largest) {
            self.rate.overtaken();
        }
        let before = std::mem::replace(&mut self.last_ack_ranges, ack.ranges.iter().copied().collect());
        for range in ack.ranges.iter().flat_map(|&range| before.missing_in(range)) {
            for number in range.start.max(self.base)..range.end {
                let fresh = self.mark_acknowledged(now, number);
                if number == largest && fresh {
                    trip = self.sent.get((number - self.base) as usize).map(|p| now.saturating_sub(p.at));
                }
            }
        }
        let before = largest.checked_sub(self.base + 1).and_then(|before| self.sent.get(before as usize));
        let trip = trip.filter(|_| before.is_none_or(|before| before.state != State::UnderWay));
        self.largest = self.largest.max(Some(largest));
        if let Some(trip) = trip {
            self.trips.measured(trip);
        }
        trip
    }

    /// Notes that a packet is acknowledged. Returns whether that is new and may give an RTT sample.
    fn mark_acknowledged(&mut self, now: Time, number: u64) -> bool {
        let Some(packet) = self.sent.get_mut((number - self.base) as usize) else { return false };
        let was = std::mem::replace(&mut packet.state, State::Done);
        let &mut Sent { bytes, at, stamp, load, covered, twice, .. } = packet;
        match was {
            State::Done => return false,
            State::Lost => {
                self.lost = self.lost.saturating_sub(1);
                // A packet that was rebuilt late was not overtaken. With higher thresholds, losses would count
                // later than the packets that arrived among them, and the path would seem to lose nothing.
                if !covered {
                    self.trips.reordered(self.largest.unwrap_or(number).saturating_sub(number));
                    self.trips.late(now.saturating_sub(at));
                    self.rate.overtaken();
                }
                self.lost_bytes = self.lost_bytes.saturating_sub(bytes.into());
                self.fates.1 = self.fates.1.saturating_sub(u64::from(bytes) * u64::from(!covered));
            }
            State::UnderWay => self.count(bytes, -1),
        }
        // The receiver may have rebuilt a packet of a block that did not arrive. So only the fraction of its
        // bytes counts that the path delivers on average.
        let fraction = if covered { 1.0 - self.rate.path_loss() } else { 1.0 };
        self.delivery.arrived(now, (f64::from(bytes) * fraction) as u64, at, stamp);
        self.fates.0 += u64::from(bytes) * u64::from(!covered);
        if let (Load::Chunk(id, index), Some(transfer)) = (load, &mut self.transfer) {
            if transfer.id == id {
                transfer.arrived(index);
            }
        }
        was == State::UnderWay && !twice
    }

    /// Marks packets as lost after later ones were acknowledged, or after their time has passed (RFC 9002,
    /// section 6.1).
    fn detect(&mut self, now: Time) {
        self.loss_at = None;
        let Some(largest) = self.largest else { return };
        let earlier = (largest.saturating_sub(self.base) as usize).min(self.sent.len());
        let first = self.decided.saturating_sub(self.base) as usize;
        self.decided = self.base + earlier as u64;
        for at in first..earlier {
            let number = self.base + at as u64;
            match self.fate(now, largest, number) {
                Fate::Decided => {}
                Fate::Open(due) => {
                    self.loss_at = [self.loss_at, due].into_iter().flatten().min();
                    self.decided = self.decided.min(number);
                }
                Fate::Lost => self.lose(at),
            }
        }
    }

    /// The state of a packet, if `largest` is the largest number acknowledged. A packet that may still be
    /// rebuilt counts as lost when the last repair packet of its block counts as lost.
    fn fate(&self, now: Time, largest: u64, number: u64) -> Fate {
        let packet = self.sent.get((number - self.base) as usize).filter(|p| p.state == State::UnderWay);
        let Some(packet) = packet else { return Fate::Decided };
        let (last, sent_at) = match self.blocks.hope(number) {
            Some(Hope::Open) => return Fate::Open(None),
            Some(Hope::Until(last, _)) if last > largest => return Fate::Open(None),
            Some(Hope::Until(last, at)) => (last, at),
            None => (number, packet.at),
        };
        let due = sent_at + self.trips.time_threshold();
        if last + self.trips.packets() > largest && due > now {
            return Fate::Open(Some(due));
        }
        Fate::Lost
    }

    fn lose(&mut self, at: usize) {
        let Some(packet) = self.sent.get_mut(at) else { return };
        packet.state = State::Lost;
        let (bytes, load, covered) = (packet.bytes, packet.load, packet.covered);
        self.count(bytes, -1);
        if load == Load::Probe {
            return;
        }
        self.lost += 1;
        self.lost_bytes += u64::from(bytes);
        self.fates.1 += u64::from(bytes) * u64::from(!covered);
        if let (Load::Chunk(id, index), Some(transfer)) = (load, &mut self.transfer) {
            if transfer.id == id {
                transfer.lost(index);
            }
        }
    }

    /// Forgets the oldest packets whose ACKs can give no more information. Keeps lost packets for three times
    /// the time threshold after they were sent, since they may still be acknowledged.
    fn forget(&mut self, now: Time) {
        let late = 3 * self.trips.time_threshold();
        let over = |packet: &Sent| match packet.state {
            State::UnderWay => false,
            State::Lost => now.saturating_sub(packet.at) > late,
            State::Done => true,
        };
        while self.sent.front().is_some_and(over) {
            self.sent.pop_front();
            self.base += 1;
        }
        self.blocks.forget(self.base);
    }

    fn conclude(&mut self) {
        let Some(why) = self.transfer.as_ref().and_then(SendQueue::ended) else { return };
        let Some(transfer) = self.transfer.take() else { return };
        self.blocks.give_up();
        let (again, repair, missing) = (transfer.again, self.repaired, transfer.missing());
        self.waits = Waits::Idle;
        self.ended = Some(Ended { transfer: transfer.id, why, again, repair, missing });
    }

    /// The time of the earliest timer. Call [`Self::handle_timeout`] and [`Self::poll_packet`] then.
    pub fn poll_timeout(&self) -> Option<Time> {
        let probe = (self.packets > 0).then(|| self.last_sent.max(self.last_ack) + self.trips.probe_after());
        [self.loss_at, probe, self.pace_at].into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.loss_at.is_some_and(|at| now >= at) {
            self.detect(now);
        }
        let probe = self.last_sent.max(self.last_ack) + self.trips.probe_after();
        if self.packets > 0 && now >= probe {
            self.trips.probed();
            self.again = true;
            // All packets in flight seem to be lost. Do not wait for repair packets: they would keep the cwnd
            // full.
            self.blocks.give_up();
        }
    }
}
