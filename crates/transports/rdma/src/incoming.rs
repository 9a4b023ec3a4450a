//! The receiving side of a link: chunks that the peer offers, memory that it may write them to, and what it has committed.
//!
//! A chunk is offered, placed, granted, written, committed, revoked, stored. The peer's key to the memory is invalid before
//! anybody looks at the bytes, so a late write changes none that are used.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use thalweg_arena::Claim;
use thalweg_transport::{Error, Result};
use thalweg_verbs::{Device, Done, Endpoint, Memory, Pair, Remote, Work};
use thalweg_wire::FrameHeader;

use crate::offers::{corrupt, refused, Offers, RECEIVE};
use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::settings::SLOTS;
use crate::sides::{Came, Landing, Receives};
use crate::stock::Stock;
use crate::words::{recorded, Word, RECORD};
use crate::NOTES;

/// The ring's work request; grants have their numbers.
const RING: u64 = u64::MAX;

/// How a grant stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Open { key: u32 },
    Closing,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The peer writes to it.
    Awaited,
    /// The peer has withdrawn it, and committed it before.
    Trailing,
    /// The peer has withdrawn it.
    Withdrawn,
    /// The peer has committed it.
    Committed,
}

struct Granted {
    header: FrameHeader,
    landing: Landing,
    address: usize,
    state: State,
    fate: Fate,
}

/// The receiving side.
pub(crate) struct Incoming {
    stock: Stock,
    pair: Option<Box<dyn Pair>>,
    /// The key to the ring; `None` while it is opened.
    ring: Option<u32>,
    ring_address: usize,
    epoch: u32,
    offers: Offers,
    grants: BTreeMap<u64, Granted>,
    came: VecDeque<Came>,
    waker: Option<Waker>,
}

/// Memory by where it begins. All of it was claimed at once.
fn claim_of(memory: Memory) -> Option<(usize, Claim)> {
    let claim = memory.into_claims().pop()?;
    Some((claim.as_ptr() as usize, claim))
}

