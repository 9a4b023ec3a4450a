//! The receiving side of a link that reads. The peer lends it chunks and cannot write anything here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

use thalweg_arena::Claim;
use thalweg_rdma_proto::{Config, Grant, Job, Mover, Outcome, Task, Time, Verdict};
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Device, Done, Endpoint, Fault, Pair, Remote, Work};

use crate::arrivals::Arrivals;
use crate::extent::Part;
use crate::offers::{corrupt, refused, RECEIVE};
use crate::outbox::Outbox;
use crate::parts::Parts;
use crate::pool::Pool;
use crate::sides::{Came, Landing, Receives};
use crate::words::{Word, ONLY};
use crate::NOTES;

/// A part that is being read.
struct Run {
    part: Part,
    sum: u32,
    landing: Landing,
    parts: Parts,
    /// Whether the chunk is still wanted: the peer has not withdrawn it.
    wanted: bool,
}

/// The receiving side of a link that reads.
pub(crate) struct Reading {
    arrivals: Arrivals,
    device: Arc<dyn Device>,
    pair: Box<dyn Pair>,
    /// Whether the pair is connected to the peer's pair. False from a loss until the peer's `Ring`.
    joined: bool,
    epoch: u32,
    mover: Mover,
    /// The checksum and the remote memory of each part that is offered or being placed. The memory is `None` if it
    /// was lent to a pair that is lost.
    lent: BTreeMap<u64, (u32, Option<Remote>)>,
    runs: BTreeMap<u64, Run>,
    /// The chunk of each read in flight.
    posted: HashMap<u64, u64>,
    started: Instant,
}

impl Reading {
    pub(crate) fn new(device: Arc<dyn Device>, pool: Arc<Pool>, pair: Box<dyn Pair>, config: Config) -> Self {
        let pieces = config.pieces.min(device.limits().reads).max(1);
        Self {
            arrivals: Arrivals::new(device.clone(), pool),
            device,
            pair,
            joined: true,
            epoch: 0,
            mover: Mover::new(Config { pieces, slots: 0, notes: 0, ..config }),
            lent: BTreeMap::new(),
            runs: BTreeMap::new(),
            posted: HashMap::new(),
            started: Instant::now(),
        }
    }

    fn now(&self) -> Time {
        self.started.elapsed()
    }

    fn handle_lent(&mut self, number: u64, sum: u32, from: Remote) -> Result<()> {
        // Without a connected pair, this loan belongs to a lost pair. The peer will lend the chunk again.
        let place = self.joined.then_some(from);
        if number >= self.arrivals.offers.count() {
            self.arrivals.lent(number, self.runs.len())?;
            self.lent.insert(number, (sum, place));
        } else if let Some((_, known)) = self.lent.get_mut(&number) {
            *known = place;
        } else {
            self.begin(number, place);
        }
        Ok(())
    }

    /// Starts reading a chunk that has its place, from where the peer lends it.
    fn begin(&mut self, number: u64, from: Option<Remote>) {
        if let (Some(run), Some(Remote { address, key })) = (self.runs.get(&number), from) {
            let length = run.part.bytes;
            self.mover.handle_grant(Grant { number, length, address, key });
        }
    }

    /// Handles the peer's withdrawal of a chunk. Stops reading it, and answers `Taken` once none of its reads
    /// is in flight.
    fn handle_withdraw(&mut self, number: u64, outbox: &Outbox) -> Result<()> {
        self.arrivals.withdraw(number)?;
        if self.lent.remove(&number).is_some() {
            outbox.say(&Word::Taken { number });
        } else if let Some(run) = self.runs.get_mut(&number) {
            run.wanted = false;
            self.mover.withdraw(number);
            self.drop_unwanted(number, outbox);
        } else {
            // The chunk has been read and waits for delivery. No read of it is in flight.
            outbox.say(&Word::Taken { number });
        }
        Ok(())
    }

