//! Builds the packets that a flow sends: the SYN-ACK, data to the client, and ACKs.
//!
//! The right edge of the window never moves left (RFC 9293 section 3.8.6). To reduce the window, the receiver
//! leaves the edge where it is. Otherwise it moves the edge by at least one segment (section 3.8.6.2.2). The
//! scaled window field is rounded up, so rounding never makes it 0 (RFC 7323 section 2.4). The rounding
//! counts as advertised. So each ACK of a closing window may move the edge by less than one unit, as in
//! Linux.
//!
//! While a hole is held, the edge still follows the highest byte that has arrived, unless the window is
//! frozen. Otherwise the sender would stop for a round trip.

use thalweg_wire::Range;

use super::super::emit::Outbound;
use super::super::options::Written;
use super::super::sequence::number;
use super::{AckDivision, Flow, State, UNSCALED};
use crate::config::Config;
use crate::segment::{Offload, ACK, ECE, FIN, PSH, SYN};
use crate::stamps::AckContent;
use crate::Time;

/// To the sender's HyStart, ACKs at most this far apart form a train (Ha and Rhee 2011; Linux: 2 ms).
const TRAIN: Time = Time::from_millis(2);
/// A pause between ACKs that ends a train, even if the path to the sender shortens the pause.
const PAUSE: Time = Time::from_millis(3);
/// The maximum delay of the last segment's ACK. Linux's minimum RTO is one round trip longer.
const DELAYED: Time = Time::from_millis(200);
/// For a sender that may depend on its retransmission timer: the oldest echo, or four round trips if that is
/// longer. An older echo would make that timer too long. After a silence that may be a timeout, the echo may
/// be older by that silence.
const AGED: Time = Time::from_millis(200);
/// Payload of a superpacket: the largest 16-bit IP length, less the longest headers.
const SUPERPACKET: usize = 65_535 - 120;
/// ACK division: at most this many ACKs for one retransmitted segment, and newly reported segments in each
/// ACK.
const PARTS: u64 = 32;
const EACH: u64 = 2;
/// ACK division ends within this fraction (1/16) of a round trip. After a quarter of a round trip, the sender
/// would take the segment for lost (RFC 8985).
const WHOLE: u32 = 16;
/// Minimum RTT for pauses between ACKs. On shorter paths a pause would cost throughput.
const LONG: Time = Time::from_millis(10);

impl Flow {
    /// The acknowledgement number: one past what has arrived or is masked, less what ACK delay or ACK
    /// division holds back.
    pub(super) fn acknowledgement(&self) -> u32 {
        let end = u64::from(self.stream.is_complete());
        number(self.irs.wrapping_add(1), self.acknowledged() + end)
    }

    /// The acknowledgement as a stream offset, without the FIN.
    pub(super) fn acknowledged(&self) -> u64 {
        let limits = [self.acks.kept, self.acks.division.map(|division| division.end)];
        limits.into_iter().flatten().fold(self.stream.acknowledged(), u64::min)
    }

    /// Whether to delay the ACK of the last segment, as any receiver may do. A sender with only one segment
    /// in flight must allow for a delayed ACK, so it sends its tail loss probe 200 ms later (RFC 8985 section
    /// 7.2). The delay keeps a second segment in flight. While the sender is in slow start, it needs every
    /// ACK.
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

    /// Ends the delay of the last segment's ACK: the next ACK acknowledges all bytes that have arrived.
    pub(super) fn release(&mut self) {
        if self.acks.kept.take().is_some() {
            self.acks.now = true;
        }
    }

    /// Writes the next packet, if one is due.
    pub fn poll(&mut self, now: Time, config: &Config, out: &mut Vec<u8>) -> Option<Offload> {
        let offload = config.offload.then_some(self.out.segment as u16);
        match self.state {
            State::Closed => None,
            State::SynReceived => self.answer(now, config, out),
            _ => self.piece(now, out, offload).or_else(|| self.acknowledge(now, out)),
        }
    }

    /// Writes the SYN-ACK, with the options that both sides agree on. Its window is unscaled, and so at most
    /// 64 KiB (RFC 7323 section 2.2).
    fn answer(&mut self, now: Time, config: &Config, out: &mut Vec<u8>) -> Option<Offload> {
        if !std::mem::take(&mut self.syn_due) {
            return None;
        }
        if self.syn_sent.is_some() {
            // Two SYN-ACKs were sent, so their acknowledgement gives no RTT sample.
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
            window: self.right_edge.min(UNSCALED) as u16,
            options,
            payload: (&[], &[]),
            ect: false,
        };
        Some(segment.write(out, None))
    }

    /// Writes data to the client. If the device does segmentation, one packet holds several segments.
    fn piece(&mut self, now: Time, out: &mut Vec<u8>, offload: Option<u16>) -> Option<Offload> {
        let most = if offload.is_some() { SUPERPACKET } else { 0 };
        let Some(piece) = self.out.poll(now, most) else {
            self.out.arm(now);
            return None;
        };
        self.acks.division = None;
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
        // SACK blocks do not fit beside data, so an ACK of its own follows with them.
        if !self.stream.holding() && self.acks.duplicate.is_none() {
            self.ack_sent(now);
        }
        Some(offload)
    }

