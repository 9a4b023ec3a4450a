//! Sends data to the client by ordinary reliable TCP: the model, and control messages.
//!
//! It detects losses by SACK (RFC 2018) and send times (RACK, RFC 8985), else by three duplicate ACKs (RFC
//! 5681, RFC 6582). It has the retransmission timeout of RFC 6298, the tail loss probe of RFC 8985, and the
//! persist timer of RFC 9293 section 3.8.6.1. The cwnd follows the delivery rate, as in `ltp`, so losses of
//! the path do not slow the model down. There is no Nagle algorithm, since the application writes small
//! single messages or large amounts.

mod flight;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use thalweg_wire::Range;

use self::flight::{Flight, SentRange};
use crate::Time;
use thalweg_sending::{Pacer, Rate};

const FIRST_TIMEOUT: Time = Time::from_secs(1);
const LONGEST_TIMEOUT: Time = Time::from_secs(60);
/// Minimum retransmission timeout, as in Linux; RFC 6298 says one second.
const SHORTEST_TIMEOUT: Time = Time::from_millis(200);
/// Allowance for a delayed ACK, if one segment is in flight (RFC 8985 section 7.2).
const DELAYED: Time = Time::from_millis(200);
/// Initial cwnd in segments (RFC 6928).
const INITIAL: u64 = 10;
/// Number of duplicate ACKs that mean a loss (RFC 5681 section 3.2).
const DUPLICATES: u32 = 3;

/// A piece of the stream to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub offset: u64,
    pub length: usize,
    pub fin: bool,
}

/// An ACK from the client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ack<'a> {
    /// The client has received everything before this offset.
    pub offset: u64,
    /// SACK blocks.
    pub blocks: &'a [Range],
    /// Whether the segment has no data and no SACK blocks, and does not change the window.
    pub plain: bool,
}

/// The sending side of a flow.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Bytes from `una` on: sent and unacknowledged ones, then unsent ones.
    buffer: VecDeque<u8>,
    most: usize,
    una: u64,
    /// One past the last byte that counts as sent.
    next: u64,
    /// One past the highest offset ever sent.
    sent: u64,
    /// One past the last byte written.
    written: u64,
    closing: bool,
    pub segment: u64,
    /// The peer's window, and the largest window that it has advertised.
    window: u64,
    widest: u64,
    flight: Flight,
    rate: Rate,
    pacer: Pacer,
    pace_at: Option<Time>,
    duplicates: u32,
    /// Recovery without SACK (RFC 6582): until this offset is acknowledged, each partial ACK shows another
    /// loss.
    recover: Option<u64>,
    /// After a timeout: send one segment at a time until the cumulative ACK advances.
    collapsed: bool,
    /// Whether to send one byte beyond a closed window (persist), or the last segment again (tail loss
    /// probe).
    persist: bool,
    probe: bool,
    timeout: Time,
    /// Retransmission timer. When it expires, everything in flight counts as lost.
    timeout_at: Option<Time>,
    /// Timer of the tail loss probe. `probed`: one has been sent since the cumulative ACK last advanced.
    probe_at: Option<Time>,
    probed: bool,
    tries: u32,
}

impl Outgoing {
    /// Creates a stream that sends segments of `segment` bytes and buffers at most `most` bytes.
    pub fn new(now: Time, most: usize, segment: u64) -> Self {
        Self {
            buffer: VecDeque::new(),
            most,
            una: 0,
            next: 0,
            sent: 0,
            written: 0,
            closing: false,
            segment,
            window: 0,
            widest: 0,
            flight: Flight::new(),
            rate: Rate::new(segment, INITIAL),
            pacer: Pacer::new(now),
            pace_at: None,
            duplicates: 0,
            recover: None,
            collapsed: false,
            persist: false,
            probe: false,
            timeout: FIRST_TIMEOUT,
            timeout_at: None,
            probe_at: None,
            probed: false,
            tries: 0,
        }
    }

