//! The receiving side of FedRDMA-E as printed (section 3.2), for comparison only: the header is the first bytes of the
//! memory, and the receiver polls for it. Once it is there, all is said to be there.
//!
//! It need not be: the header is visible before the end of its own piece. What the rule would have taken is taken then, as a
//! copy, and its checksum says whether it was too early. The memory is revoked when the commit record has come, behind all
//! that was written: so a late write meets no closed key.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use thalweg_arena::{Arena, Claim};
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Device, Done, Endpoint, Memory, Pair, Work};
use thalweg_wire::{FrameHeader, Range};

use crate::offers::{corrupt, refused, Offers, RECEIVE};
use crate::outbox::Outbox;
use crate::piece::Piece;
use crate::pool::Pool;
use crate::sides::{Came, Landing, Receives};
use crate::stock::Stock;
use crate::words::{recorded, Word, RECORD};
use crate::NOTES;

/// How often it is looked whether a header has come.
const EVERY: Duration = Duration::from_millis(1);
/// The work request that opens what a new pair is told of first.
const RING: u64 = u64::MAX;

/// A chunk that is written to memory of the link's own.
struct Run {
    header: FrameHeader,
    memory: Arena,
    /// By which the peer writes to it.
    key: Option<u32>,
    /// What is taken when its header is seen.
    bytes: Claim,
    landing: Landing,
    seen: bool,
    /// Whether the commit record has come.
    sent: bool,
    /// The peer has withdrawn it, and committed it before.
    trailing: bool,
    wanted: bool,
    closing: bool,
}

/// The receiving side.
pub(crate) struct Printed {
    stock: Stock,
    pair: Option<Box<dyn Pair>>,
    /// The key to memory that every pair is told of first; `None` while it is opened.
    ring: Option<u32>,
    ring_address: u64,
    epoch: u32,
    offers: Offers,
    runs: BTreeMap<u64, Run>,
    came: VecDeque<Came>,
    /// Of the driver, and of whoever receives.
    wakers: [Option<Waker>; 2],
}

impl Printed {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        pool: Arc<Pool>,
        (pair, ring, ring_address): (Box<dyn Pair>, u32, usize),
    ) -> Self {
        Self {
            stock: Stock::new(device, pool),
            pair: Some(pair),
            ring: Some(ring),
            ring_address: ring_address as u64,
            epoch: 0,
            offers: Offers::default(),
            runs: BTreeMap::new(),
            came: VecDeque::new(),
            wakers: [None, None],
        }
    }

    fn wake(&mut self) {
        self.wakers.iter_mut().filter_map(Option::take).for_each(Waker::wake);
    }

    fn post(&mut self, id: u64, work: Work) -> Result<()> {
        self.pair.as_mut().map_or(Ok(()), |pair| pair.post(id, work)).map_err(|error| refused(&error))
    }

    fn handle_offer(&mut self, number: u64, header: FrameHeader) -> Result<()> {
        self.offers.add(number, header, self.runs.len() + self.came.len())?;
        Ok(())
    }

    fn handle_withdraw(&mut self, number: u64, committed: bool) -> Result<()> {
        self.offers.withdraw(number)?;
        if let Some(run) = self.runs.get_mut(&number) {
            run.wanted &= committed;
            run.trailing = true;
        }
        self.close(number)
    }

    /// Revokes what has been sent, or is not wanted, as soon as it is open.
    fn close(&mut self, number: u64) -> Result<()> {
        let Some(run) = self.runs.get_mut(&number) else { return Ok(()) };
        let over = !run.wanted || (run.seen && run.sent);
        match run.key {
            Some(key) if over && !run.closing => {
                run.closing = true;
                self.post(number, Work::Close { key })
            }
            _ => Ok(()),
        }
    }

    /// A chunk's memory is reached by nobody any more.
    fn over(&mut self, number: u64) {
        let Some(Run { header, memory, bytes, landing, seen, wanted, .. }) = self.runs.remove(&number) else {
            return;
        };
        self.stock.pool.give(memory);
        if wanted && seen {
            self.came.push_back(Came { number, header, bytes, landing, copies: 1 });
        } else {
            drop(bytes);
            self.stock.done(header.length() as u64, landing);
        }
    }

    /// The printed rule: a valid header means that all is there. What is there is taken.
    fn look(&mut self) -> Result<()> {
        let Some(pair) = &self.pair else { return Ok(()) };
        let mut found = Vec::new();
        for (&number, run) in self.runs.iter_mut().filter(|(_, run)| !run.seen && !run.closing) {
            let (Some(key), mut header) = (run.key, [0; RECORD]) else { continue };
            let there = pair.peek(key, 0, &mut header);
            if there && Piece::decode(&header).is_some_and(|piece| piece.number == number) {
                run.seen = pair.peek(key, RECORD, &mut run.bytes);
                found.push(number);
            }
        }
        found.into_iter().try_for_each(|number| self.close(number))
    }

    /// All of a chunk is there.
    fn noted(&mut self, slot: u32) -> Result<()> {
        let (mut record, at) = ([0; RECORD], slot as usize * RECORD);
        let ring = self.ring.zip(self.pair.as_ref());
        let found = ring.is_some_and(|(key, pair)| pair.peek(key, at, &mut record));
        let run = self.runs.get_mut(&recorded(&record)).filter(|_| found);
        let run = run.ok_or_else(|| corrupt("a commit record of nothing that was granted"))?;
        run.sent = true;
        self.look()?;
        self.close(recorded(&record))
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Opened(RING, ring) => {
                let Some(pair) = &self.pair else { return Ok(()) };
                self.ring = Some(ring.key);
                outbox.say(&Word::Ring { epoch: self.epoch, endpoint: pair.endpoint(), ring });
            }
            Done::Opened(number, to) => {
                let Some(run) = self.runs.get_mut(&number) else { return Ok(()) };
                run.key = Some(to.key);
                if run.wanted {
                    outbox.say(&Word::Grant { number, to });
                }
                self.close(number)?;
            }
            Done::Closed(number, memory) => {
                drop(memory);
                self.over(number);
            }
            Done::Lost(fault) if fault.may_retry() => outbox.say(&Word::Broken { epoch: self.epoch }),
            Done::Lost(_) => return Err(Error::closed(RECEIVE, "the device broke the pair (access error)")),
            Done::Noted(slot) => self.noted(slot)?,
            Done::Written(_) | Done::Read(..) => {}
        }
        Ok(())
    }

    /// The sender has lost its pair and made another: joins it, and opens to it what it may still write to.
    fn handle_renew(&mut self, epoch: u32, endpoint: &Endpoint) -> Result<()> {
        if epoch <= self.epoch {
            return Err(corrupt("an old pair"));
        }
        self.look()?;
        let open = self.pair.take().map(|mut pair| pair.break_off()).unwrap_or_default();
        let mut pair = self.stock.device.pair(NOTES).map_err(|error| refused(&error))?;
        pair.connect(endpoint).map_err(|error| refused(&error))?;
        (self.epoch, self.ring, self.pair) = (epoch, None, Some(pair));
        let mut memory: BTreeMap<u64, Memory> = open
            .into_iter()
            .filter_map(|(_, memory)| memory.into_claims().pop())
            .map(|claim| (claim.as_ptr() as u64, claim.into()))
            .collect();
        let ring = memory.remove(&self.ring_address).ok_or_else(|| corrupt("a pair that was not whole"))?;
        self.post(RING, Work::Open(ring))?;
        for number in self.runs.keys().copied().collect::<Vec<_>>() {
            let Some(run) = self.runs.get_mut(&number) else { continue };
            let claim = memory.remove(&(run.memory.as_ptr() as u64));
            match claim {
                Some(memory) if run.wanted && !run.seen && !run.trailing => {
                    (run.key, run.sent) = (None, false);
                    self.post(number, Work::Open(memory))?;
                }
                memory => {
                    drop(memory);
                    self.over(number);
                }
            }
        }
        Ok(())
    }
}

