//! The sending side of a link that writes: the offered parts, and the pair over which they are written.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use bytes::Bytes;
use thalweg_rdma_proto::{Config, Grant, Job, Mover, Outcome, Task, Time, Verdict};
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Device, Done, Endpoint, Fault, Pair, Remote, Work};
use thalweg_wire::{Range, MAX_CHUNK};

use crate::entry::{Entry, Records, State};
use crate::extent::Extent;
use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::settings::Style;
use crate::sides::{Offered, Sends};
use crate::tracker::Tracker;
use crate::words::{record, Word, RECORD};
use crate::{GRANTS, NOTES};

const SEND: &str = "send update";
/// Number of bytes that may be offered even if the window is small: three chunks. With one chunk in flight at
/// a time, `Taken`, the next offer and its grant take one and a half round trips. Meanwhile another chunk is
/// written, which takes at least one round trip.
const LEAST_OFFERED: u64 = 3 * MAX_CHUNK as u64;

/// The sending side of a link that writes.
pub(crate) struct Outgoing {
    device: Arc<dyn Device>,
    pool: Arc<Pool>,
    pair: Option<Box<dyn Pair>>,
    /// The peer's ring or slot; `None` while a lost pair is being replaced.
    ring: Option<Remote>,
    epoch: u32,
    mover: Mover,
    style: Style,
    entries: BTreeMap<u64, Entry>,
    offered: u64,
    next: u64,
    /// The grant of each work request in flight.
    posted: HashMap<u64, u64>,
    records: Records,
    started: Instant,
    waker: Option<Waker>,
    sent: Arc<AtomicU64>,
    stopped: bool,
}

