//! The state of one end of a simulated queue pair: its work queue, and the work requests in flight.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::task::Waker;

use bytes::Bytes;
use thalweg_arena::Claim;
use thalweg_rng::Rng;

use crate::{Done, Fault, Memory, Remote, Work};

/// A part of a write in flight.
pub(super) struct Part {
    pub(super) to: Remote,
    pub(super) bytes: Bytes,
}

/// A read in flight.
pub(super) struct Reading {
    id: u64,
    into: Claim,
    from: Remote,
    /// Ranges that have not been fetched.
    todo: Vec<Range<usize>>,
}

/// The state of one end of a simulated RDMA queue pair.
pub(super) struct State {
    pub(super) peer: Option<u32>,
    pub(super) lost: Option<Fault>,
    /// Whether the pair makes no step until it is released.
    pub(super) stalled: bool,
    pub(super) open: HashMap<u32, Memory>,
    pub(super) lent: HashMap<u32, Bytes>,
    pub(super) queue: VecDeque<(u64, Work)>,
    pub(super) landing: Vec<Part>,
    /// The note behind the landing parts, and its work request.
    pub(super) telling: Option<(u64, u32)>,
    pub(super) reading: VecDeque<Reading>,
    /// Memory that was to be read into when the pair was lost.
    pub(super) unread: Vec<Memory>,
    pub(super) done: VecDeque<Done>,
    pub(super) waker: Option<Waker>,
    /// Maximum number of notes in `done`.
    notes: usize,
    pub(super) rng: Rng,
    next_key: u32,
}

impl State {
    pub(super) fn new(seed: &[u64], notes: usize) -> Self {
        Self {
            peer: None,
            lost: None,
            stalled: false,
            open: HashMap::new(),
            lent: HashMap::new(),
            queue: VecDeque::new(),
            landing: Vec::new(),
            telling: None,
            reading: VecDeque::new(),
            unread: Vec::new(),
            done: VecDeque::new(),
            waker: None,
            notes,
            rng: Rng::new(seed),
            next_key: 1,
        }
    }

    pub(super) fn key(&mut self) -> u32 {
        self.next_key += 1;
        self.next_key - 1
    }

    /// Whether nothing is queued or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.landing.is_empty() && self.telling.is_none() && self.reading.is_empty()
    }

    pub(super) fn happened(&mut self, done: Done) {
        self.done.push_back(done);
        self.wake();
    }

    /// Takes a note of the peer, if there is room for it.
    pub(super) fn noted(&mut self, note: u32) -> bool {
        let unread = self.done.iter().filter(|done| matches!(done, Done::Noted(_))).count();
        let has_room = unread < self.notes;
        if has_room {
            self.happened(Done::Noted(note));
        }
        has_room
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn lose(&mut self, fault: Fault) {
        if self.lost.is_none() {
            self.lost = Some(fault);
            // `break_off` gives back memory that was to be opened or read into. Acknowledged parts still
            // land.
            std::mem::take(&mut self.queue).into_iter().for_each(|(_, work)| self.flush(work));
            self.telling = None;
            let reading = std::mem::take(&mut self.reading);
            self.unread.extend(reading.into_iter().map(|read| read.into.into()));
            self.happened(Done::Lost(fault));
        }
    }

    /// Flushes a work request of a lost pair. `break_off` gives its memory back.
    pub(super) fn flush(&mut self, work: Work) {
        match work {
            Work::Open(memory) => {
                let key = self.key();
                self.open.insert(key, memory);
            }
            Work::Read { into, .. } => self.unread.push(into.into()),
            _ => {}
        }
    }

    /// Starts a write: its parts are in flight from now on.
    pub(super) fn write(&mut self, bytes: &[Bytes], to: Remote) {
        let mut address = to.address;
        for bytes in bytes {
            for part in parts(bytes.len(), &mut self.rng) {
                let (to, bytes) = (Remote { address, ..to }, bytes.slice(part));
                address = address.wrapping_add(bytes.len() as u64);
                self.landing.push(Part { to, bytes });
            }
        }
    }

    /// Puts a part into the open memory that its key names.
    pub(super) fn land(&mut self, part: &Part) -> Result<(), Fault> {
        let memory = self.open.get_mut(&part.to.key).ok_or(Fault::Access)?;
        let (start, all) =
            (part.to.address.checked_sub(memory.address()).ok_or(Fault::Access)?, memory.len());
        let start = usize::try_from(start).map_err(|_| Fault::Access)?;
        if start.checked_add(part.bytes.len()).is_none_or(|end| end > all) {
            return Err(Fault::Access);
        }
        let (mut skip, mut bytes) = (start, &part.bytes[..]);
        for claim in memory.claims_mut() {
            let here = claim.len().saturating_sub(skip).min(bytes.len());
            if here > 0 {
                claim[skip..skip + here].copy_from_slice(&bytes[..here]);
            }
            bytes = &bytes[here..];
            skip = skip.saturating_sub(claim.len());
        }
        Ok(())
    }

    /// Starts a read.
    pub(super) fn read(&mut self, id: u64, into: Claim, from: Remote) {
        let todo = parts(into.len(), &mut self.rng);
        self.reading.push_back(Reading { id, into, from, todo });
    }

    /// A random part to fetch, with the index of its read among those in flight.
    pub(super) fn next_part(&mut self) -> Option<(usize, Range<usize>, Remote)> {
        let unfinished: Vec<usize> =
            (0..self.reading.len()).filter(|&at| !self.reading[at].todo.is_empty()).collect();
        let some = self.rng.up_to(unfinished.len().max(1) as u64) as usize - 1;
        let at = *unfinished.get(some)?;
        let read = &mut self.reading[at];
        let some = self.rng.up_to(read.todo.len() as u64) as usize - 1;
        let part = read.todo.swap_remove(some);
        let address = read.from.address.wrapping_add(part.start as u64);
        Some((at, part, Remote { address, ..read.from }))
    }

    /// Stores a fetched part.
    pub(super) fn fetched(&mut self, at: usize, part: Range<usize>, bytes: &[u8]) {
        if let Some(place) = self.reading.get_mut(at).and_then(|read| read.into.get_mut(part)) {
            place.copy_from_slice(bytes);
        }
        self.end_reads();
    }

    /// Completes reads, in the order in which they began.
    pub(super) fn end_reads(&mut self) {
        while self.reading.front().is_some_and(|read| read.todo.is_empty()) {
            let Some(Reading { id, into, .. }) = self.reading.pop_front() else { return };
            self.happened(Done::Read(id, into));
        }
    }

    /// Bytes of the lent memory that this address and key name.
    pub(super) fn fetch(&self, length: usize, from: Remote) -> Result<Bytes, Fault> {
        let lent = self.lent.get(&from.key).ok_or(Fault::Access)?;
        let start = from.address.checked_sub(lent.as_ptr() as u64).ok_or(Fault::Access)?;
        let start = usize::try_from(start).map_err(|_| Fault::Access)?;
        let end = start.checked_add(length).filter(|&end| end <= lent.len()).ok_or(Fault::Access)?;
        Ok(lent.slice(start..end))
    }
}

/// Cuts `length` bytes into up to three parts.
pub(super) fn parts(length: usize, rng: &mut Rng) -> Vec<Range<usize>> {
    if length == 0 {
        return Vec::new();
    }
    let mut cuts: BTreeSet<usize> = (0..2).map(|_| rng.up_to(length as u64) as usize).collect();
    cuts.insert(length);
    let mut start = 0;
    cuts.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect()
}
