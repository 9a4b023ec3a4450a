//! The way back: ordinary reliable TCP for control messages to the sender.
//!
//! Retransmission timeout of RFC 6298, fast retransmission and recovery of RFC 5681 and RFC 6582 (NewReno), persist
//! timer of RFC 9293 section 3.8.6.1. Messages are small, so there is neither Nagle's rule nor SACK on this side.

use std::collections::VecDeque;

use crate::Time;

const FIRST_TIMEOUT: Time = Time::from_secs(1);
const LONGEST_TIMEOUT: Time = Time::from_secs(60);
/// As Linux; RFC 6298 would have a second.
const SHORTEST_TIMEOUT: Time = Time::from_millis(200);
/// Segments of the first window (RFC 6928).
const INITIAL: u64 = 10;

/// A piece of the stream to be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub offset: u64,
    pub length: usize,
    pub fin: bool,
}

#[derive(Debug)]
pub(super) struct Outgoing {
    /// Bytes that are not acknowledged, from `una` on.
    buffer: VecDeque<u8>,
    most: usize,
    una: u64,
    next: u64,
    /// One past the highest offset ever sent.
    sent: u64,
    /// One past the last byte written.
    written: u64,
    closing: bool,
    pub segment: u64,
    window: u64,
    widest: u64,
    congestion: u64,
    threshold: u64,
    duplicates: u32,
    recover: Option<u64>,
    again: bool,
    probe: bool,
    timing: Option<(u64, Time)>,
    smooth: Option<(Time, Time)>,
    timeout: Time,
    pub deadline: Option<Time>,
    tries: u32,
}

