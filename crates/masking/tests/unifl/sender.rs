//! A model of an unmodified TCP sender, as in Linux 6.18. It has window scale, timestamps, SACK with the loss
//! rule of RFC 6675, recovery, and timeouts. It undoes both by Eifel (`tcp_packet_delayed`) and by reported
//! duplicates.
//!
//! An RTT sample is that of the oldest newly acknowledged segment. If one of the acknowledged segments was
//! retransmitted, the sample is that of newly reported SACK segments. Only if there are none does it come
//! from the echo (`tcp_ack_update_rtt`). So echoes matter only when a retransmission is acknowledged. Not
//! modelled: RACK (only the timer detects a lost retransmission), tail loss probes, F-RTO, and gradual
//! reduction.

mod recovery;

use std::collections::VecDeque;

use thalweg_masking::Time;

use self::recovery::Recovery;
use super::congestion::{Congestion, Kind};
use super::estimator::Estimator;
use super::wire::*;

/// Payload bytes of a segment, if the other end accepts as many.
const SEGMENT: u64 = 1448;
/// Number of the first sender, and base of the port numbers.
pub const FIRST: u16 = 2;
pub const PORTS: u16 = 4000;

#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    start: u64,
    end: u64,
    at: Time,
    sacked: bool,
    /// Counts as lost, whether it was retransmitted or not.
    lost: bool,
    /// Retransmitted and in flight.
    again: bool,
    /// Was retransmitted at least once, so it gives no RTT sample (Karn's algorithm).
    ever: bool,
}

impl Sent {
    fn is_under_way(&self) -> bool {
        !self.sacked && (self.again || !self.lost)
    }

    fn is_repair(&self) -> bool {
        self.again && !self.sacked
    }
}

/// Statistics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub retransmissions: u64,
    pub reductions: u64,
    pub timeouts: u64,
    pub undone: u64,
    /// Time spent waiting for timers that expired.
    pub waited: Time,
}

pub struct Sender {
    pub base: Seg,
    pub total: u64,
    shift: u32,
    congestion: Congestion,
    sent: VecDeque<Sent>,
    pub una: u64,
    next: u64,
    right_edge: u64,
    scale: u8,
    iss: u32,
    theirs: u32,
    echo: u32,
    connected: bool,
    finished: bool,
    pub done: bool,
    duplicates: u64,
    recovery: Option<Recovery>,
    /// Our clock at the first retransmission that may still be in flight (`retrans_stamp`).
    stamp: Option<u32>,
    /// Number of timeouts since the last progress.
    tries: u32,
    segment: u64,
    pub estimator: Estimator,
    pub deadline: Option<Time>,
    limited: bool,
    pub stamps: bool,
    pub sack: bool,
    pub tally: Tally,
    pub reset: bool,
}

impl Sender {
    /// The sender of a number from [`FIRST`] on, which its port has too.
    pub fn new(number: u16, kind: Kind, total: u64) -> Self {
        let host = FIRST as u8 + ((number - FIRST) % 250) as u8;
        let base = Seg { port: PORTS + number, host, window: 512, ..Seg::default() };
        Self {
            base,
            total,
            shift: 77_000,
            congestion: Congestion::new(kind),
            sent: VecDeque::new(),
            una: 0,
            next: 0,
            right_edge: 0,
            scale: 0,
            iss: 0xfff0_0000,
            theirs: 0,
            echo: 0,
            connected: false,
            finished: false,
            done: false,
            duplicates: 0,
            recovery: None,
            stamp: None,
            tries: 0,
            segment: SEGMENT,
            estimator: Estimator::default(),
            deadline: Some(Time::ZERO),
            limited: false,
            stamps: true,
            sack: true,
            tally: Tally::default(),
            reset: false,
        }
    }

