//! A TCP sender that knows nothing of masking, as Linux has it: window scale, timestamps, SACK with the loss rule of RFC
//! 6675, recovery, timeouts of RFC 6298, and undoing both by Eifel (`tcp_packet_delayed`) and by reported duplicates.

use std::collections::VecDeque;

use thalweg_proto::Time;

use super::congestion::{Congestion, Kind};
use super::wire::*;

pub const MSS: u64 = 1448;
const REORDERING: u64 = 3;

#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    start: u64,
    end: u64,
    at: Time,
    sacked: bool,
    lost: bool,
    again: bool,
}

/// What to restore if a reduction turns out needless.
#[derive(Debug, Clone)]
struct Recovery {
    high: u64,
    before: Congestion,
    /// Our clock at the first retransmission.
    stamp: Option<u32>,
    /// Retransmissions not reported as duplicates.
    needed: u32,
    timeout: bool,
}

/// What became of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub retransmissions: u64,
    pub reductions: u64,
    pub timeouts: u64,
    pub undone: u64,
}

pub struct Sender {
    pub base: Seg,
    pub total: u64,
    shift: u32,
    congestion: Congestion,
    sent: VecDeque<Sent>,
    pub una: u64,
    next: u64,
    edge: u64,
    scale: u8,
    iss: u32,
    theirs: u32,
    echo: u32,
    connected: bool,
    finished: bool,
    pub done: bool,
    duplicates: u64,
    recovery: Option<Recovery>,
    smooth: Option<(f64, f64)>,
    timeout: Time,
    pub deadline: Option<Time>,
    limited: bool,
    pub stamps: bool,
    pub sack: bool,
    pub tally: Tally,
    pub reset: bool,
}

impl Sender {
    pub fn new(host: u8, kind: Kind, total: u64) -> Self {
        let base = Seg { port: 4000 + u16::from(host), host, window: 512, ..Seg::default() };
        Self {
            base,
            total,
            shift: 77_000,
            congestion: Congestion::new(kind),
            sent: VecDeque::new(),
            una: 0,
            next: 0,
            edge: 0,
            scale: 0,
            iss: 0xfff0_0000,
            theirs: 0,
            echo: 0,
            connected: false,
            finished: false,
            done: false,
            duplicates: 0,
            recovery: None,
            smooth: None,
            timeout: Time::from_secs(1),
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

    /// The end counts as one.
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
        let flight = self.sent.iter().filter(|s| !s.sacked && !s.lost).count() as f64;
        if flight >= self.congestion.window.max(1.0) {
            self.limited = true;
            return None;
        }
        if let Some(lost) = self.sent.iter_mut().find(|s| s.lost && !s.sacked) {
            lost.lost = false;
            lost.again = true;
            lost.at = now;
            let (start, end) = (lost.start, lost.end);
            self.tally.retransmissions += 1;
            let stamp = self.clock(now);
            if let Some(recovery) = &mut self.recovery {
                recovery.stamp.get_or_insert(stamp);
                recovery.needed += 1;
            }
            return Some(self.piece(now, start, end));
        }
        if self.next >= self.end() || self.next >= self.edge {
            return None;
        }
        let start = self.next;
        let data = (start + MSS).min(self.total).min(self.edge);
        let end = if data == self.total { self.end() } else { data };
        self.sent.push_back(Sent { start, end, at: now, ..Sent::default() });
        self.next = end;
        self.finished |= end == self.end();
        if self.deadline.is_none() {
            self.deadline = Some(now + self.timeout);
        }
        Some(self.piece(now, start, end))
    }

    fn piece(&self, now: Time, start: u64, end: u64) -> Seg {
        let data = end.min(self.total);
        let fin = if end == self.end() { FIN } else { 0 };
        self.seg(now, ACK | fin, start, bytes(start, (data - start) as usize))
    }

    pub fn expired(&mut self, now: Time) {
        if !self.connected || self.deadline.is_none_or(|at| at > now) {
            return;
        }
        self.timeout = (self.timeout * 2).min(Time::from_secs(60));
        self.deadline = Some(now + self.timeout);
        if self.sent.is_empty() {
            return;
        }
        self.tally.timeouts += 1;
        let before = self.recovery.take().map_or_else(|| self.congestion.clone(), |recovery| recovery.before);
        self.congestion.reduce();
        self.congestion.window = 1.0;
        self.sent.iter_mut().filter(|s| !s.sacked).for_each(|s| s.lost = true);
        self.recovery = Some(Recovery { high: self.next, before, stamp: None, needed: 0, timeout: true });
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
            self.edge = u64::from(seg.window);
            self.connected = true;
            self.deadline = None;
            self.measured(seg.stamps.map(|(_, echo)| self.clock(now).wrapping_sub(echo)));
            return;
        }
        let ack = seg.ack.wrapping_sub(self.iss.wrapping_add(1));
        let ack = self.una + u64::from(ack.wrapping_sub(self.una as u32));
        assert!(ack <= self.next || ack > self.una + (1 << 31), "acknowledges what was never sent");
        if ack > self.next {
            return; // Older than what is known.
        }
        self.edge = self.edge.max(ack + (u64::from(seg.window) << self.scale));
        let stamp = seg.stamps.map(|(_, echo)| echo);
        let twice = self.blocks(seg, ack);
        let came = self.acknowledge(now, ack, stamp);
        let mut undo = false;
        if let Some(recovery) = self.recovery.as_mut().filter(|_| twice) {
            recovery.needed = recovery.needed.saturating_sub(1);
            undo = recovery.needed == 0 && recovery.stamp.is_some();
        }
        self.recover(now, ack, came > 0, stamp, undo);
        if came > 0 && self.recovery.as_ref().is_none_or(|r| r.timeout) && self.limited {
            let rtt = self.smooth.map_or(0.1, |(smooth, _)| smooth);
            self.congestion.acknowledged(now, came as f64 / MSS as f64, rtt);
        }
        self.limited = false;
        self.done |= self.una == self.end();
    }

