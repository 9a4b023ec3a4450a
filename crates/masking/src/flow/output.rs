//! What a flow sends: the answer to a SYN, bytes of the way back, acknowledgements.
//!
//! The right edge of the window never moves left (RFC 9293 section 3.8.6): a smaller window is reached by not moving it.
//! It moves by a segment at least (section 3.8.6.2.2). The scaled field is rounded up, and what that adds counts as
//! advertised, so that it is never 0 by rounding (RFC 7323 section 2.4); so each acknowledgement of a closing window may move the edge by
//! less than one unit, as Linux's does. While a hole is held, the edge still follows
//! the highest byte that has come: otherwise the sender would stand still for a round trip.

use thalweg_wire::Range;

use super::super::emit::Outbound;
use super::super::options::Written;
use super::super::sequence::number;
use super::{Divided, Flow, State, UNSCALED};
use crate::config::Config;
use crate::segment::{Offload, ACK, ECE, FIN, PSH, SYN};
use crate::stamps::Said;
use crate::Time;

/// Acknowledgements that follow within this are a train to a sender's HyStart (Ha and Rhee 2011; Linux: 2 ms).
const TRAIN: Time = Time::from_millis(2);
/// A pause that ends a train, whatever the way back does to it.
const PAUSE: Time = Time::from_millis(3);
/// The longest that the last segment's acknowledgement is delayed. Linux's shortest timeout is a round trip longer.
const DELAYED: Time = Time::from_millis(200);
/// An echo older than this, and than four round trips, makes a sender's timer too long that may have to run out. One that has
/// run out since is no longer than that.
const AGED: Time = Time::from_millis(200);
/// Payload of a superpacket: IP's length, with the longest headers, has 16 bits.
const SUPERPACKET: usize = 65_535 - 120;
/// Acknowledgements of a repaired segment, at most, and segments reported with each.
const PARTS: u64 = 32;
const EACH: u64 = 2;
/// All are sent within a sixteenth of a round trip: after a quarter a sender takes the segment for lost (RFC 8985).
const WHOLE: u32 = 16;
/// On shorter paths a pause would be felt.
const LONG: Time = Time::from_millis(10);

impl Flow {
    /// The acknowledgement number for what has come or is masked.
    pub(super) fn acknowledgement(&self) -> u32 {
        let end = u64::from(self.stream.is_complete());
        number(self.irs.wrapping_add(1), self.acknowledged() + end)
    }

    /// The same as an offset.
    pub(super) fn acknowledged(&self) -> u64 {
        let limits = [self.acks.kept, self.acks.divided.map(|divided| divided.end)];
        limits.into_iter().flatten().fold(self.stream.acknowledged(), u64::min)
    }

    /// Whether the last segment may be acknowledged late, as any receiver may do. A sender that has nothing else under way
    /// takes a single lost segment for a delayed acknowledgement, and waits 200 ms longer with its probe (RFC 8985 section
    /// 7.2). While it ramps up it needs them all.
    pub(super) fn keeps(&self) -> bool {
        self.acks.expecting
            && self.sack
            && self.stamps.is_some()
            && !self.control.ramping()
            && !self.stream.holding()
            && self.stream.fin.is_none()
            && self.state == State::Established
            && self.acks.duplicate.is_none()
    }

    /// All that has come is acknowledged.
    pub(super) fn release(&mut self) {
        if self.acks.kept.take().is_some() {
            self.acks.now = true;
        }
    }

    /// Writes the next packet, if there is one to send.
    pub fn poll(&mut self, now: Time, config: &Config, out: &mut Vec<u8>) -> Option<Offload> {
        let offload = config.offload.then_some(self.out.segment as u16);
        match self.state {
            State::Closed => None,
            State::SynReceived => self.answer(now, config, out),
            _ => self.piece(now, out, offload).or_else(|| self.acknowledge(now, out)),
        }
    }

    /// SYN and ACK, with the options that both agree on. Its window is unscaled and small (RFC 7323 section 2.2).
    fn answer(&mut self, now: Time, config: &Config, out: &mut Vec<u8>) -> Option<Offload> {
        if !std::mem::take(&mut self.syn_due) {
            return None;
        }
        if self.syn_sent.is_some() {
            // Sent twice: its acknowledgement says nothing of the round trip.
            self.syn_tries = self.syn_tries.max(1);
        }
        self.syn_sent = Some(now);
        let mut options = Written::new();
        let headers = if matches!(self.tuple.local.address, crate::Address::V4(_)) { 40 } else { 60 };
        options.segment((config.mtu.clamp(576, 65_535) - headers) as u16);
        if self.sack {
            options.sack_permitted();
        }
        if let Some(stamps) = &self.stamps {
            options.stamps(stamps.value(now), stamps.recent);
        }
        if let Some((ours, _)) = self.scales {
            options.scale(ours);
        }
        let flags = SYN | ACK | if self.ecn { ECE } else { 0 };
        let segment = Outbound {
            tuple: &self.tuple,
            sequence: self.iss,
            acknowledgement: number(self.irs, 1),
            flags,
            window: self.edge.min(UNSCALED) as u16,
            options,
            payload: (&[], &[]),
            ect: false,
        };
        Some(segment.write(out, None))
    }