    fn clock(&self, now: Time) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.shift)
    }

    fn seg(&self, now: Time, flags: u8, offset: u64, payload: Vec<u8>) -> Seg {
        let seq = self.iss.wrapping_add(1).wrapping_add(offset as u32);
        let stamps = self.stamps.then(|| (self.clock(now), self.echo));
        Seg { seq, ack: self.theirs, flags, stamps, payload, ..self.base.clone() }
    }

    /// The FIN counts as one byte.
    fn end(&self) -> u64 {
        self.total + 1
    }

    /// What to send now.
    pub fn poll(&mut self, now: Time) -> Option<Seg> {
        if self.done || self.reset {
            return None;
        }
        if !self.connected {
            if self.deadline.is_none_or(|at| at > now) {
                return None;
            }
            self.deadline = Some(now + Time::from_secs(1));
            let (mss, scale) = (Some(1460), Some(7));
            let syn = Seg {
                seq: self.iss,
                ack: 0,
                mss,
                scale,
                sack_ok: self.sack,
                ..self.seg(now, SYN, 0, Vec::new())
            };
            return Some(syn);
        }
        let flight = self.sent.iter().filter(|s| s.is_under_way()).count() as f64;
        if flight >= self.congestion.window.max(1.0) {
            self.limited = true;
            return None;
        }
        let stamp = self.clock(now);
        if let Some(lost) = self.sent.iter_mut().find(|s| s.lost && !s.again && !s.sacked) {
            (lost.again, lost.ever, lost.at) = (true, true, now);
            let (start, end) = (lost.start, lost.end);
            self.tally.retransmissions += 1;
            self.stamp.get_or_insert(stamp);
            if let Some(recovery) = &mut self.recovery {
                recovery.needed += 1;
            }
            return Some(self.piece(now, start, end));
        }
        if self.next >= self.end() || self.next >= self.right_edge {
            return None;
        }
        let start = self.next;
        let data = (start + self.segment).min(self.total).min(self.right_edge);
        let end = if data == self.total { self.end() } else { data };
        self.sent.push_back(Sent { start, end, at: now, ..Sent::default() });
        self.next = end;
        self.finished |= end == self.end();
        if self.deadline.is_none() {
            self.deadline = Some(now + self.estimator.timeout());
        }
        Some(self.piece(now, start, end))
    }

    fn piece(&self, now: Time, start: u64, end: u64) -> Seg {
        let data = end.min(self.total);
        let fin = if end == self.end() { FIN } else { 0 };
        self.seg(now, ACK | fin, start, bytes(start, (data - start) as usize))
    }

    pub fn receive(&mut self, now: Time, seg: &Seg) {
        if seg.flags & RST > 0 {
            self.reset = true;
            return;
        }
        if let Some((value, _)) = seg.stamps {
            self.echo = value;
        }
        if seg.flags & SYN > 0 {
            self.theirs = seg.seq.wrapping_add(1);
            self.scale = seg.scale.unwrap_or(0);
            self.right_edge = u64::from(seg.window);
            self.segment = u64::from(seg.mss.unwrap_or(536) - 12).min(SEGMENT);
            self.connected = true;
            self.deadline = None;
            if let Some((_, echo)) = seg.stamps {
                self.measured(self.since(now, echo));
            }
            return;
        }
        let ack = seg.ack.wrapping_sub(self.iss.wrapping_add(1));
        let ack = self.una + u64::from(ack.wrapping_sub(self.una as u32));
        assert!(ack <= self.next || ack > self.una + (1 << 31), "acknowledges what was never sent");
        if ack > self.next {
            return; // Older than what is known.
        }
        self.right_edge = self.right_edge.max(ack + (u64::from(seg.window) << self.scale));
        let stamp = seg.stamps.map(|(_, echo)| echo);
        let (twice, reported) = self.blocks(seg, ack);
        let reported = reported.map(|at| now.saturating_sub(at).as_secs_f64());
        let acknowledged = self.acknowledge(now, ack, stamp, reported);
        let mut undo = false;
        if let Some(recovery) = self.recovery.as_mut().filter(|_| twice) {
            recovery.needed = recovery.needed.saturating_sub(1);
            undo = recovery.needed == 0 && self.stamp.is_some();
        }
        self.leave(ack, acknowledged > 0, stamp, undo);
        self.enter();
        if acknowledged > 0 && self.recovery.as_ref().is_none_or(|r| r.timeout) && self.limited {
            let rtt = self.estimator.smooth().unwrap_or(0.1);
            self.congestion.acknowledged(now, acknowledged as f64 / self.segment as f64, rtt);
        }
        self.limited = false;
        self.done |= self.una == self.end();
    }

    /// Marks segments that SACK blocks report. Returns whether a duplicate was reported, and when the first
    /// newly reported segment was sent.
    fn blocks(&mut self, seg: &Seg, ack: u64) -> (bool, Option<Time>) {
        let base = self.iss.wrapping_add(1);
        let offset =
            |n: u32| self.una as i64 + i64::from(n.wrapping_sub(base).wrapping_sub(self.una as u32) as i32);
        let (mut twice, mut first) = (false, None::<Time>);
        for &(start, end) in &seg.sack {
            let (start, end) = (offset(start), offset(end));
            if end <= ack as i64 {
                twice = true;
                continue;
            }
            let inside = |s: &Sent| s.start as i64 >= start && s.end as i64 <= end;
            for s in self.sent.iter_mut().filter(|s| !s.sacked && inside(s)) {
                s.sacked = true;
                if !s.ever {
                    first = Some(first.map_or(s.at, |first| first.min(s.at)));
                }
            }
        }
        (twice, first)
    }

    /// Returns newly acknowledged bytes. `reported`: RTT sample from SACK, in seconds.
    fn acknowledge(&mut self, now: Time, ack: u64, stamp: Option<u32>, reported: Option<f64>) -> u64 {
        if ack <= self.una {
            self.duplicates += u64::from(!self.sent.is_empty());
            reported.into_iter().for_each(|rtt| self.measured(rtt));
            return 0;
        }
        let acknowledged = ack - self.una;
        self.una = ack;
        self.duplicates = 0;
        self.tries = 0;
        let (mut oldest, mut repaired) = (None, false);
        while let Some(first) = self.sent.front().copied().filter(|s| s.end <= ack) {
            repaired |= first.ever;
            if !first.ever && !first.sacked {
                oldest.get_or_insert(first.at);
            }
            self.sent.pop_front();
        }
        let plain = oldest.filter(|_| !repaired).map(|at| now.saturating_sub(at).as_secs_f64());
        let echoed = stamp.map(|echo| self.since(now, echo));
        plain.or(reported).or(echoed).into_iter().for_each(|rtt| self.measured(rtt));
        self.deadline = (!self.sent.is_empty()).then(|| now + self.estimator.timeout());
        acknowledged
    }

    /// Seconds since the echoed time. The clock counts milliseconds, so it is at least one.
    fn since(&self, now: Time, echo: u32) -> f64 {
        f64::from(self.clock(now).wrapping_sub(echo).max(1)) / 1000.0
    }

    fn measured(&mut self, rtt: f64) {
        self.estimator.measured(rtt, self.una, self.next);
    }
}