    /// Marks what is reported; whether a duplicate is.
    fn blocks(&mut self, seg: &Seg, ack: u64) -> bool {
        let base = self.iss.wrapping_add(1);
        let offset =
            |n: u32| self.una as i64 + i64::from(n.wrapping_sub(base).wrapping_sub(self.una as u32) as i32);
        let mut twice = false;
        for &(start, end) in &seg.sack {
            let (start, end) = (offset(start), offset(end));
            if end <= ack as i64 {
                twice = true;
                continue;
            }
            let all = self.sent.iter_mut();
            all.filter(|s| s.start as i64 >= start && s.end as i64 <= end).for_each(|s| s.sacked = true);
        }
        twice
    }

    /// Bytes that are newly acknowledged.
    fn acknowledge(&mut self, now: Time, ack: u64, stamp: Option<u32>) -> u64 {
        if ack <= self.una {
            self.duplicates += u64::from(!self.sent.is_empty());
            return 0;
        }
        let came = ack - self.una;
        self.una = ack;
        self.duplicates = 0;
        let mut rtt = None;
        while let Some(first) = self.sent.front().copied().filter(|s| s.end <= ack) {
            if !first.again && !first.sacked {
                rtt = Some(now.saturating_sub(first.at).as_millis() as u32);
            }
            self.sent.pop_front();
        }
        self.measured(rtt.or(stamp.map(|echo| self.clock(now).wrapping_sub(echo))));
        self.deadline = (!self.sent.is_empty()).then(|| now + self.timeout);
        came
    }

    fn measured(&mut self, rtt: Option<u32>) {
        let Some(rtt) = rtt.map(|ms| f64::from(ms.max(1)) / 1000.0) else { return };
        let (smooth, spread) = match self.smooth {
            None => (rtt, rtt / 2.0),
            Some((smooth, spread)) => {
                (smooth * 0.875 + rtt * 0.125, spread * 0.75 + (smooth - rtt).abs() * 0.25)
            }
        };
        self.smooth = Some((smooth, spread));
        self.timeout = Time::from_secs_f64(smooth + (4.0 * spread).max(0.2));
    }

    fn recover(&mut self, now: Time, ack: u64, advanced: bool, stamp: Option<u32>, duplicate: bool) {
        if let Some(recovery) = self.recovery.clone() {
            let early = |echo: u32, first: u32| (echo.wrapping_sub(first) as i32) < 0;
            let delayed = matches!((stamp, recovery.stamp), (Some(echo), Some(first)) if early(echo, first));
            let out = self.sent.iter().any(|s| s.again && !s.sacked);
            if duplicate || (advanced && delayed && (ack >= recovery.high || !out)) {
                // Needless after all.
                self.tally.undone += 1;
                let window = self.congestion.window.max(recovery.before.window);
                self.congestion = recovery.before;
                self.congestion.window = window;
                self.sent.iter_mut().for_each(|s| s.lost = false);
                self.recovery = None;
            } else if ack >= recovery.high {
                self.recovery = None;
            }
        }
        let highest = self.sent.iter().rev().find(|s| s.sacked).map(|s| s.start);
        let mut found = false;
        if let Some(highest) = highest {
            let sacked = self.sent.iter().filter(|s| s.sacked).count() as u64;
            for s in self.sent.iter_mut().filter(|s| !s.sacked && !s.again && !s.lost) {
                if s.end + REORDERING * MSS <= highest + MSS && sacked >= REORDERING {
                    s.lost = true;
                    found = true;
                }
            }
        } else if !self.sack && self.duplicates == REORDERING {
            if let Some(first) = self.sent.front_mut() {
                first.lost = true;
                found = true;
            }
        }
        // A retransmission that is lost too is left to the timer.
        if found && self.recovery.is_none() {
            self.tally.reductions += 1;
            let before = self.congestion.clone();
            self.congestion.reduce();
            let (high, stamp) = (self.next, None);
            self.recovery = Some(Recovery { high, before, stamp, needed: 0, timeout: false });
        }
        let _ = now;
    }
}
