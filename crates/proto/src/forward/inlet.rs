//! One direction of a stream at its receiver.

use std::collections::{BTreeMap, VecDeque};

use thalweg_wire::control::MAX_HOLES;
use thalweg_wire::{Range, Ranges};

/// Pieces up to this size are joined while they wait for the program.
const JOINED: usize = 16 << 10;
/// More credit is told when so much of the window (1/8) has become free, of the smaller one of both ends: often enough that
/// the sender never waits for it over a link whose round trip the window fits.
const TOLD: u64 = 8;
/// Separate pieces that may wait for bytes before them. Each costs some memory besides its bytes.
const MOST_AHEAD: usize = 1 << 14;

/// Bytes from the peer on their way to the program.
#[derive(Debug)]
pub(super) struct Inlet {
    window: u64,
    /// The program has to take so many bytes before more credit is told.
    step: u64,
    /// What came out of order, by position; disjoint.
    ahead: BTreeMap<u64, Vec<u8>>,
    /// What is in order and waits for the program.
    ready: VecDeque<Vec<u8>>,
    /// Everything before this has come.
    received: u64,
    /// What the program has taken.
    taken: u64,
    /// What was granted, and what was last confirmed.
    limit: u64,
    confirmed: u64,
    /// Bytes in all, once the peer has said it.
    end: Option<u64>,
}

impl Inlet {
    /// A direction of which at most `window` bytes are buffered, all granted.
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

    /// The sender keeps at most so many bytes until they are confirmed, so they have to be confirmed accordingly often.
    pub fn sender_keeps(&mut self, window: u64) {
        self.step = (self.window.min(window) / TOLD).max(1);
    }

    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether a chunk brings anything new.
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

    /// A chunk has come for which [`Inlet::wants`] said yes. Whether anything is in order now that was not.
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

    /// Keeps what is out of order. Small pieces that follow each other are joined, so pieces are as many as gaps, or large.
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

    /// The parts of `range` that have not come.
    fn fresh(&self, range: Range) -> Vec<Range> {
        let rest = Range::new(range.start.max(self.received), range.end);
        let there = self.ahead.range(..rest.end).rev();
        let there = there.map(|(&at, bytes)| Range::new(at, at + bytes.len() as u64));
        let there: Ranges = there.take_while(|piece| piece.end > rest.start).collect();
        there.missing_in(rest)
    }

    /// Moves what is in order now to the program's queue.
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

    /// What the program gets next.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// The program has taken so many bytes.
    pub fn took(&mut self, bytes: u64) {
        self.taken = (self.taken + bytes).min(self.received);
    }

    /// The peer says how many bytes there are in all.
    ///
    /// # Errors
    /// If more have come, or it said otherwise before.
    pub fn end(&mut self, end: u64) -> Result<(), &'static str> {
        let last = self.ahead.last_key_value().map_or(0, |(at, bytes)| at + bytes.len() as u64);
        if self.end.is_some_and(|known| known != end) || end < self.received.max(last) {
            return Err("it says two different ends of a stream");
        }
        self.end = Some(end);
        Ok(())
    }

    /// All has come.
    pub fn is_whole(&self) -> bool {
        self.end == Some(self.received)
    }

    /// All has come, and the program has it.
    pub fn is_done(&self) -> bool {
        self.end == Some(self.taken)
    }

    /// What did not come of everything before `end`, of which all was sent.
    pub fn missing(&self, end: u64) -> Ranges {
        self.fresh(Range::new(self.received, end)).into_iter().take(MAX_HOLES).collect()
    }

    /// What has come and what may be sent, if it is time to say so.
    pub fn credit(&mut self) -> Option<(u64, u64)> {
        let limit = self.taken + self.window;
        let told = self.is_whole() && self.confirmed < self.received;
        if !told && limit - self.limit < self.step {
            return None;
        }
        Some(self.say())
    }

    /// What has come and what may be sent.
    pub fn say(&mut self) -> (u64, u64) {
        self.limit = self.taken + self.window;
        self.confirmed = self.received;
        (self.received, self.limit)
    }
}
