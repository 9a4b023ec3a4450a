//! The receiving side of a link whose peer writes: offers, granted memory, and commit records.
//!
//! A part is offered, placed, granted, written, committed, revoked and stored, in this order. The receiver
//! looks at its bytes only after the peer's key to them is invalid. So a late write cannot change bytes that
//! are in use.
//!
//! With several pairs a part belongs to one of them: the pair that its memory is open to. Its pieces and its
//! commit record come over that pair, which keeps their order. Pairs share nothing, so one that is slow or lost
//! delays its own parts alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Context;

use thalweg_arena::Claim;
use thalweg_transport::Result;
use thalweg_verbs::{Device, Done, Endpoint, Memory, Pair, Remote, Work};

use crate::arrivals::Arrivals;
use crate::extent::Part;
use crate::joined::{Joined, FIRST};
use crate::offers::corrupt;
use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::settings::SLOTS;
use crate::sides::{Came, Landing, Receives};
use crate::words::{recorded, Word, RECORD};

/// State of a grant's memory on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Open { key: u32 },
    Closing,
}

/// How far the peer has come with a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The peer may still write to it.
    Awaited,
    /// The peer has withdrawn the part after it had committed it. The commit record is still on its way.
    Trailing,
    /// The peer has withdrawn the part without having committed it.
    Withdrawn,
    /// The commit record has arrived, with the part's checksum.
    Committed { sum: u32 },
}

struct Granted {
    /// Index of the pair that the memory is open to.
    pair: usize,
    part: Part,
    landing: Landing,
    address: u64,
    state: State,
    fate: Fate,
}

/// The receiving side of a link whose peer writes parts to their places.
pub(crate) struct Incoming {
    arrivals: Arrivals,
    /// The pairs; the first memory of each is its ring.
    joined: Vec<Joined>,
    grants: BTreeMap<u64, Granted>,
}

