//! One direction of a stream at its sender: keeps the bytes until they are confirmed.

use std::collections::VecDeque;

use thalweg_wire::{Range, Ranges};

/// Pieces from the program up to this size are joined, so that a program that writes byte by byte costs no
/// more memory than another.
const JOINED: usize = 16 << 10;

/// Bytes from the program for the peer. They are kept until the peer has confirmed them.
#[derive(Debug, Default)]
pub(super) struct Outlet {
    /// Bytes that the peer has not confirmed, in pieces, each with its position.
    kept: VecDeque<(u64, Vec<u8>)>,
    /// Bytes that the program gave in all.
    given: u64,
    /// Bytes that were sent at least once.
    sent: u64,
    /// Bytes that the peer has confirmed.
    arrived: u64,
    /// The peer allows bytes before this position.
    limit: u64,
    /// Maximum number of bytes that are kept, whatever the peer allows.
    window: u64,
    /// Ranges that were sent and lost.
    again: Ranges,
    /// The program gives no more bytes.
    ended: bool,
}

impl Outlet {
    /// A direction for which the peer allows `limit` bytes, and which keeps at most `window` bytes.
    pub fn new(limit: u64, window: u64) -> Self {
        Self { limit, window, ..Self::default() }
    }

    /// How many bytes may be taken from the program now.
    pub fn room(&self) -> u64 {
        if self.ended {
            return 0;
        }
        self.limit.min(self.arrived.saturating_add(self.window)).saturating_sub(self.given)
    }

    /// Adds bytes of the program, at most [`Outlet::room`].
    pub fn give(&mut self, bytes: Vec<u8>) {
        let at = self.given;
        self.given += bytes.len() as u64;
        match self.kept.back_mut() {
            Some((_, last)) if last.len() + bytes.len() <= JOINED => last.extend_from_slice(&bytes),
            _ if bytes.is_empty() => {}
            _ => self.kept.push_back((at, bytes)),
        }
    }

    /// Notes that the program gives no more bytes. Returns the stream's length in bytes.
    pub fn end(&mut self) -> u64 {
        self.ended = true;
        self.given
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes that were sent at least once.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether the program has ended and the peer has confirmed all bytes.
    pub fn is_done(&self) -> bool {
        self.ended && self.arrived == self.given
    }

    /// Handles a credit: the peer has all bytes before `received`, and allows bytes before `limit`.
    ///
    /// # Errors
    /// If the peer confirms bytes that were never sent.
    pub fn credit(&mut self, received: u64, limit: u64) -> Result<(), &'static str> {
        if received > self.sent {
            return Err("it confirms bytes that were never sent");
        }
        self.limit = self.limit.max(limit);
        self.arrived = self.arrived.max(received);
        self.again.trim(self.arrived);
        while self.kept.front().is_some_and(|(at, bytes)| at + bytes.len() as u64 <= self.arrived) {
            self.kept.pop_front();
        }
        Ok(())
    }

    /// Notes that the peer lacks these ranges.
    ///
    /// # Errors
    /// If the peer names bytes that were never sent.
    pub fn missing(&mut self, wanted: &Ranges) -> Result<(), &'static str> {
        for range in wanted.iter() {
            if range.end > self.sent {
                return Err("it asks again for bytes that were never sent");
            }
            self.again.insert(range);
        }
        self.again.trim(self.arrived);
        Ok(())
    }

    /// Whether there are bytes to send.
    pub fn has_more(&self) -> bool {
        self.sent < self.given || !self.again.is_empty()
    }

    /// Appends at most `most` bytes to `out`, lost ones first, and returns their range.
    pub fn take(&mut self, most: u64, out: &mut Vec<u8>) -> Option<Range> {
        let lost = self.again.iter().next();
        let next = lost.unwrap_or(Range::new(self.sent, self.given));
        let range = Range::new(next.start, next.end.min(next.start.saturating_add(most)));
        if range.is_empty() {
            return None;
        }
        match lost {
            Some(_) => self.again.trim(range.end),
            None => self.sent = range.end,
        }
        self.copy(range, out);
        Some(range)
    }

    fn copy(&self, range: Range, out: &mut Vec<u8>) {
        let first = self.kept.partition_point(|(at, bytes)| at + bytes.len() as u64 <= range.start);
        for (at, bytes) in self.kept.range(first..) {
            let part = range.intersect(Range::new(*at, at + bytes.len() as u64));
            if part.is_empty() {
                break;
            }
            out.extend_from_slice(&bytes[(part.start - at) as usize..(part.end - at) as usize]);
        }
    }
}