impl Incoming {
    /// Over a pair to which the ring at `ring_address` is open by a key.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        pool: Arc<Pool>,
        (pair, ring, ring_address): (Box<dyn Pair>, u32, usize),
    ) -> Self {
        Self {
            stock: Stock::new(device, pool),
            pair: Some(pair),
            ring: Some(ring),
            ring_address,
            epoch: 0,
            offers: Offers::default(),
            grants: BTreeMap::new(),
            came: VecDeque::new(),
            waker: None,
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`] for numbers out of order, or more offers than a sender may have.
    fn handle_offer(&mut self, number: u64, header: FrameHeader) -> Result<()> {
        self.offers.add(number, header, self.grants.len() + self.came.len())?;
        self.wake();
        Ok(())
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`] for what was never offered.
    fn handle_withdraw(&mut self, number: u64, committed: bool) -> Result<()> {
        self.offers.withdraw(number)?;
        if let Some(grant) = self.grants.get_mut(&number).filter(|grant| grant.fate == Fate::Awaited) {
            grant.fate = if committed { Fate::Trailing } else { Fate::Withdrawn };
            if grant.fate == Fate::Withdrawn {
                self.close(number)?;
            }
        }
        self.wake();
        Ok(())
    }

    /// The sender has lost its pair and made another: joins it, and opens to it what it may still write to.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the device cannot, [`ErrorKind::Corrupt`] for what was committed wrongly.
    fn handle_renew(&mut self, epoch: u32, endpoint: &Endpoint, outbox: &Outbox) -> Result<()> {
        if epoch <= self.epoch {
            return Err(corrupt("an old pair"));
        }
        self.take_notes(outbox)?;
        let open = self.pair.take().map(|mut pair| pair.break_off()).unwrap_or_default();
        let mut memory: BTreeMap<usize, Claim> =
            open.into_iter().filter_map(|(_, memory)| claim_of(memory)).collect();
        let mut pair = self.stock.device.pair(NOTES).map_err(|error| refused(&error))?;
        pair.connect(endpoint).map_err(|error| refused(&error))?;
        (self.epoch, self.ring, self.pair) = (epoch, None, Some(pair));
        let ring = memory.remove(&self.ring_address).ok_or_else(|| corrupt("a pair that was not whole"))?;
        self.open(RING, ring)?;
        for (number, mut grant) in std::mem::take(&mut self.grants).into_iter().rev() {
            let claim = memory.remove(&grant.address);
            match (grant.fate, claim) {
                (Fate::Awaited, Some(claim)) => {
                    grant.state = State::Opening;
                    self.grants.insert(number, grant);
                    self.open(number, claim)?;
                }
                (fate, claim) => self.over(number, grant, claim.filter(|_| fate == Fate::Committed)),
            }
        }
        self.wake();
        Ok(())
    }

    /// What was noted before the pair was lost counts.
    fn take_notes(&mut self, outbox: &Outbox) -> Result<()> {
        let (mut done, mut context) = (Vec::new(), Context::from_waker(Waker::noop()));
        while let Some(pair) = &mut self.pair {
            if pair.poll(&mut context, &mut done).is_pending() {
                break;
            }
            for done in done.drain(..).filter(|done| !matches!(done, Done::Lost(_))) {
                self.handle(done, outbox)?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Opened(RING, ring) => {
                let Some(pair) = &self.pair else { return Ok(()) };
                self.ring = Some(ring.key);
                outbox.say(&Word::Ring { epoch: self.epoch, endpoint: pair.endpoint(), ring });
            }
            Done::Opened(number, to) => self.opened(number, to, outbox)?,
            Done::Noted(slot) => self.noted(slot)?,
            Done::Closed(number, memory) => {
                let claim = claim_of(memory).map(|(_, claim)| claim);
                if let Some(grant) = self.grants.remove(&number) {
                    let committed = grant.fate == Fate::Committed;
                    self.over(number, grant, claim.filter(|_| committed));
                }
            }
            Done::Lost(fault) if fault.may_retry() => outbox.say(&Word::Broken { epoch: self.epoch }),
            Done::Lost(_) => return Err(Error::closed(RECEIVE, "the device broke the pair (access error)")),
            Done::Written(_) | Done::Read(..) => {}
        }
        Ok(())
    }

    fn opened(&mut self, number: u64, to: Remote, outbox: &Outbox) -> Result<()> {
        let Some(grant) = self.grants.get_mut(&number) else { return Ok(()) };
        grant.state = State::Open { key: to.key };
        if grant.fate == Fate::Withdrawn {
            return self.close(number);
        }
        outbox.say(&Word::Grant { number, to });
        Ok(())
    }

    /// A record was written: whose it is has to be granted, and is revoked now.
    fn noted(&mut self, slot: u32) -> Result<()> {
        let wrong = || corrupt("a commit record of nothing that was granted");
        let mut record = [0; RECORD];
        let at = slot as usize * RECORD;
        let found = (slot as usize) < SLOTS
            && self.ring.zip(self.pair.as_ref()).is_some_and(|(key, pair)| pair.peek(key, at, &mut record));
        if !found {
            return Err(wrong());
        }
        let number = recorded(&record);
        let grant = self.grants.get_mut(&number).ok_or_else(wrong)?;
        match (grant.state, grant.fate) {
            (State::Open { .. }, Fate::Awaited | Fate::Trailing) => grant.fate = Fate::Committed,
            _ => return Err(wrong()),
        }
        self.close(number)
    }

    /// Revokes a grant, as soon as it is open.
    fn close(&mut self, number: u64) -> Result<()> {
        let Some(grant) = self.grants.get_mut(&number) else { return Ok(()) };
        if let (State::Open { key }, Some(pair)) = (grant.state, &mut self.pair) {
            grant.state = State::Closing;
            pair.post(number, Work::Close { key }).map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    /// A grant is over; with its bytes if they came.
    fn over(&mut self, number: u64, grant: Granted, bytes: Option<Claim>) {
        let Granted { header, landing, .. } = grant;
        match bytes {
            Some(bytes) => self.came.push_back(Came { number, header, bytes, landing, copies: 0 }),
            None => self.done(header.length() as u64, landing),
        }
    }

    fn open(&mut self, id: u64, claim: Claim) -> Result<()> {
        let (Some(pair), Some(memory)) = (&mut self.pair, Memory::new(vec![claim])) else { return Ok(()) };
        pair.post(id, Work::Open(memory)).map_err(|error| refused(&error))
    }
}

impl Receives for Incoming {
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()> {
        match word {
            Word::Offer { number, header } => self.handle_offer(number, header),
            Word::Withdraw { number, committed } => self.handle_withdraw(number, committed),
            Word::Renew { epoch, endpoint } => self.handle_renew(epoch, &endpoint, outbox),
            _ => Err(corrupt("a word of another mode")),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<()> {
        self.waker = Some(context.waker().clone());
        let mut done = Vec::new();
        while let Some(pair) = &mut self.pair {
            if pair.poll(context, &mut done).is_pending() {
                break;
            }
            for done in done.drain(..) {
                self.handle(done, outbox)?;
            }
        }
        Ok(())
    }

    fn drive(&mut self, _: &mut Context<'_>, _: &Outbox) -> Result<Option<Instant>> {
        Ok(None) // the peer does
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
        let (claim, landing) = self.stock.land(length, place)?;
        let (address, state) = (claim.as_ptr() as usize, State::Opening);
        self.grants.insert(number, Granted { header, landing, address, state, fate: Fate::Awaited });
        self.open(number, claim)
    }

    fn is_settled(&self) -> bool {
        self.grants.values().all(|grant| grant.fate == Fate::Awaited)
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
        self.grants.clear();
        self.came.clear();
        self.wake();
    }
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