    /// Whether the next ACK waits for a short pause. Cubic leaves slow start when ACKs have come in one train
    /// for half a round trip (HyStart), and then takes seconds to fill the path. Here HyStart is not needed,
    /// since the advertised window keeps the queue short. So while a sender is in slow start, a short pause
    /// ends each train early.
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
        self.advance_ack_division(now);
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
        self.ack_sent(now);
        self.acks.owed = owed;
        self.acks.now = more;
        Some(offload)
    }

    /// Writes the timestamp option: our clock, and an echo of the peer's.
    fn stamp_out(&mut self, now: Time, options: &mut Written) {
        let rtt = self.rtt.unwrap_or_default();
        let content = AckContent {
            acknowledged: self.acknowledged(),
            highest: self.stream.highest(),
            holding: self.stream.holding(),
            // A sender that waits for a frozen window to open has more data.
            goes_on: now.saturating_sub(self.last_new) < if self.freezes_window() { rtt * 4 } else { rtt },
            oldest: (AGED.max(rtt * 4) + self.waited).as_millis() as u32,
        };
        if let Some(stamps) = &mut self.stamps {
            let echo = stamps.echoed(now, content);
            options.stamps(stamps.value(now), echo);
        }
    }

    /// Records that an ACK was sent, and what it has reported.
    fn ack_sent(&mut self, now: Time) {
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
        if let Some(division) = self.acks.division {
            self.acks.deadline = Some(division.ends);
        }
        if let Some(stamps) = &mut self.stamps {
            stamps.unsent = false;
        }
    }

    /// The SACK blocks to report, a duplicate first (RFC 2883). The flag says whether an ACK must follow for
    /// blocks that were never reported.
    fn blocks(&mut self, room: usize) -> (Vec<Range>, bool) {
        let mut chosen: Vec<Range> = self.acks.duplicate.take().into_iter().collect();
        let mut all = self.stream.blocks();
        let clipped = self.acks.division.is_some()
            && clip(&mut all, self.acks.reported, EACH * u64::from(self.segment));
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

    /// Whether the sender retransmits every hole of this flow. That is so if no masked byte is missing, the
    /// sender learns of holes by SACK, and it undoes its reductions.
    pub(super) fn repairs_all(&self) -> bool {
        self.sack && self.undoes && self.stream.missing == 0
    }

    /// Whether the window is frozen: its right edge stays until all holes are filled.
    ///
    /// A sender that learns of new holes before it has filled the old ones never leaves recovery. Its window
    /// grows only outside recovery (Linux, `tcp_cong_avoid`). So the receiver lets the sender fill all holes
    /// of a flight first; the next flight is twice as large. The receiver stops freezing when a flight fills
    /// the path one and a half times. Then the window that is left after a reduction still fills the path
    /// once.
    pub(super) fn freezes_window(&self) -> bool {
        self.repairs_all()
            && self.stream.holding()
            && self.control.ramping()
            && self.right_edge.saturating_sub(self.acknowledged()) < 3 * self.control.carries()
    }

    /// Begins ACK division for a retransmitted segment, if other holes are left. Each ACK acknowledges a part
    /// of the segment, and reports something new.
    ///
    /// In recovery, a sender sends as many bytes as were delivered, and none in place of those that were
    /// lost. So its flight shrinks with each loss. An ACK that advances, reports something new and shows no
    /// new loss allows one more packet (RFC 6937, PRR-SSRB). Newly reported segments also give the sender an
    /// RTT sample; without one, the sender takes the age of the echo. The receiver never divides the
    /// acknowledgement of bytes that SACK blocks have reported. The sender would think that the receiver had
    /// dropped them (Linux, `tcp_check_sack_reneging`), and wait.
    pub(super) fn start_ack_division(&mut self, now: Time, repaired: Range) {
        let soon = self.rtt.unwrap_or_default() / WHOLE;
        let comes = self.stream.holding() && now.saturating_sub(self.last_new) < soon;
        // A paced sender, such as BBR, needs no help. Assume that a sender is paced until a burst has shown
        // that it is not.
        let bursts = self.control.carries() > 0;
        if self.acks.division.is_some() || !comes || !bursts || !self.repairs_all() {
            return;
        }
        let end = self.acks.sent;
        let first = repaired.start <= end && end < repaired.end;
        let step = if first { (repaired.end - end) / PARTS } else { 0 };
        let left = if step > 0 { PARTS } else { 1 };
        self.acks.division = Some(AckDivision { end, step, left, ends: now + soon });
    }

    /// Advances ACK division to its next ACK, if there is something new to report.
    fn advance_ack_division(&mut self, now: Time) {
        let news = self.stream.visible() > self.acks.reported;
        let division = self.acks.division.filter(|_| self.stream.holding());
        self.acks.division = division.and_then(|division| division.next(now, news));
    }

    /// The right edge that the rate controller and the application allow, and that the window field can
    /// express.
    pub(super) fn next_right_edge(&self) -> u64 {
        let scale = self.scales.map_or(0, |(ours, _)| ours);
        let sayable = self.acknowledged() + (UNSCALED << scale);
        let wanted = match self.freezes_window() {
            true => self.right_edge.max(self.trickled),
            false => self.stream.highest() + self.control.window(),
        };
        wanted.min(self.admitted).min(sayable)
    }

    /// Moves the right edge, and returns the window field.
    fn advertise(&mut self) -> u16 {
        let scale = self.scales.map_or(0, |(ours, _)| ours);
        let acknowledged = self.acknowledged();
        let grown = self.next_right_edge();
        let worth = u64::from(self.segment).min(self.control.window() / 2);
        let last = grown == self.admitted;
        if grown >= self.right_edge + worth || (last && grown > self.right_edge) {
            self.right_edge = grown;
        }
        let field = (self.right_edge.saturating_sub(acknowledged)).div_ceil(1 << scale).min(UNSCALED);
        self.right_edge = self.right_edge.max(acknowledged + (field << scale));
        field as u16
    }
}

/// Cuts `blocks` so that they report at most `most` bytes beyond `reported`. Returns whether anything was
/// cut.
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