    /// Buffers as many bytes as fit. Returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let room = if self.closing { 0 } else { self.most.saturating_sub(self.buffer.len()) };
        let taken = bytes.len().min(room);
        self.buffer.extend(&bytes[..taken]);
        self.written += taken as u64;
        taken
    }

    /// Notes that the application will write no more. A FIN follows the last byte.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// The first offset that is not acknowledged.
    pub fn una(&self) -> u64 {
        self.una
    }

    /// One past the highest offset ever sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes that the application has written and the client has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.buffer.len() as u64
    }

    pub fn window(&self) -> u64 {
        self.window
    }

    pub fn is_closing(&self) -> bool {
        self.closing
    }

    pub fn widest(&self) -> u64 {
        self.widest
    }

    /// Whether everything is acknowledged, including the FIN.
    pub fn is_done(&self) -> bool {
        self.closing && self.una == self.end()
    }

    fn end(&self) -> u64 {
        self.written + u64::from(self.closing)
    }

    /// Notes that the peer's window is now `window` bytes.
    pub fn opened(&mut self, now: Time, window: u64) {
        if self.window == 0 && window > 0 && self.una < self.end() {
            self.persist = false;
            self.rewind();
            self.timeout_at = Some(now + self.timeout);
        }
        self.window = window;
        self.widest = self.widest.max(window);
    }

    /// Treats all unacknowledged bytes as never sent.
    fn rewind(&mut self) {
        self.flight.clear();
        self.next = self.una;
    }

    /// Processes an ACK. The caller has checked that it acknowledges no unsent byte, and is not older than
    /// the last ACK.
    pub fn acknowledged(&mut self, now: Time, ack: Ack<'_>) {
        let advanced = ack.offset > self.una;
        let news = self.flight.acknowledged(now, ack.offset, ack.blocks, self.rate.base());
        if let Some(news) = news {
            self.rate.on_ack(&news);
        }
        if advanced {
            self.advanced(now, ack.offset);
        } else if ack.plain && self.next > self.una && self.window > 0 {
            self.duplicates += 1;
            if self.duplicates == DUPLICATES && self.recover.is_none() && !self.flight.has_lost() {
                self.recover = Some(self.next);
                self.flight.lose_first();
            }
        }
        if self.window == 0 {
            self.tries = 0;
        }
    }

    fn advanced(&mut self, now: Time, offset: u64) {
        let bytes = offset.min(self.written) - self.una.min(self.written);
        self.buffer.drain(..(bytes as usize).min(self.buffer.len()));
        self.una = offset;
        self.next = self.next.max(offset);
        (self.duplicates, self.tries, self.collapsed, self.probed) = (0, 0, false, false);
        if self.recover.is_some_and(|recover| offset < recover) {
            self.flight.lose_first();
        } else {
            self.recover = None;
        }
        self.timeout = self.base_timeout();
        self.timeout_at = None;
        self.arm(now);
    }

    /// Takes an RTT sample.
    pub fn measured(&mut self, rtt: Time) {
        self.flight.trips.measured(rtt);
        self.timeout = self.base_timeout();
    }

    /// The retransmission timeout (RFC 6298 section 2), within bounds.
    fn base_timeout(&self) -> Time {
        let timeout = self.flight.trips.timeout().unwrap_or(FIRST_TIMEOUT);
        timeout.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT)
    }

    /// The data to send now: one segment, or as many consecutive segments as fit into `most` bytes. All but
    /// the last one are full.
    pub fn poll(&mut self, now: Time, most: usize) -> Option<Piece> {
        let mut piece = self.choose(now)?;
        while self.goes_on(piece, most) {
            let Some(more) = self.choose(now) else { break };
            piece = Piece { length: piece.length + more.length, fin: more.fin, ..piece };
        }
        self.arm(now);
        Some(piece)
    }

    /// Whether the next segment may extend this piece.
    fn goes_on(&self, piece: Piece, most: usize) -> bool {
        let segment = self.segment as usize;
        piece.length > 0
            && piece.length.is_multiple_of(segment)
            && piece.length + segment <= most
            && piece.offset + piece.length as u64 == self.next
            && !piece.fin
            && !self.flight.has_lost()
    }

    fn choose(&mut self, now: Time) -> Option<Piece> {
        self.pace_at = None;
        if std::mem::take(&mut self.persist) && self.una < self.end() {
            return Some(self.beyond());
        }
        if std::mem::take(&mut self.probe) {
            if let Some(part) = self.flight.probe(now) {
                return Some(piece(part));
            }
        }
        if self.flight.has_lost() {
            return self
                .may_send(now)
                .then(|| self.flight.repair(now))
                .flatten()
                .map(|part| self.paced(part));
        }
        let part = self.fresh()?;
        if !self.may_send(now) {
            return None;
        }
        self.flight.send(now, part);
        self.next = part.range.end;
        self.sent = self.sent.max(self.next);
        Some(self.paced(part))
    }

    /// Returns one byte beyond a closed window, or the FIN. It does not count as sent.
    fn beyond(&mut self) -> Piece {
        let length = self.written.saturating_sub(self.una).min(1);
        self.sent = self.sent.max(self.una + 1);
        Piece { offset: self.una, length: length as usize, fin: length == 0 }
    }

    fn paced(&mut self, part: SentRange) -> Piece {
        self.pacer.sent(part.range.len());
        piece(part)
    }

    /// The next bytes that were never sent, within the peer's window.
    fn fresh(&mut self) -> Option<SentRange> {
        let flight = self.next - self.una;
        let allowed = self.window.saturating_sub(flight);
        let left = self.written.saturating_sub(self.next);
        if self.next >= self.end() {
            self.flight.delivery.idle(self.flight.under_way());
            return None;
        }
        // Avoid the silly window syndrome: while data is in flight, wait until the window has room for a
        // whole segment (RFC 9293 section 3.8.6.2.1).
        if (left > 0 && allowed == 0) || (allowed < left.min(self.segment) && flight > 0) {
            return None;
        }
        let length = left.min(self.segment).min(allowed);
        let fin = self.closing && self.next + length == self.written;
        Some(SentRange { range: Range::new(self.next, self.next + length + u64::from(fin)), fin })
    }

    fn may_send(&mut self, now: Time) -> bool {
        if self.flight.segments() == 0 && self.collapsed {
            return true;
        }
        if self.collapsed || self.flight.under_way() + self.segment > self.rate.window() {
            return false;
        }
        let Some(pace) = self.rate.pace() else { return true };
        let at = self.pacer.at(now, pace, self.segment as f64);
        self.pace_at = Some(at).filter(|&at| at > now);
        at <= now
    }

    /// The bytes of a piece, in two slices of the ring buffer.
    pub fn bytes(&self, piece: Piece) -> (&[u8], &[u8]) {
        let start = (piece.offset - self.una.min(piece.offset)) as usize;
        let (first, second) = self.buffer.as_slices();
        let end = start + piece.length;
        let cut = |at: usize| at.min(first.len());
        let rest = |at: usize| at.saturating_sub(first.len()).min(second.len());
        (&first[cut(start)..cut(end)], &second[rest(start)..rest(end)])
    }

    /// Sets the timers, also if the window is closed. The retransmission timer is for the first segment (RFC
    /// 6298 section 5), the probe timer for the last one (RFC 8985 section 7.2).
    pub fn arm(&mut self, now: Time) {
        self.probe_at = None;
        if self.una >= self.end() {
            self.timeout_at = None;
            return;
        }
        let timeout = *self.timeout_at.get_or_insert(now + self.timeout);
        let smooth = self.flight.trips.smooth().filter(|_| self.window > 0 && !self.probed);
        let delayed = match self.flight.segments() {
            0 => return,
            1 => DELAYED,
            _ => Time::ZERO,
        };
        self.probe_at = smooth.map(|smooth| now + 2 * smooth + delayed).filter(|&at| at < timeout);
    }

    /// The time of the earliest timer. Call [`Self::handle_timeout`] and [`Self::poll`] then.
    pub fn poll_timeout(&self) -> Option<Time> {
        [self.timeout_at, self.probe_at, self.flight.loss_at, self.pace_at].into_iter().flatten().min()
    }

    /// Runs the timers that are due. Returns true if the peer counts as lost: more than `most` timeouts have
    /// expired in a row.
    pub fn handle_timeout(&mut self, now: Time, most: u32) -> bool {
        if self.flight.loss_at.is_some_and(|at| at <= now) {
            self.flight.detect(now);
        }
        // The next poll sends what the pacer allows by then.
        self.pace_at = self.pace_at.filter(|&at| at > now);
        if self.probe_at.is_some_and(|at| at <= now) {
            (self.probe, self.probed, self.probe_at) = (true, true, None);
            self.timeout_at = Some(now + self.timeout);
        }
        if self.timeout_at.is_some_and(|at| at <= now) {
            self.expired(now);
        }
        self.tries > most
    }

    fn expired(&mut self, now: Time) {
        self.tries += 1;
        self.timeout = (self.timeout * 2).min(LONGEST_TIMEOUT);
        (self.timeout_at, self.probe_at, self.probed) = (Some(now + self.timeout), None, true);
        if self.window == 0 {
            self.persist = true;
            return;
        }
        self.collapsed = true;
        self.recover = None;
        if self.flight.lose_all() {
            self.rewind();
        }
    }
}

fn piece(part: SentRange) -> Piece {
    let length = part.range.len() - u64::from(part.fin);
    Piece { offset: part.range.start, length: length as usize, fin: part.fin }
}