    /// A piece of the way back: several segments at once, if the device cuts them.
    fn piece(&mut self, now: Time, out: &mut Vec<u8>, offload: Option<u16>) -> Option<Offload> {
        let most = if offload.is_some() { SUPERPACKET } else { 0 };
        let Some(piece) = self.out.poll(now, most) else {
            self.out.arm(now);
            return None;
        };
        self.acks.divided = None;
        let window = self.advertise();
        let mut options = Written::new();
        self.stamp_out(now, &mut options);
        let push = if piece.length > 0 { PSH } else { 0 };
        let segment = Outbound {
            tuple: &self.tuple,
            sequence: number(self.iss.wrapping_add(1), piece.offset),
            acknowledgement: self.acknowledgement(),
            flags: ACK | push | if piece.fin { FIN } else { 0 } | if self.acks.ece { ECE } else { 0 },
            window,
            options,
            payload: self.out.bytes(piece),
            ect: false,
        };
        let offload = segment.write(out, offload);
        // Blocks have no place beside data; they follow.
        if !self.stream.holding() && self.acks.duplicate.is_none() {
            self.said(now);
        }
        Some(offload)
    }

    /// Whether acknowledgements wait a moment. Cubic leaves slow start when they have come without a break for half a
    /// round trip (HyStart), and then takes seconds to what the path carries. Here the window is what keeps the queue
    /// short, so while a sender ramps up a short pause breaks each train well before.
    fn pauses(&self, now: Time) -> bool {
        let Some(rtt) = self.rtt.filter(|&rtt| rtt >= LONG) else { return false };
        let urgent = (self.stream.holding() && !self.repairs_all())
            || self.acks.duplicate.is_some()
            || self.acks.owed > 0
            || self.stream.fin.is_some()
            || self.state != State::Established;
        !urgent
            && self.control.ramping()
            && now.saturating_sub(self.acks.at) < PAUSE
            && now.saturating_sub(self.acks.train) >= rtt / 8
    }