impl Receives for Printed {
    fn handle_word(&mut self, word: Word, _: &Outbox) -> Result<()> {
        match word {
            Word::Offer { number, header } => self.handle_offer(number, header)?,
            Word::Withdraw { number, committed } => self.handle_withdraw(number, committed)?,
            Word::Renew { epoch, endpoint } => self.handle_renew(epoch, &endpoint)?,
            _ => return Err(corrupt("a word of another mode")),
        }
        self.wake();
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, _: &Outbox) -> Result<()> {
        self.wakers[1] = Some(context.waker().clone());
        Ok(())
    }

    fn drive(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Instant>> {
        self.wakers[0] = Some(context.waker().clone());
        let (mut done, before) = (Vec::new(), self.came.len());
        while let Some(pair) = &mut self.pair {
            if pair.poll(context, &mut done).is_pending() {
                break;
            }
            for done in done.drain(..) {
                self.handle(done, outbox)?;
            }
        }
        self.look()?;
        if self.came.len() > before {
            self.wakers[1].take().into_iter().for_each(Waker::wake);
        }
        let waits = self.runs.values().any(|run| run.key.is_some() && !run.seen && !run.closing);
        Ok(waits.then(|| Instant::now() + EVERY))
    }

    fn next_came(&mut self) -> Option<Came> {
        self.came.pop_front()
    }

    fn offers(&self) -> u64 {
        self.offers.count()
    }

    fn next_offer(&mut self, offers: u64) -> Option<(u64, FrameHeader)> {
        // While pairs are exchanged nothing can be opened.
        self.ring.and_then(|_| self.offers.next(offers, &mut self.stock))
    }

    fn grant(&mut self, number: u64, header: FrameHeader, place: Option<Claim>, _: &Outbox) -> Result<()> {
        let length = header.length() as u64;
        if !self.offers.placed(number, length, &mut self.stock) {
            return Ok(()); // it was withdrawn meanwhile
        }
        let (bytes, landing) = self.stock.keep(length, place)?;
        let memory = self.stock.pool.take(RECORD + length as usize)?;
        let claim = memory.claim(Range::new(0, RECORD as u64 + length));
        let mut claim = claim.map_err(|e| Error::new(ErrorKind::System, RECEIVE, e.to_string()))?;
        // A header of an earlier chunk would be taken for this one's.
        claim[..RECORD].fill(0);
        let (seen, sent, trailing, wanted, closing) = (false, false, false, true, false);
        let run = Run { header, memory, key: None, bytes, landing, seen, sent, trailing, wanted, closing };
        self.runs.insert(number, run);
        self.post(number, Work::Open(claim.into()))?;
        self.wakers[0].take().into_iter().for_each(Waker::wake);
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.runs.values().all(|run| run.wanted && !run.seen && !run.trailing)
    }

    fn done(&mut self, length: u64, landing: Landing) {
        self.stock.done(length, landing);
        self.wake();
    }

    fn stop(&mut self) {
        if let Some(mut pair) = self.pair.take() {
            drop(pair.break_off());
        }
        self.offers.clear();
        self.runs.clear();
        self.came.clear();
        self.wake();
    }
}

#[cfg(test)]
#[path = "printed_tests.rs"]
mod tests;