    /// Drops a chunk that is not wanted, once none of its reads is in flight.
    fn drop_unwanted(&mut self, number: u64, outbox: &Outbox) {
        let over = |run: &Run| !run.wanted;
        if self.posted.values().any(|&of| of == number) || !self.runs.get(&number).is_some_and(over) {
            return;
        }
        if let Some(Run { part, landing, .. }) = self.runs.remove(&number) {
            self.arrivals.stock.done(part.bytes, landing);
            outbox.say(&Word::Taken { number });
        }
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Read(piece, part) => {
                let Some(number) = self.posted.remove(&piece) else { return Ok(()) };
                if let Some(run) = self.runs.get_mut(&number) {
                    run.parts.put(part);
                }
                self.mover.handle_done(self.now(), piece, Outcome::Done);
                self.drop_unwanted(number, outbox);
                while let Some(number) = self.mover.poll_ended() {
                    self.over(number)?;
                }
                Ok(())
            }
            Done::Lost(fault) => self.lost(fault, outbox),
            Done::Written(_) | Done::Opened(..) | Done::Closed(..) | Done::Noted(_) => Ok(()),
        }
    }

    /// Called when all of a chunk has been read. Queues the chunk for delivery.
    fn over(&mut self, number: u64) -> Result<()> {
        let Some(Run { part, sum, landing, parts, .. }) = self.runs.remove(&number) else { return Ok(()) };
        self.mover.handle_taken(number);
        let bytes = parts.whole();
        let bytes =
            bytes.ok_or_else(|| Error::new(ErrorKind::System, RECEIVE, "a part of a chunk is missing"))?;
        self.arrivals.push(Came { number, part, sum, bytes: vec![bytes], landing, copies: 0 });
        Ok(())
    }

    /// Handles the loss of the pair: makes another one, or ends the link.
    fn lost(&mut self, fault: Fault, outbox: &Outbox) -> Result<()> {
        for (_, memory) in self.pair.break_off() {
            memory.into_claims().into_iter().for_each(|part| self.put_back(part));
        }
        self.joined = false;
        self.lent.values_mut().for_each(|(_, from)| *from = None);
        let ended = |why: &str| Err(Error::closed(RECEIVE, why));
        if !fault.may_retry() {
            return ended("the peer's device refused a read of what was lent (access error)");
        }
        let verdict = self.mover.handle_lost_pair(self.now());
        self.posted.clear();
        for number in self.runs.keys().copied().collect::<Vec<_>>() {
            self.drop_unwanted(number, outbox);
        }
        if verdict == Verdict::End {
            return ended("three pairs were lost one after the other, and nothing got through");
        }
        self.pair = self.device.pair(NOTES).map_err(|error| refused(&error))?;
        self.epoch += 1;
        outbox.say(&Word::Renew { pair: ONLY, epoch: self.epoch, endpoint: self.pair.endpoint() });
        Ok(())
    }

    fn put_back(&mut self, part: Claim) {
        if let Some(run) = self.runs.values_mut().find(|run| run.parts.has(&part)) {
            run.parts.put(part);
        }
    }

    fn handle_ring(&mut self, epoch: u32, endpoint: &Endpoint) -> Result<()> {
        if epoch == self.epoch && !self.joined {
            self.pair.connect(endpoint).map_err(|error| refused(&error))?;
            self.joined = true;
        }
        Ok(())
    }

    fn post(&mut self, now: Time) -> Result<()> {
        while self.joined {
            let Some(Job { piece, grant, task: Task::Move(range) }) = self.mover.poll_work(now) else {
                break;
            };
            let Grant { number, address, key, .. } = grant;
            let part = self.runs.get_mut(&number).and_then(|run| run.parts.take(range));
            let into =
                part.ok_or_else(|| Error::new(ErrorKind::System, RECEIVE, "a chunk to read has no place"))?;
            let from = Remote { address: address.wrapping_add(range.start), key };
            self.pair.post(piece, Work::Read { into, from }).map_err(|error| refused(&error))?;
            self.posted.insert(piece, number);
        }
        Ok(())
    }
}

impl Receives for Reading {
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()> {
        match word {
            Word::Offer { number, extent } => self.arrivals.offers.add(number, extent)?,
            Word::Lent { number, sum, from } => self.handle_lent(number, sum, from)?,
            Word::Withdraw { number, .. } => self.handle_withdraw(number, outbox)?,
            Word::Ring { pair: ONLY, epoch, endpoint, .. } => self.handle_ring(epoch, &endpoint)?,
            Word::Broken { pair: ONLY, epoch } if epoch == self.epoch && self.joined => {
                self.lost(Fault::Flushed, outbox)?;
            }
            Word::Broken { pair: ONLY, .. } => {}
            _ => return Err(corrupt("a word of another mode")),
        }
        self.arrivals.wake();
        Ok(())
    }

    fn drive(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Instant>> {
        self.arrivals.driver_waits(context);
        let (mut done, mut any) = (Vec::new(), false);
        while self.pair.poll(context, &mut done).is_ready() {
            any = true;
            for done in done.drain(..) {
                self.handle(done, outbox)?;
            }
        }
        // Use one value of `now` for both calls. Otherwise a read could be too early for `post`, and due by
        // the time of `poll_timeout`; it would get no timer.
        let now = self.now();
        self.post(now)?;
        if any {
            self.arrivals.wake_receiver();
        }
        let next = if self.joined { self.mover.poll_timeout(now) } else { None };
        Ok(next.map(|at| self.started + at))
    }

    fn arrivals(&mut self) -> &mut Arrivals {
        &mut self.arrivals
    }

    fn grant_memory(
        &mut self,
        number: u64,
        part: Part,
        places: Vec<Option<Claim>>,
        _: &Outbox,
    ) -> Result<()> {
        let Some((sum, from)) = self.lent.remove(&number) else { return Ok(()) };
        let (memory, landing) = self.arrivals.stock.land(part.bytes, places)?;
        // Senders that lend offer parts of one chunk, so the memory is one claim.
        let mut claims = memory.into_claims();
        let claim =
            claims.pop().filter(|_| claims.is_empty()).ok_or_else(|| corrupt("a loan of many chunks"))?;
        self.runs.insert(number, Run { part, sum, landing, parts: Parts::new(claim), wanted: true });
        self.begin(number, from);
        self.arrivals.wake_driver();
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.runs.values().all(|run| run.wanted)
    }

    fn stop(&mut self) {
        drop(self.pair.break_off());
        self.runs.clear();
        self.arrivals.stop();
    }
}
