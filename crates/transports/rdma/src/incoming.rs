//! The receiving side of a link whose peer writes: offers, granted memory, and commit records.
//!
//! A part is offered, placed, granted, written, committed, revoked and stored, in this order. The receiver
//! looks at its bytes only after the peer's key to them is invalid. So a late write cannot change bytes that
//! are in use.

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
    part: Part,
    landing: Landing,
    address: u64,
    state: State,
    fate: Fate,
}

/// The receiving side of a link whose peer writes parts to their places.
pub(crate) struct Incoming {
    arrivals: Arrivals,
    /// The pair; its first memory is the ring.
    joined: Joined,
    grants: BTreeMap<u64, Granted>,
}

impl Incoming {
    /// Takes a pair that has opened the ring, with its key and address.
    pub(crate) fn new(device: Arc<dyn Device>, pool: Arc<Pool>, joined: (Box<dyn Pair>, u32, usize)) -> Self {
        Self {
            arrivals: Arrivals::new(device.clone(), pool),
            joined: Joined::new(device, joined),
            grants: BTreeMap::new(),
        }
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
    /// to it the memory of grants that the sender may still write to.
    ///
    /// # Errors
    /// [`ErrorKind::System`](thalweg_transport::ErrorKind::System) if the device refuses,
    /// [`ErrorKind::Corrupt`](thalweg_transport::ErrorKind::Corrupt) for a commit record that fits no grant.
    fn handle_renew(&mut self, epoch: u32, endpoint: &Endpoint, outbox: &Outbox) -> Result<()> {
        self.joined.check(epoch)?;
        // Commit records that arrived before the loss still count.
        while let Some(done) = self.joined.next_before_renewal(outbox) {
            self.handle(done, outbox)?;
        }
        let mut memory = self.joined.renew(epoch, endpoint)?;
        for (number, mut grant) in std::mem::take(&mut self.grants).into_iter().rev() {
            let memory = memory.remove(&grant.address);
            match (grant.fate, memory) {
                (Fate::Awaited, Some(memory)) => {
                    grant.state = State::Opening;
                    self.grants.insert(number, grant);
                    self.joined.post(number, Work::Open(memory))?;
                }
                (_, claims) => self.over(number, grant, claims),
            }
        }
        Ok(())
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Opened(FIRST, _) => {}
            Done::Opened(number, to) => self.opened(number, to, outbox)?,
            Done::Noted(slot) => self.noted(slot)?,
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
        outbox.say(&Word::Grant { number, to });
        Ok(())
    }

    /// Handles a commit record: the peer has written all bytes of a grant. The grant must be open. It is closed now, so
    /// that no later write changes these bytes.
    fn noted(&mut self, slot: u32) -> Result<()> {
        let wrong = || corrupt("a commit record of nothing that was granted");
        let mut record = [0; RECORD];
        let at = slot as usize * RECORD;
        if slot as usize >= SLOTS || !self.joined.peek_first(at, &mut record) {
            return Err(wrong());
        }
        let (number, sum) = recorded(&record);
        let grant = self.grants.get_mut(&number).ok_or_else(wrong)?;
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
        self.joined.post(number, Work::Close { key })
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
            Word::Renew { epoch, endpoint } => self.handle_renew(epoch, &endpoint, outbox)?,
            _ => return Err(corrupt("a word of another mode")),
        }
        self.arrivals.wake();
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<()> {
        self.arrivals.receiver_waits(context);
        while let Some(done) = self.joined.next(context, outbox)? {
            self.handle(done, outbox)?;
        }
        Ok(())
    }

    fn arrivals(&mut self) -> &mut Arrivals {
        &mut self.arrivals
    }

    fn may_grant(&self) -> bool {
        self.joined.first().is_some()
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
        self.grants.insert(number, Granted { part, landing, address, state, fate: Fate::Awaited });
        self.joined.post(number, Work::Open(memory))
    }

    fn is_settled(&self) -> bool {
        self.grants.values().all(|grant| grant.fate == Fate::Awaited)
    }

    fn stop(&mut self) {
        self.joined.stop();
        self.grants.clear();
        self.arrivals.stop();
    }
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
