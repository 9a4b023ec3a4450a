//! One direction of a stream at its receiver: orders the bytes, and grants credit.

use std::collections::{BTreeMap, VecDeque};

use thalweg_wire::control::MAX_HOLES;
use thalweg_wire::{Range, Ranges};

/// Pieces up to this size are joined while they wait for the program.
const JOINED: usize = 16 << 10;
/// The receiver sends more credit when this fraction (1/8) of the smaller of both windows is free. So the
/// sender never waits for credit on a link whose bandwidth-delay product fits the window.
const TOLD: u64 = 8;
/// Maximum number of separate pieces that may wait for bytes before them. Each piece costs memory besides its
/// bytes.
const MOST_AHEAD: usize = 1 << 14;

/// Bytes from the peer for the program.
#[derive(Debug)]
pub(super) struct Inlet {
    /// Maximum number of bytes that are buffered.
    window: u64,
    /// The receiver sends more credit after the program has taken this many bytes.
    step: u64,
    /// Bytes that arrived out of order, by position. The pieces do not overlap.
    ahead: BTreeMap<u64, Vec<u8>>,
    /// Bytes that are in order and wait for the program.
    ready: VecDeque<Vec<u8>>,
    /// All bytes before this position have arrived.
    received: u64,
    /// Bytes that the program has taken.
    taken: u64,
    /// The sender may send bytes before this position.
    limit: u64,
    /// All bytes before this position were confirmed to the sender.
    confirmed: u64,
    /// The stream's length in bytes, once the peer has sent it.
    end: Option<u64>,
}

impl Inlet {
    /// A direction that buffers at most `window` bytes, all of which are granted at once.
    pub fn new(window: u64) -> Self {
        Self {
            window,
            step: (window / TOLD).max(1),
            ahead: BTreeMap::new(),
            ready: VecDeque::new(),
            received: 0,
            taken: 0,
            limit: window,
            confirmed: 0,
            end: None,
        }
    }

    /// Sets the sender's window. The sender keeps at most this many bytes until they are confirmed, so a
    /// smaller window needs more frequent credit.
    pub fn sender_keeps(&mut self, window: u64) {
        self.step = (self.window.min(window) / TOLD).max(1);
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether a chunk brings new bytes.
    ///
    /// # Errors
    /// If it reaches beyond what was granted, or beyond the end.
    pub fn wants(&self, range: Range) -> Result<bool, &'static str> {
        if range.end > self.limit {
            return Err("it sends more than it was granted");
        }
        if self.end.is_some_and(|end| range.end > end) {
            return Err("it sends bytes behind the end of a stream");
        }
        Ok(range.end > self.received && self.ahead.len() < MOST_AHEAD)
    }

    /// Stores a chunk that [`Inlet::wants`] accepted. Returns whether more bytes are in order now.
    pub fn store(&mut self, start: u64, bytes: Vec<u8>) -> bool {
        let range = Range::new(start, start + bytes.len() as u64);
        if start == self.received && self.ahead.is_empty() {
            self.received = range.end;
            self.push(bytes);
            return true;
        }
        for part in self.fresh(range) {
            self.keep(part.start, &bytes[(part.start - start) as usize..(part.end - start) as usize]);
        }
        self.settle()
    }

    /// Stores bytes that are out of order. Small pieces that follow each other are joined. So there are at
    /// most as many pieces as gaps, or the pieces are large.
    fn keep(&mut self, at: u64, bytes: &[u8]) {
        match self.ahead.range_mut(..at).next_back() {
            Some((&before, piece))
                if before + piece.len() as u64 == at && piece.len() + bytes.len() <= JOINED =>
            {
                piece.extend_from_slice(bytes);
            }
            _ => drop(self.ahead.insert(at, bytes.to_vec())),
        }
    }

    /// The parts of `range` that have not arrived.
    fn fresh(&self, range: Range) -> Vec<Range> {
        let rest = Range::new(range.start.max(self.received), range.end);
        let there = self.ahead.range(..rest.end).rev();
        let there = there.map(|(&at, bytes)| Range::new(at, at + bytes.len() as u64));
        let there: Ranges = there.take_while(|piece| piece.end > rest.start).collect();
        there.missing_in(rest)
    }

    /// Moves pieces that are in order now to the program's queue.
    fn settle(&mut self) -> bool {
        let before = self.received;
        while let Some(entry) = self.ahead.first_entry().filter(|entry| *entry.key() == self.received) {
            let bytes = entry.remove();
            self.received += bytes.len() as u64;
            self.push(bytes);
        }
        self.received > before
    }

    fn push(&mut self, bytes: Vec<u8>) {
        match self.ready.back_mut() {
            Some(last) if last.len() + bytes.len() <= JOINED => last.extend_from_slice(&bytes),
            _ => self.ready.push_back(bytes),
        }
    }

    /// Takes the next bytes for the program.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// Notes that the program has taken this many bytes.
    pub fn took(&mut self, bytes: u64) {
        self.taken = (self.taken + bytes).min(self.received);
    }

    /// Notes the stream's length in bytes, which the peer has sent.
    ///
    /// # Errors
    /// If more bytes have arrived, or the peer sent another length before.
    pub fn end(&mut self, end: u64) -> Result<(), &'static str> {
        let last = self.ahead.last_key_value().map_or(0, |(at, bytes)| at + bytes.len() as u64);
        if self.end.is_some_and(|known| known != end) || end < self.received.max(last) {
            return Err("it says two different ends of a stream");
        }
        self.end = Some(end);
        Ok(())
    }

    /// Whether all bytes have arrived.
    pub fn is_whole(&self) -> bool {
        self.end == Some(self.received)
    }

    /// Whether the program has taken all bytes.
    pub fn is_done(&self) -> bool {
        self.end == Some(self.taken)
    }

    /// The missing ranges before `end`. The sender has sent all bytes before `end`.
    pub fn missing(&self, end: u64) -> Ranges {
        self.fresh(Range::new(self.received, end)).into_iter().take(MAX_HOLES).collect()
    }

    /// The confirmed position and the new limit, if it is time to send them.
    pub fn credit(&mut self) -> Option<(u64, u64)> {
        let limit = self.taken + self.window;
        let confirms = self.is_whole() && self.confirmed < self.received;
        if !confirms && limit - self.limit < self.step {
            return None;
        }
        Some(self.say())
    }

    /// The confirmed position and the new limit, which the caller must send.
    pub fn say(&mut self) -> (u64, u64) {
        self.limit = self.taken + self.window;
        self.confirmed = self.received;
        (self.received, self.limit)
    }
}