impl Outgoing {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        pool: Arc<Pool>,
        (pair, ring): (Box<dyn Pair>, Remote),
        (config, style): (Config, Style),
        sent: Arc<AtomicU64>,
    ) -> Result<Self> {
        let records = Records::new(&pool)?;
        Ok(Self {
            device,
            pool,
            pair: Some(pair),
            ring: Some(ring),
            epoch: 0,
            mover: Mover::new(config),
            style,
            entries: BTreeMap::new(),
            offered: 0,
            next: 0,
            posted: HashMap::new(),
            records,
            started: Instant::now(),
            waker: None,
            sent,
            stopped: false,
        })
    }

    fn now(&self) -> Time {
        self.started.elapsed()
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether a work request of this chunk has not completed yet.
    fn flies(&self, number: u64) -> bool {
        self.posted.values().any(|&of| of == number)
    }

    /// Handles the completion of a chunk's last work request in flight. If the chunk was withdrawn or taken, its bytes
    /// are free now.
    fn left(&mut self, number: u64, outbox: &Outbox) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        match entry.state {
            State::Leaving { committed: true } => entry.release(number),
            State::Leaving { committed: false } => {
                outbox.say(&Word::Withdraw { number, committed: false });
                self.remove(number);
            }
            State::Taken => self.remove(number),
            State::Offered | State::Granted => {}
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(mut entry) = self.entries.remove(&number) else { return };
        self.offered -= entry.length;
        entry.bytes = Bytes::new();
        if let Some(staged) = entry.staged.take() {
            self.pool.give(staged);
        }
        entry.release(number);
    }

    /// Handles the grant of memory by the peer.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a chunk that was never offered.
    fn handle_grant(&mut self, number: u64, to: Remote) -> Result<()> {
        if number >= self.next {
            return Err(corrupt("a grant for what was not offered"));
        }
        // A grant that arrives while a lost pair is being replaced belongs to the lost pair. Ignore it.
        if let Some(entry) = self.entries.get_mut(&number).filter(|_| self.ring.is_some()) {
            if matches!(entry.state, State::Offered) {
                entry.state = State::Granted;
                let Remote { address, key } = to;
                self.mover.handle_grant(Grant { number, length: entry.length, address, key });
                self.wake();
            }
        }
        Ok(())
    }

    /// Handles the message that the peer has delivered or dropped a chunk.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for a chunk that was never offered.
    fn handle_taken(&mut self, number: u64) -> Result<()> {
        if number >= self.next {
            return Err(corrupt("word of what was not offered"));
        }
        self.mover.handle_taken(number);
        if !self.flies(number) {
            self.remove(number);
        } else if let Some(entry) = self.entries.get_mut(&number) {
            entry.state = State::Taken;
        }
        self.wake();
        Ok(())
    }

    /// Handles the message that the peer has made its end of the new pair, and its ring.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the device cannot connect to it.
    fn handle_ring(&mut self, epoch: u32, endpoint: &Endpoint, ring: Remote) -> Result<()> {
        if epoch == self.epoch && self.ring.is_none() {
            if let Some(pair) = &mut self.pair {
                pair.connect(endpoint).map_err(|error| refused(&error))?;
                self.ring = Some(ring);
                self.wake();
            }
        }
        Ok(())
    }

    /// Handles the message that the peer's end of the pair is lost.
    ///
    /// # Errors
    /// As [`Self::poll`].
    fn handle_broken(&mut self, epoch: u32, outbox: &Outbox) -> Result<()> {
        if epoch == self.epoch && self.ring.is_some() {
            self.lost(Fault::Flushed, outbox)?;
            self.wake();
        }
        Ok(())
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Written(piece) => {
                self.mover.handle_done(self.now(), piece, Outcome::Done);
                while let Some(number) = self.mover.poll_ended() {
                    if self.style == Style::Slot {
                        outbox.say(&Word::Sent { number });
                    }
                }
                let Some(number) = self.posted.remove(&piece) else { return Ok(()) };
                if let Some(tracker) = self.entries.get(&number).and_then(|entry| entry.tracker.as_ref()) {
                    tracker.written();
                }
                if !self.flies(number) {
                    self.left(number, outbox);
                }
                Ok(())
            }
            Done::Lost(fault) => self.lost(fault, outbox),
            // No other event occurs on a pair that only writes.
            Done::Opened(..) | Done::Closed(..) | Done::Noted(_) | Done::Read(..) => Ok(()),
        }
    }

    /// Handles the loss of the pair: makes another one, or ends the link.
    fn lost(&mut self, fault: Fault, outbox: &Outbox) -> Result<()> {
        if let Some(mut pair) = self.pair.take() {
            pair.break_off();
        }
        self.ring = None;
        let ended = |why: &str| Err(Error::closed(SEND, why));
        if !fault.may_retry() {
            return ended("the peer's device refused a write that was granted (access error)");
        }
        let verdict = self.mover.handle_lost_pair(self.now());
        self.posted.clear();
        let numbers: Vec<u64> = self.entries.keys().copied().collect();
        for number in numbers {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            match entry.state {
                // The peer drops every withdrawn chunk whose commit record it has not seen.
                State::Leaving { committed } => {
                    self.mover.withdraw(number);
                    if !committed {
                        outbox.say(&Word::Withdraw { number, committed });
                    }
                    self.remove(number);
                }
                State::Taken => self.remove(number),
                State::Offered | State::Granted => entry.state = State::Offered,
            }
        }
        if verdict == Verdict::End {
            return ended("three pairs were lost one after the other, and nothing got through");
        }
        let pair = self.device.pair(NOTES).map_err(|error| refused(&error))?;
        self.epoch += 1;
        outbox.say(&Word::Renew { epoch: self.epoch, endpoint: pair.endpoint() });
        self.pair = Some(pair);
        Ok(())
    }

    fn post(&mut self, now: Time, outbox: &Outbox) -> Result<()> {
        while let Some(ring) = self.ring.filter(|_| !self.stopped) {
            let Some(Job { piece, grant, task }) = self.mover.poll_work(now) else { break };
            let (work, bytes) = match task {
                Task::Move(range) => self.write(&grant, range)?,
                Task::Commit(slot) => (self.commit(&grant, ring, slot)?, RECORD as u64),
            };
            let Some(pair) = self.pair.as_mut() else { break };
            pair.post(piece, work).map_err(|error| refused(&error))?;
            self.posted.insert(piece, grant.number);
            self.sent.fetch_add(bytes, Ordering::Relaxed);
            let Some(entry) = self.entries.get(&grant.number) else { continue };
            if let Some(tracker) = &entry.tracker {
                tracker.handed_over(bytes);
            }
            // The checksum need not wait for the last piece's completion.
            if self.style == Style::Slot && self.mover.is_posted(grant.number) {
                outbox.say(&Word::Sum { number: grant.number, sum: entry.sum() });
            }
        }
        Ok(())
    }

    /// The work request for a piece, and how many bytes it sends.
    fn write(&mut self, grant: &Grant, range: Range) -> Result<(Work, u64)> {
        let bytes = self.entries.get(&grant.number).map(|entry| &entry.bytes);
        let part = range.start as usize..range.end as usize;
        let bytes = bytes.filter(|bytes| part.end <= bytes.len()).map(|bytes| bytes.slice(part));
        let bytes =
            bytes.ok_or_else(|| Error::new(ErrorKind::System, SEND, "a granted chunk has no bytes"))?;
        #[cfg(feature = "baselines")]
        if let (Style::Slot | Style::Printed, Some(slot)) = (self.style, self.ring) {
            return self.records.piece(self.style, grant, range, bytes, slot);
        }
        let to = Remote { address: grant.address.wrapping_add(range.start), key: grant.key };
        Ok((Work::Write { bytes: vec![bytes], to }, range.len()))
    }

    /// Sends a range of a chunk again. It is missing because its piece was overwritten in the slot.
    fn handle_missing(&mut self, number: u64, range: Range) -> Result<()> {
        let taken = |entry: &&Entry| matches!(entry.state, State::Taken);
        let Some(entry) = self.entries.get(&number).filter(|entry| !taken(entry)) else { return Ok(()) };
        if range.is_empty() || range.end > entry.length || self.style != Style::Slot {
            return Err(corrupt("a question about what is not in a chunk"));
        }
        self.mover.again(number, range);
        self.wake();
        Ok(())
    }

    /// Handles the message that the peer has read notes, so that there is room for as many more.
    fn handle_noted(&mut self, count: u32) -> Result<()> {
        // Until the peer has joined a new pair, such a message belongs to the lost pair.
        if self.ring.is_some() && !self.mover.handle_noted(count as usize) {
            return Err(corrupt("more notes read than were written"));
        }
        self.wake();
        Ok(())
    }

    fn commit(&mut self, grant: &Grant, ring: Remote, slot: u32) -> Result<Work> {
        let sum = self.entries.get(&grant.number).map_or(0, Entry::sum);
        let bytes = self.records.write(&record(grant.number, sum))?;
        let at = u64::from(slot) * RECORD as u64;
        let to = Remote { address: ring.address.wrapping_add(at), key: ring.key };
        Ok(Work::Note { bytes: vec![bytes], to, note: slot })
    }
}