    fn acknowledge(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Offload> {
        if !self.acks.now && self.acks.owed == 0 {
            return None;
        }
        if self.pauses(now) {
            self.acks.deadline = Some(self.acks.at + PAUSE);
            return None;
        }
        self.part(now);
        let window = self.advertise();
        let mut options = Written::new();
        self.stamp_out(now, &mut options);
        let mut more = false;
        if self.sack {
            let (blocks, left) = self.blocks(options.room_for_blocks());
            more = left;
            let base = self.irs.wrapping_add(1);
            let blocks: Vec<(u32, u32)> =
                blocks.iter().map(|b| (number(base, b.start), number(base, b.end))).collect();
            options.blocks(&blocks);
        }
        let segment = Outbound {
            tuple: &self.tuple,
            sequence: number(self.iss.wrapping_add(1), self.out.sent()),
            acknowledgement: self.acknowledgement(),
            flags: ACK | if self.acks.ece { ECE } else { 0 },
            window,
            options,
            payload: (&[], &[]),
            ect: false,
        };
        let offload = segment.write(out, None);
        let owed = self.acks.owed.saturating_sub(1);
        self.said(now);
        self.acks.owed = owed;
        self.acks.now = more;
        Some(offload)
    }

    /// Writes our clock, and an echo of the peer's.
    fn stamp_out(&mut self, now: Time, options: &mut Written) {
        let rtt = self.rtt.unwrap_or_default();
        let said = Said {
            acknowledged: self.acknowledged(),
            highest: self.stream.highest(),
            holding: self.stream.holding(),
            // Who rests has more to send.
            goes_on: now.saturating_sub(self.last_new) < if self.rests() { rtt * 4 } else { rtt },
            oldest: (AGED.max(rtt * 4) + self.waited).as_millis() as u32,
        };
        if let Some(stamps) = &mut self.stamps {
            let echo = stamps.echoed(now, said);
            options.stamps(stamps.value(now), echo);
        }
    }

    fn said(&mut self, now: Time) {
        if now.saturating_sub(self.acks.at) > TRAIN {
            self.acks.train = now;
        }
        self.acks.at = now;
        self.acks.now = false;
        self.acks.owed = 0;
        self.acks.bytes = 0;
        self.acks.deadline = None;
        self.acks.sent = self.acknowledged() + u64::from(self.stream.is_complete());
        if self.acks.kept.is_some() {
            self.acks.deadline = Some(now + DELAYED);
        }
        if let Some(divided) = self.acks.divided {
            self.acks.deadline = Some(divided.whole);
        }
        if let Some(stamps) = &mut self.stamps {
            stamps.unsent = false;
        }
    }

    /// Blocks to report, a duplicate first (RFC 2883), and whether more have never been reported.
    fn blocks(&mut self, room: usize) -> (Vec<Range>, bool) {
        let mut chosen: Vec<Range> = self.acks.duplicate.take().into_iter().collect();
        let mut all = self.stream.blocks();
        let clipped =
            self.acks.divided.is_some() && clip(&mut all, self.acks.reported, EACH * u64::from(self.segment));
        let room = room.saturating_sub(chosen.len());
        let Some(top) = all.last() else {
            self.acks.reported = self.stream.acknowledged();
            return (chosen, false);
        };
        let fresh: Vec<Range> = all.iter().copied().filter(|b| b.end > self.acks.reported).collect();
        if fresh.len() > room {
            chosen.extend(&fresh[..room]);
            self.acks.reported = fresh[..room].last().map_or(self.acks.reported, |b| b.end);
            return (chosen, room > 0);
        }
        self.acks.reported = top.end;
        let latest = all.iter().copied().find(|b| b.start <= self.acks.latest && self.acks.latest < b.end);
        let others = fresh.iter().rev().chain(all.iter().rev()).copied();
        let mut sent: Vec<Range> = Vec::with_capacity(room);
        for block in latest.into_iter().chain(others) {
            if sent.len() < room && !sent.contains(&block) {
                sent.push(block);
            }
        }
        chosen.extend(sent);
        (chosen, clipped)
    }

    /// Whether all that was lost is repaired, by a sender that hears of each hole, and whose reductions are undone.
    pub(super) fn repairs_all(&self) -> bool {
        self.sack && self.undoes && self.stream.missing == 0
    }

    /// Whether the right edge stays where it is until all is repaired. A sender that learns of new holes before the old
    /// ones are repaired does not leave recovery, and only outside of it does its window grow (Linux, `tcp_cong_avoid`).
    /// So while its flight does not fill the path one and a half times, a flight is let be repaired whole, and the next is twice
    /// as large: what its window is reduced to in recovery then fills it once.
    pub(super) fn rests(&self) -> bool {
        self.repairs_all()
            && self.stream.holding()
            && self.control.ramping()
            && self.edge.saturating_sub(self.acknowledged()) < 3 * self.control.carries()
    }

    /// Lets what a repair has brought be acknowledged in parts while others are missing, each with something new to report.
    ///
    /// In recovery a sender sends what was delivered, and nothing for what was lost, so what it has under way becomes less
    /// with each loss; one packet more for each acknowledgement that goes on, reports something, and shows no new loss makes
    /// up for it (RFC 6937, PRR-SSRB). And what is newly reported gives it a round trip: without, it takes the age of the
    /// echo for one. Never a part of what was reported: a sender takes that for a receiver that has thrown it away (Linux,
    /// `tcp_check_sack_reneging`), and waits.
    pub(super) fn divide(&mut self, now: Time, repaired: Range) {
        let soon = self.rtt.unwrap_or_default() / WHOLE;
        let comes = self.stream.holding() && now.saturating_sub(self.last_new) < soon;
        // One that paces itself, as BBR does, needs no help; until a burst has shown that it does not, it may.
        let bursts = self.control.carries() > 0;
        if self.acks.divided.is_some() || !comes || !bursts || !self.repairs_all() {
            return;
        }
        let end = self.acks.sent;
        let first = repaired.start <= end && end < repaired.end;
        let step = if first { (repaired.end - end) / PARTS } else { 0 };
        let left = if step > 0 { PARTS } else { 1 };
        self.acks.divided = Some(Divided { end, step, left, whole: now + soon });
    }

    /// The next part, where something is to be reported with it.
    fn part(&mut self, now: Time) {
        let news = self.stream.visible() > self.acks.reported;
        let divided = self.acks.divided.filter(|_| self.stream.holding());
        self.acks.divided = divided.and_then(|divided| divided.next(now, news));
    }

    /// Where the right edge may be: never further than the field can say.
    pub(super) fn grown_edge(&self) -> u64 {
        let scale = self.scales.map_or(0, |(ours, _)| ours);
        let sayable = self.acknowledged() + (UNSCALED << scale);
        let wanted = match self.rests() {
            true => self.edge.max(self.trickled),
            false => self.stream.highest() + self.control.window(),
        };
        wanted.min(self.admitted).min(sayable)
    }

    /// The window field, and what it promises.
    fn advertise(&mut self) -> u16 {
        let scale = self.scales.map_or(0, |(ours, _)| ours);
        let acknowledged = self.acknowledged();
        let grown = self.grown_edge();
        let worth = u64::from(self.segment).min(self.control.window() / 2);
        let last = grown == self.admitted;
        if grown >= self.edge + worth || (last && grown > self.edge) {
            self.edge = grown;
        }
        let field = (self.edge.saturating_sub(acknowledged)).div_ceil(1 << scale).min(UNSCALED);
        self.edge = self.edge.max(acknowledged + (field << scale));
        field as u16
    }
}

/// Leaves of `blocks` so much that is beyond `reported`; whether there is more.
fn clip(blocks: &mut Vec<Range>, reported: u64, mut most: u64) -> bool {
    for (index, block) in blocks.iter_mut().enumerate() {
        let new = block.end.saturating_sub(block.start.max(reported));
        if new > most {
            block.end -= new - most;
            blocks.truncate(index + 1);
            return true;
        }
        most -= new;
    }
    false
}
