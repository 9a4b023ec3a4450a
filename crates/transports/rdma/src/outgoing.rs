//! The sending side of a link that writes: the offered parts, and the pairs over which they are written.
//!
//! The peer grants memory to one pair, so a part's pieces and its commit record all go over that pair. A pair that
//! is lost, or waits for a retransmission, delays the parts that were granted to it, and no others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use bytes::Bytes;
use thalweg_rdma_proto::{Config, Grant, Job, Outcome, Task, Time, Verdict};
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Device, Done, Endpoint, Fault, Pair, Remote, Work};
use thalweg_wire::{Range, MAX_CHUNK};

use crate::entry::{Entry, State};
use crate::extent::Extent;
use crate::lane::Lane;
use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::settings::Style;
use crate::sides::{Offered, Sends};
use crate::tracker::Tracker;
use crate::words::{record, Word, RECORD};
use crate::GRANTS;

const SEND: &str = "send update";
/// Parts that may be offered even if the windows are small, beside one for each pair. With one chunk in flight at a time,
/// `Taken`, the next offer and its grant take one and a half round trips. Meanwhile another chunk is written, which takes
/// at least one round trip. More would not help: a part is bound to a pair once it is granted, and a pair that is slow
/// then holds it.
const SPARE: usize = 2;
/// Number of bytes that may be offered even if the windows are small.
const LEAST_OFFERED: u64 = (1 + SPARE as u64) * MAX_CHUNK as u64;

/// The sending side of a link that writes.
pub(crate) struct Outgoing {
    device: Arc<dyn Device>,
    pool: Arc<Pool>,
    /// One for each pair.
    lanes: Vec<Lane>,
    style: Style,
    entries: BTreeMap<u64, Entry>,
    offered: u64,
    next: u64,
    started: Instant,
    waker: Option<Waker>,
    sent: Arc<AtomicU64>,
    stopped: bool,
}

