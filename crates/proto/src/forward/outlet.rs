//! One direction of a stream at its sender.

use std::collections::VecDeque;

use thalweg_wire::{Range, Ranges};

/// Pieces from the program up to this size are joined, so that a program that writes byte by byte costs no more memory
/// than another.
const JOINED: usize = 16 << 10;

/// Bytes from the program on their way to the peer. They are kept until the peer has them.
#[derive(Debug, Default)]
pub(super) struct Outlet {
    /// What the program gave and the peer has not confirmed, each with its position.
    kept: VecDeque<(u64, Vec<u8>)>,
    /// What the program gave in all, what was sent of it, and what the peer has.
    given: u64,
    sent: u64,
    arrived: u64,
    /// What the peer grants.
    limit: u64,
    /// Most bytes that are kept, whatever the peer grants.
    window: u64,
    /// What was sent and did not arrive.
    again: Ranges,
    ended: bool,
}

impl Outlet {
    /// A direction for which the peer has granted `limit` bytes, and which keeps at most `window` bytes.
    pub fn new(limit: u64, window: u64) -> Self {
        Self { limit, window, ..Self::default() }
    }

    /// Bytes that may be taken from the program now.
    pub fn room(&self) -> u64 {
        if self.ended {
            return 0;
        }
        self.limit.min(self.arrived.saturating_add(self.window)).saturating_sub(self.given)
    }

    /// The program gave these bytes, no more than there is room for.
    pub fn give(&mut self, bytes: Vec<u8>) {
        let at = self.given;
        self.given += bytes.len() as u64;
        match self.kept.back_mut() {
            Some((_, last)) if last.len() + bytes.len() <= JOINED => last.extend_from_slice(&bytes),
            _ if bytes.is_empty() => {}
            _ => self.kept.push_back((at, bytes)),
        }
    }

    /// The program gives no more. Returns how many bytes there are in all.
    pub fn end(&mut self) -> u64 {
        self.ended = true;
        self.given
    }

    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// What was sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Everything was sent, and has arrived.
    pub fn is_done(&self) -> bool {
        self.ended && self.arrived == self.given
    }

    /// The peer has everything before `received` and grants everything before `limit`.
    ///
    /// # Errors
    /// If it has what was never sent.
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

    /// The peer did not get these bytes.
    ///
    /// # Errors
    /// If they were never sent.
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

    /// Whether there is anything to send.
    pub fn has_more(&self) -> bool {
        self.sent < self.given || !self.again.is_empty()
    }

    /// Appends at most `most` bytes to `out`, lost ones first, and says where they belong.
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