impl Sends for Outgoing {
    /// Whether `bytes` more bytes may be offered. Two windows may be offered at a time, so that grants arrive
    /// before they are needed.
    fn has_room(&self, bytes: u64) -> bool {
        let most = self.mover.window().saturating_mul(2).max(LEAST_OFFERED);
        self.entries.is_empty() || (self.entries.len() < GRANTS && self.offered.saturating_add(bytes) <= most)
    }

    fn chunks(&self) -> usize {
        self.entries.len()
    }

    fn is_leaving(&self) -> bool {
        self.entries.values().any(|entry| matches!(entry.state, State::Leaving { committed: false }))
    }

    fn offer(
        &mut self,
        extent: Option<Extent>,
        Offered { bytes, staged, chunks }: Offered,
        tracker: &Arc<Tracker>,
        outbox: &Outbox,
    ) -> Result<()> {
        let (number, length) = (self.next, bytes.len() as u64);
        self.next += 1;
        self.offered += length;
        tracker.began(number);
        let (state, tracker) = (State::Offered, Some(tracker.clone()));
        self.entries.insert(number, Entry { state, length, bytes, chunks, staged, tracker });
        match extent {
            Some(extent) => outbox.say(&Word::Offer { number, extent }),
            None => outbox.say(&Word::Ready { number }),
        }
        Ok(())
    }

    fn withdraw(&mut self, number: u64, outbox: &Outbox) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if matches!(entry.state, State::Leaving { .. } | State::Taken) {
            return;
        }
        entry.bytes = Bytes::new();
        let committed = self.mover.withdraw(number);
        entry.state = State::Leaving { committed };
        if committed {
            outbox.say(&Word::Withdraw { number, committed });
        }
        if !self.flies(number) {
            self.left(number, outbox);
        }
    }

    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()> {
        match word {
            Word::Grant { number, to } => self.handle_grant(number, to),
            Word::Taken { number } => self.handle_taken(number),
            Word::Missing { number, range } => self.handle_missing(number, range),
            Word::Noted { count } => self.handle_noted(count),
            Word::Ring { epoch, endpoint, ring } => self.handle_ring(epoch, &endpoint, ring),
            Word::Broken { epoch } => self.handle_broken(epoch, outbox),
            _ => Err(corrupt("a word of another mode")),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Instant>> {
        self.waker = Some(context.waker().clone());
        let mut done = Vec::new();
        while let Some(pair) = self.pair.as_mut().filter(|_| !self.stopped) {
            if pair.poll(context, &mut done).is_pending() {
                break;
            }
            for done in done.drain(..) {
                self.handle(done, outbox)?;
            }
        }
        // Use one value of `now` for both calls. Otherwise a piece could be too early for `post`, and due by
        // the time of `poll_timeout`; it would get no timer.
        let now = self.now();
        self.post(now, outbox)?;
        let next = self.ring.and_then(|_| self.mover.poll_timeout(now));
        Ok(next.map(|at| self.started + at))
    }

    fn stop(&mut self) {
        self.stopped = true;
        self.ring = None;
        if let Some(mut pair) = self.pair.take() {
            pair.break_off();
        }
        self.posted.clear();
        for (number, mut entry) in std::mem::take(&mut self.entries) {
            entry.bytes = Bytes::new();
            entry.release(number);
        }
        self.wake();
    }
}

fn refused(error: &thalweg_verbs::Error) -> Error {
    Error::new(ErrorKind::System, SEND, error.to_string())
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "receive", format!("{what} from the peer of an rdma link"))
}