impl Outgoing {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        pool: Arc<Pool>,
        pairs: Vec<(Box<dyn Pair>, Remote)>,
        (config, style): (Config, Style),
        sent: Arc<AtomicU64>,
    ) -> Result<Self> {
        let count = pairs.len();
        let lane = |(number, pair)| Lane::new((number, count), pair, config, &pool);
        let lanes = (0..).zip(pairs).map(lane).collect::<Result<Vec<Lane>>>()?;
        Ok(Self {
            device,
            pool,
            lanes,
            style,
            entries: BTreeMap::new(),
            offered: 0,
            next: 0,
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

    /// Index of the pair that a part was granted to.
    fn pair_of(&self, number: u64) -> Option<usize> {
        self.entries.get(&number)?.pair
    }

    /// Whether a work request of this chunk has not completed yet.
    fn flies(&self, number: u64) -> bool {
        self.pair_of(number).is_some_and(|pair| self.lanes[pair].flies(number))
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`] for a pair that the link does not have.
    fn index(&self, pair: u8) -> Result<usize> {
        let index = usize::from(pair);
        let known = index < self.lanes.len();
        known.then_some(index).ok_or_else(|| corrupt("a pair that the link does not have"))
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
    /// [`ErrorKind::Corrupt`] for a chunk that was never offered, or that was granted to another pair before: that
    /// pair may have written some of it already.
    fn handle_grant(&mut self, number: u64, pair: u8, to: Remote) -> Result<()> {
        let pair = self.index(pair)?;
        if number >= self.next {
            return Err(corrupt("a grant for what was not offered"));
        }
        let lane = &mut self.lanes[pair];
        // A grant that arrives while a lost pair is being replaced belongs to the lost pair. Ignore it.
        if let Some(entry) = self.entries.get_mut(&number).filter(|_| lane.ring.is_some()) {
            if matches!(entry.state, State::Offered) {
                if *entry.pair.get_or_insert(pair) != pair {
                    return Err(corrupt("a grant to another pair"));
                }
                entry.state = State::Granted;
                let Remote { address, key } = to;
                lane.mover.handle_grant(Grant { number, length: entry.length, address, key });
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
        if let Some(pair) = self.pair_of(number) {
            self.lanes[pair].mover.handle_taken(number);
        }
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
    fn handle_ring(&mut self, pair: u8, epoch: u32, endpoint: &Endpoint, ring: Remote) -> Result<()> {
        let pair = self.index(pair)?;
        if self.lanes[pair].connect(epoch, endpoint, ring)? {
            self.wake();
        }
        Ok(())
    }

    /// Handles the message that the peer's end of the pair is lost. That end may be lost before its ring is open. Then no
    /// `Ring` follows, so the pair is replaced whether it has a ring or not.
    ///
    /// # Errors
    /// As [`Self::poll`].
    fn handle_broken(&mut self, pair: u8, epoch: u32, outbox: &Outbox) -> Result<()> {
        let pair = self.index(pair)?;
        if self.lanes[pair].is_current(epoch) {
            self.lost(pair, Fault::Flushed, outbox)?;
            self.wake();
        }
        Ok(())
    }

    fn handle(&mut self, pair: usize, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Written(piece) => {
                let now = self.now();
                let lane = &mut self.lanes[pair];
                lane.mover.handle_done(now, piece, Outcome::Done);
                while let Some(number) = lane.mover.poll_ended() {
                    if self.style == Style::Slot {
                        outbox.say(&Word::Sent { number });
                    }
                }
                let Some(number) = lane.posted.remove(&piece) else { return Ok(()) };
                if let Some(tracker) = self.entries.get(&number).and_then(|entry| entry.tracker.as_ref()) {
                    tracker.written();
                }
                if !self.flies(number) {
                    self.left(number, outbox);
                }
                Ok(())
            }
            Done::Lost(fault) => self.lost(pair, fault, outbox),
            // No other event occurs on a pair that only writes.
            Done::Opened(..) | Done::Closed(..) | Done::Noted(_) | Done::Read(..) => Ok(()),
        }
    }

    /// Handles the loss of a pair: makes another one, or ends the link. The parts of other pairs go on.
    fn lost(&mut self, pair: usize, fault: Fault, outbox: &Outbox) -> Result<()> {
        let now = self.now();
        let lane = &mut self.lanes[pair];
        lane.break_off();
        let ended = |why: &str| Err(Error::closed(SEND, why));
        if !fault.may_retry() {
            return ended("the peer's device refused a write that was granted (access error)");
        }
        let verdict = lane.lose(now);
        let of = self.entries.iter().filter(|(_, entry)| entry.pair == Some(pair));
        for number in of.map(|(&number, _)| number).collect::<Vec<_>>() {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            match entry.state {
                // The peer drops every withdrawn chunk whose commit record it has not seen.
                State::Leaving { committed } => {
                    self.lanes[pair].mover.withdraw(number);
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
        self.lanes[pair].renew(&self.device, outbox)
    }

    fn post(&mut self, pair: usize, now: Time, outbox: &Outbox) -> Result<()> {
        while let Some(ring) = self.lanes[pair].ring.filter(|_| !self.stopped) {
            let Some(Job { piece, grant, task }) = self.lanes[pair].mover.poll_work(now) else { break };
            let (work, bytes) = match task {
                Task::Move(range) => self.write(&grant, range)?,
                Task::Commit(slot) => (self.commit(pair, &grant, ring, slot)?, RECORD as u64),
            };
            if !self.lanes[pair].post(piece, grant.number, work)? {
                break;
            }
            self.sent.fetch_add(bytes, Ordering::Relaxed);
            let Some(entry) = self.entries.get(&grant.number) else { continue };
            if let Some(tracker) = &entry.tracker {
                tracker.handed_over(bytes);
            }
            // The checksum need not wait for the last piece's completion.
            if self.style == Style::Slot && self.lanes[pair].mover.is_posted(grant.number) {
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
        // These modes have one pair.
        #[cfg(feature = "baselines")]
        if let (Style::Slot | Style::Printed, Some(lane)) = (self.style, self.lanes.first_mut()) {
            if let Some(slot) = lane.ring {
                return lane.records.piece(self.style, grant, range, bytes, slot);
            }
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
        if let Some(pair) = entry.pair {
            self.lanes[pair].mover.again(number, range);
        }
        self.wake();
        Ok(())
    }

    /// Handles the message that the peer has read notes, so that there is room for as many more.
    fn handle_noted(&mut self, count: u32) -> Result<()> {
        // The mode with a slot has one pair. Until the peer has joined a new pair, such a message belongs to the
        // lost pair.
        let lane = self.lanes.first_mut().filter(|lane| lane.ring.is_some());
        if lane.is_some_and(|lane| !lane.mover.handle_noted(count as usize)) {
            return Err(corrupt("more notes read than were written"));
        }
        self.wake();
        Ok(())
    }

    fn commit(&mut self, pair: usize, grant: &Grant, ring: Remote, slot: u32) -> Result<Work> {
        let sum = self.entries.get(&grant.number).map_or(0, Entry::sum);
        let bytes = self.lanes[pair].records.write(&record(grant.number, sum))?;
        let at = u64::from(slot) * RECORD as u64;
        let to = Remote { address: ring.address.wrapping_add(at), key: ring.key };
        Ok(Work::Note { bytes: vec![bytes], to, note: slot })
    }
}

impl Sends for Outgoing {
    /// Two windows of all pairs may be offered at a time, so that grants arrive before they are needed. While windows are
    /// small, each pair may have a chunk nevertheless, if that takes no more memory here.
    fn has_room(&self, bytes: u64, copied: bool) -> bool {
        let windows = self.lanes.iter().fold(0_u64, |sum, lane| sum.saturating_add(lane.mover.window()));
        let (others, all) = (self.entries.len(), self.offered.saturating_add(bytes));
        let few = self.lanes.len() + SPARE;
        let is_few = !copied && others < few && all <= few as u64 * u64::from(MAX_CHUNK);
        let fits = is_few || all <= windows.saturating_mul(2).max(LEAST_OFFERED);
        others == 0 || (others < GRANTS && fits)
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
        let (state, pair, tracker) = (State::Offered, None, Some(tracker.clone()));
        self.entries.insert(number, Entry { state, pair, length, bytes, chunks, staged, tracker });
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
        let committed = entry.pair.is_some_and(|pair| self.lanes[pair].mover.withdraw(number));
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
            Word::Grant { number, pair, to } => self.handle_grant(number, pair, to),
            Word::Taken { number } => self.handle_taken(number),
            Word::Missing { number, range } => self.handle_missing(number, range),
            Word::Noted { count } => self.handle_noted(count),
            Word::Ring { pair, epoch, endpoint, ring } => self.handle_ring(pair, epoch, &endpoint, ring),
            Word::Broken { pair, epoch } => self.handle_broken(pair, epoch, outbox),
            _ => Err(corrupt("a word of another mode")),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Instant>> {
        self.waker = Some(context.waker().clone());
        let mut done = Vec::new();
        let pairs = 0..self.lanes.len();
        for pair in pairs.clone() {
            while !self.stopped && self.lanes[pair].poll(context, &mut done) {
                for done in done.drain(..) {
                    self.handle(pair, done, outbox)?;
                }
            }
        }
        // Use one value of `now` for both calls. Otherwise a piece could be too early for `post`, and due by
        // the time of `poll_timeout`; it would get no timer.
        let now = self.now();
        pairs.into_iter().try_for_each(|pair| self.post(pair, now, outbox))?;
        let connected = self.lanes.iter_mut().filter(|lane| lane.ring.is_some());
        let next = connected.filter_map(|lane| lane.mover.poll_timeout(now)).min();
        Ok(next.map(|at| self.started + at))
    }

    fn stop(&mut self) {
        self.stopped = true;
        for lane in &mut self.lanes {
            lane.break_off();
            lane.posted.clear();
        }
        for (number, mut entry) in std::mem::take(&mut self.entries) {
            entry.bytes = Bytes::new();
            entry.release(number);
        }
        self.wake();
    }
}

pub(crate) fn refused(error: &thalweg_verbs::Error) -> Error {
    Error::new(ErrorKind::System, SEND, error.to_string())
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "receive", format!("{what} from the peer of an rdma link"))
}

#[cfg(test)]
#[path = "outgoing_tests.rs"]
mod tests;
