//! The receiving side of a link: chunks that the peer offers, memory that it may write them to, and what it has committed.
//!
//! A chunk is offered, placed, granted, written, committed, revoked, stored. The peer's key to the memory is invalid before
//! anybody looks at the bytes, so a late write changes none that are used.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

use thalweg_arena::{Arena, Claim};
use thalweg_pieces::Credits;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Device, Done, Endpoint, Memory, Pair, Remote, Work};
use thalweg_wire::{FrameHeader, Range};

use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::settings::SLOTS;
use crate::words::{recorded, Word, RECORD};
use crate::{GRANTS, NOTES};

const RECEIVE: &str = "receive";
/// Bytes that are granted at a time.
const GRANTED: u64 = 256 << 20;
/// Those of them that lie in memory of the link's own.
const POOLED: u64 = 32 << 20;
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

/// Where the bytes of a chunk are received.
pub(crate) enum Landing {
    /// In the place that the sink gave.
    Place,
    /// In memory of the link's own, and then in the sink's place if it gave one.
    Pool(Arena, Option<Claim>),
}

struct Granted {
    header: FrameHeader,
    landing: Landing,
    address: usize,
    state: State,
    fate: Fate,
}

/// A chunk that has come, in memory that the peer cannot reach any more.
pub(crate) struct Came {
    pub(crate) number: u64,
    pub(crate) header: FrameHeader,
    /// The bytes, as long as the chunk.
    pub(crate) bytes: Claim,
    pub(crate) landing: Landing,
}

/// The receiving side.
pub(crate) struct Incoming {
    device: Arc<dyn Device>,
    pool: Arc<Pool>,
    pair: Option<Box<dyn Pair>>,
    /// The key to the ring; `None` while it is opened.
    ring: Option<u32>,
    ring_address: usize,
    epoch: u32,
    offers: VecDeque<(u64, FrameHeader)>,
    /// The number of the next offer.
    next: u64,
    grants: BTreeMap<u64, Granted>,
    credits: Credits,
    pooled: Credits,
    came: VecDeque<Came>,
    waker: Option<Waker>,
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, RECEIVE, format!("{what} from the peer of an rdma link"))
}

fn refused(error: &thalweg_verbs::Error) -> Error {
    Error::new(ErrorKind::System, RECEIVE, error.to_string())
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
            device,
            pool,
            pair: Some(pair),
            ring: Some(ring),
            ring_address,
            epoch: 0,
            offers: VecDeque::new(),
            next: 0,
            grants: BTreeMap::new(),
            credits: Credits::new(GRANTED, GRANTS),
            pooled: Credits::new(POOLED, GRANTS),
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
    pub(crate) fn handle_offer(&mut self, number: u64, header: FrameHeader) -> Result<()> {
        if number != self.next || self.offers.len() + self.grants.len() + self.came.len() > 2 * GRANTS {
            return Err(corrupt("an offer out of order, or one too many"));
        }
        self.next += 1;
        self.offers.push_back((number, header));
        self.wake();
        Ok(())
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`] for what was never offered.
    pub(crate) fn handle_withdraw(&mut self, number: u64, committed: bool) -> Result<()> {
        if number >= self.next {
            return Err(corrupt("a withdrawal of what was not offered"));
        }
        self.offers.retain(|(offer, _)| *offer != number);
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
    pub(crate) fn handle_renew(&mut self, epoch: u32, endpoint: &Endpoint, outbox: &Outbox) -> Result<()> {
        if epoch <= self.epoch {
            return Err(corrupt("an old pair"));
        }
        self.take_notes(outbox)?;
        let open = self.pair.take().map(|mut pair| pair.break_off()).unwrap_or_default();
        let mut memory: BTreeMap<usize, Claim> =
            open.into_iter().filter_map(|(_, memory)| claim_of(memory)).collect();
        let mut pair = self.device.pair(NOTES).map_err(|error| refused(&error))?;
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

    /// Takes what has happened.
    ///
    /// # Errors
    /// With which the link ends.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<()> {
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
            Done::Written(_) => {}
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
            Some(bytes) => self.came.push_back(Came { number, header, bytes, landing }),
            None => self.done(header.length() as u64, landing),
        }
    }

    /// A chunk is taken or dropped, and its credit is free.
    pub(crate) fn done(&mut self, length: u64, landing: Landing) {
        self.credits.give(length);
        if let Landing::Pool(arena, place) = landing {
            drop(place);
            self.pooled.give(length);
            self.pool.give(arena);
        }
        self.wake();
    }

    /// The next chunk that has come.
    pub(crate) fn next_came(&mut self) -> Option<Came> {
        self.came.pop_front()
    }

    /// How many offers there have been.
    pub(crate) fn offers(&self) -> u64 {
        self.next
    }

    /// The next of the first `offers` offers for which there is credit, which is taken now.
    pub(crate) fn next_offer(&mut self, offers: u64) -> Option<(u64, FrameHeader)> {
        let length = self.offers.front().filter(|(number, _)| *number < offers)?.1.length() as u64;
        // While pairs are exchanged nothing can be opened. Memory of the link's own may be needed for any of them.
        if self.ring.is_none() || !self.pooled.take(length) {
            return None;
        }
        self.pooled.give(length);
        self.credits.take(length).then(|| self.offers.pop_front()).flatten()
    }

    /// Grants an offer memory: the claim that the sink gave, or some of the link's own.
    ///
    /// # Errors
    /// [`ErrorKind::System`] where there is no memory, or none that may be registered.
    pub(crate) fn grant(&mut self, number: u64, header: FrameHeader, place: Option<Claim>) -> Result<()> {
        let length = header.length() as u64;
        let known =
            |claim: &Claim| Arena::of(claim).is_some_and(|(arena, _)| self.device.register(&arena).is_ok());
        let (claim, landing) = match place {
            Some(claim) if known(&claim) => (claim, Landing::Place),
            other => {
                self.pooled.take(length);
                let arena = self.pool.take(length as usize)?;
                let claim = arena.claim(Range::new(0, length));
                let claim = claim.map_err(|e| Error::new(ErrorKind::System, RECEIVE, e.to_string()))?;
                (claim, Landing::Pool(arena, other))
            }
        };
        let (address, state) = (claim.as_ptr() as usize, State::Opening);
        self.grants.insert(number, Granted { header, landing, address, state, fate: Fate::Awaited });
        self.open(number, claim)
    }

    fn open(&mut self, id: u64, claim: Claim) -> Result<()> {
        let (Some(pair), Some(memory)) = (&mut self.pair, Memory::new(vec![claim])) else { return Ok(()) };
        pair.post(id, Work::Open(memory)).map_err(|error| refused(&error))
    }

    /// Whether nothing is under way of what the peer has committed or has stopped sending.
    pub(crate) fn is_settled(&self) -> bool {
        self.grants.values().all(|grant| grant.fate == Fate::Awaited)
    }

    /// Ends it: all memory is free from here on.
    pub(crate) fn stop(&mut self) {
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