impl Outgoing {
    pub fn new(most: usize, segment: u64) -> Self {
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
            congestion: INITIAL * segment,
            threshold: u64::MAX,
            duplicates: 0,
            recover: None,
            again: false,
            probe: false,
            timing: None,
            smooth: None,
            timeout: FIRST_TIMEOUT,
            deadline: None,
            tries: 0,
        }
    }

    /// Takes as many bytes as there is room for.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let room = if self.closing { 0 } else { self.most.saturating_sub(self.buffer.len()) };
        let taken = bytes.len().min(room);
        self.buffer.extend(&bytes[..taken]);
        self.written += taken as u64;
        taken
    }

    /// Nothing more will be written.
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

    /// Bytes written and not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.buffer.len() as u64
    }

    pub fn window(&self) -> u64 {
        self.window
    }

    pub fn is_closing(&self) -> bool {
        self.closing
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn widest(&self) -> u64 {
        self.widest
    }

    /// Whether all is acknowledged, the end included.
    pub fn is_done(&self) -> bool {
        self.closing && self.una == self.end()
    }

    fn end(&self) -> u64 {
        self.written + u64::from(self.closing)
    }

    /// The peer's window is so large now.
    pub fn opened(&mut self, now: Time, window: u64) {
        if self.window == 0 && window > 0 && self.una < self.end() {
            self.probe = false;
            self.next = self.una;
            self.deadline = Some(now + self.timeout);
        }
        self.window = window;
        self.widest = self.widest.max(window);
    }

    /// Everything before `offset` is acknowledged; `plain`: by a segment with nothing else in it.
    pub fn acknowledged(&mut self, now: Time, offset: u64, plain: bool) {
        if offset > self.una {
            self.advanced(now, offset);
        } else if plain && offset == self.una && self.next > self.una && self.window > 0 {
            self.duplicates += 1;
            if self.duplicates == 3 && self.recover.is_none() {
                self.threshold = ((self.next - self.una) / 2).max(2 * self.segment);
                self.congestion = self.threshold + 3 * self.segment;
                self.recover = Some(self.next);
                self.again = true;
                self.timing = None;
            } else if self.recover.is_some() {
                self.congestion += self.segment;
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
        self.duplicates = 0;
        self.tries = 0;
        if let Some((timed, since)) = self.timing.filter(|(timed, _)| *timed <= offset) {
            self.timing = None;
            debug_assert!(timed <= offset);
            self.measured(now.saturating_sub(since));
        }
        match self.recover {
            Some(recover) if offset < recover => self.again = true,
            Some(_) => {
                self.recover = None;
                self.congestion = self.threshold;
            }
            None if self.congestion < self.threshold => self.congestion += bytes.min(self.segment),
            None => self.congestion += (self.segment * self.segment / self.congestion).max(1),
        }
        self.deadline = (self.una < self.sent).then(|| now + self.timeout);
    }

    /// A round trip took so long (RFC 6298 section 2).
    pub fn measured(&mut self, rtt: Time) {
        let (smooth, spread) = match self.smooth {
            None => (rtt, rtt / 2),
            Some((smooth, spread)) => ((smooth * 7 + rtt) / 8, (spread * 3 + smooth.abs_diff(rtt)) / 4),
        };
        self.smooth = Some((smooth, spread));
        self.timeout = (smooth + spread * 4).clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT);
    }

    /// What to send now, if anything.
    pub fn poll(&mut self, now: Time) -> Option<Piece> {
        let piece = self.choose()?;
        let end = piece.offset + piece.length as u64 + u64::from(piece.fin);
        if end > self.sent && self.timing.is_none() {
            self.timing = Some((end, now));
        }
        self.next = self.next.max(end);
        self.sent = self.sent.max(end);
        if self.deadline.is_none() {
            self.deadline = Some(now + self.timeout);
        }
        Some(piece)
    }

    fn choose(&mut self) -> Option<Piece> {
        if std::mem::take(&mut self.probe) && self.una < self.end() {
            return Some(self.piece(self.una, 1));
        }
        if std::mem::take(&mut self.again) && self.una < self.sent {
            return Some(self.piece(self.una, self.segment));
        }
        let flight = self.next - self.una;
        let allowed = self.window.min(self.congestion).saturating_sub(flight);
        let left = self.written.saturating_sub(self.next);
        if self.next >= self.end() || (left > 0 && allowed == 0) {
            return None;
        }
        // A sliver of a window is not worth a segment while others are under way (RFC 9293 section 3.8.6.2.1).
        if allowed < left.min(self.segment) && flight > 0 {
            return None;
        }
        Some(self.piece(self.next, allowed))
    }

    fn piece(&self, offset: u64, allowed: u64) -> Piece {
        let left = self.written.saturating_sub(offset);
        let length = left.min(self.segment).min(allowed);
        Piece { offset, length: length as usize, fin: self.closing && offset + length == self.written }
    }

    /// The bytes of a piece, in two runs.
    pub fn bytes(&self, piece: Piece) -> (&[u8], &[u8]) {
        let start = (piece.offset - self.una.min(piece.offset)) as usize;
        let (first, second) = self.buffer.as_slices();
        let end = start + piece.length;
        let cut = |at: usize| at.min(first.len());
        let rest = |at: usize| at.saturating_sub(first.len()).min(second.len());
        (&first[cut(start)..cut(end)], &second[rest(start)..rest(end)])
    }

    /// Sees to a zero window, which only a timer can get open again.
    pub fn arm(&mut self, now: Time) {
        if self.deadline.is_none() && self.una < self.end() {
            self.deadline = Some(now + self.timeout);
        }
    }

    /// The timer has run out. Whether the peer counts as gone, after so many tries.
    pub fn expired(&mut self, now: Time, most: u32) -> bool {
        self.tries += 1;
        self.timeout = (self.timeout * 2).min(LONGEST_TIMEOUT);
        self.deadline = Some(now + self.timeout);
        self.timing = None;
        if self.una >= self.end() {
            self.deadline = None;
        } else if self.window == 0 {
            self.probe = true;
        } else {
            self.threshold = ((self.next - self.una) / 2).max(2 * self.segment);
            self.congestion = self.segment;
            self.recover = None;
            self.next = self.una;
        }
        self.tries > most
    }
}