impl Incoming {
    /// Takes pairs that have opened their rings, each with its ring's key and address.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        pool: Arc<Pool>,
        pairs: Vec<(Box<dyn Pair>, u32, usize)>,
    ) -> Self {
        let arrivals = Arrivals::new(device.clone(), pool);
        let join = |(number, pair)| Joined::new(device.clone(), number, pair);
        Self { arrivals, joined: (0..).zip(pairs).map(join).collect(), grants: BTreeMap::new() }
    }

    /// The connected pair to which the fewest bytes are open. A pair that waits for a retransmission keeps its
    /// bytes longer, so it gets fewer new ones.
    fn least_loaded(&self) -> Option<usize> {
        let load = |pair: &usize| {
            let of = self.grants.values().filter(|grant| grant.pair == *pair);
            of.map(|grant| grant.part.bytes).sum::<u64>()
        };
        let is_connected = |pair: &usize| self.joined[*pair].first().is_some();
        (0..self.joined.len()).filter(is_connected).min_by_key(load)
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`](thalweg_transport::ErrorKind::Corrupt) for a chunk that was never offered.
    fn handle_withdraw(&mut self, number: u64, committed: bool) -> Result<()> {
        self.arrivals.withdraw(number)?;
        if let Some(grant) = self.grants.get_mut(&number).filter(|grant| grant.fate == Fate::Awaited) {
            grant.fate = if committed { Fate::Trailing } else { Fate::Withdrawn };
            if grant.fate == Fate::Withdrawn {
                self.close(number)?;
            }
        }
        Ok(())
    }

    /// Handles the message that the sender has lost its pair and made another. Joins the new pair, and opens
    /// to it the memory of those of its grants that the sender may still write to. Grants of other pairs stay as
    /// they are.
    ///
    /// # Errors
    /// [`ErrorKind::System`](thalweg_transport::ErrorKind::System) if the device refuses,
    /// [`ErrorKind::Corrupt`](thalweg_transport::ErrorKind::Corrupt) for a pair that the link does not have, or a
    /// commit record that fits no grant.
    fn handle_renew(&mut self, pair: u8, epoch: u32, endpoint: &Endpoint, outbox: &Outbox) -> Result<()> {
        let pair = usize::from(pair);
        self.joined.get(pair).ok_or_else(|| corrupt("a pair that the link does not have"))?.check(epoch)?;
        // Commit records that arrived before the loss still count.
        while let Some(done) = self.joined[pair].next_before_renewal(outbox) {
            self.handle(pair, done, outbox)?;
        }
        let mut memory = self.joined[pair].renew(epoch, endpoint)?;
        let (lost, others): (BTreeMap<u64, Granted>, _) =
            std::mem::take(&mut self.grants).into_iter().partition(|(_, grant)| grant.pair == pair);
        self.grants = others;
        for (number, mut grant) in lost.into_iter().rev() {
            let memory = memory.remove(&grant.address);
            match (grant.fate, memory) {
                (Fate::Awaited, Some(memory)) => {
                    grant.state = State::Opening;
                    self.grants.insert(number, grant);
                    self.joined[pair].post(number, Work::Open(memory))?;
                }
                (_, claims) => self.over(number, grant, claims),
            }
        }
        Ok(())
    }

    fn handle(&mut self, pair: usize, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Opened(FIRST, _) => {}
            Done::Opened(number, to) => self.opened(number, to, outbox)?,
            Done::Noted(slot) => self.noted(pair, slot)?,
            Done::Closed(number, memory) => {
                if let Some(grant) = self.grants.remove(&number) {
                    self.over(number, grant, Some(memory));
                }
            }
            Done::Written(_) | Done::Read(..) | Done::Lost(_) => {}
        }
        Ok(())
    }

    fn opened(&mut self, number: u64, to: Remote, outbox: &Outbox) -> Result<()> {
        let Some(grant) = self.grants.get_mut(&number) else { return Ok(()) };
        grant.state = State::Open { key: to.key };
        if grant.fate == Fate::Withdrawn {
            return self.close(number);
        }
        outbox.say(&Word::Grant { number, pair: grant.pair as u8, to });
        Ok(())
    }

    /// Handles a commit record: the peer has written all bytes of a grant. The grant must be open to this pair: over
    /// another one the record could arrive before the bytes. It is closed now, so that no later write changes
    /// these bytes.
    fn noted(&mut self, pair: usize, slot: u32) -> Result<()> {
        let wrong = || corrupt("a commit record of nothing that was granted");
        let mut record = [0; RECORD];
        let at = slot as usize * RECORD;
        if slot as usize >= SLOTS || !self.joined[pair].peek_first(at, &mut record) {
            return Err(wrong());
        }
        let (number, sum) = recorded(&record);
        let grant = self.grants.get_mut(&number).filter(|grant| grant.pair == pair).ok_or_else(wrong)?;
        match (grant.state, grant.fate) {
            (State::Open { .. }, Fate::Awaited | Fate::Trailing) => grant.fate = Fate::Committed { sum },
            _ => return Err(wrong()),
        }
        self.close(number)
    }

    /// Revokes a grant if it is open. While the device is still opening it, this does nothing; the `Opened`
    /// event calls it again.
    fn close(&mut self, number: u64) -> Result<()> {
        let Some(grant) = self.grants.get_mut(&number) else { return Ok(()) };
        let State::Open { key } = grant.state else { return Ok(()) };
        grant.state = State::Closing;
        self.joined[grant.pair].post(number, Work::Close { key })
    }

    /// Ends a grant. If it was committed, queues its `memory` for delivery; otherwise returns its credit.
    fn over(&mut self, number: u64, grant: Granted, memory: Option<Memory>) {
        let Granted { part, landing, fate, .. } = grant;
        let bytes = memory.map(Memory::into_claims).filter(|claims| !claims.is_empty());
        match (fate, bytes) {
            (Fate::Committed { sum }, Some(bytes)) => {
                self.arrivals.push(Came { number, part, sum, bytes, landing, copies: 0 });
            }
            (_, bytes) => {
                drop(bytes);
                self.arrivals.done(part.bytes, landing);
            }
        }
    }
}

impl Receives for Incoming {
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()> {
        match word {
            Word::Offer { number, extent } => self.arrivals.offered(number, extent, self.grants.len())?,
            Word::Ready { number } => self.arrivals.ready(number, self.grants.len())?,
            Word::Withdraw { number, committed } => self.handle_withdraw(number, committed)?,
            Word::Renew { pair, epoch, endpoint } => self.handle_renew(pair, epoch, &endpoint, outbox)?,
            _ => return Err(corrupt("a word of another mode")),
        }
        self.arrivals.wake();
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<()> {
        self.arrivals.receiver_waits(context);
        for pair in 0..self.joined.len() {
            while let Some(done) = self.joined[pair].next(context, outbox)? {
                self.handle(pair, done, outbox)?;
            }
        }
        Ok(())
    }

    fn arrivals(&mut self) -> &mut Arrivals {
        &mut self.arrivals
    }

    fn may_grant(&self) -> bool {
        self.joined.iter().any(|joined| joined.first().is_some())
    }

    fn grant_memory(
        &mut self,
        number: u64,
        part: Part,
        places: Vec<Option<Claim>>,
        _: &Outbox,
    ) -> Result<()> {
        let (memory, landing) = self.arrivals.stock.land(part.bytes, places)?;
        let (address, state) = (memory.address(), State::Opening);
        // While all pairs are being replaced, the first one takes the grant.
        let pair = self.least_loaded().unwrap_or(0);
        self.grants.insert(number, Granted { pair, part, landing, address, state, fate: Fate::Awaited });
        self.joined[pair].post(number, Work::Open(memory))
    }

    fn is_settled(&self) -> bool {
        self.grants.values().all(|grant| grant.fate == Fate::Awaited)
    }

    fn stop(&mut self) {
        self.joined.iter_mut().for_each(Joined::stop);
        self.grants.clear();
        self.arrivals.stop();
    }
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
