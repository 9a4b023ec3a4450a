//! The receiving side of FedRDMA's first version (section 3.1): pieces come into one slot, each with its header, and are put
//! together beside it.
//!
//! Nothing keeps the sender from writing the next piece before this one was taken out of the slot (section 3.2): it sees
//! that its device has the piece, and perhaps waits a while. A piece that was written over is missing. When the sender says
//! that all of a chunk was sent, it is told what is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use thalweg_arena::Claim;
use thalweg_transport::{Error, Result};
use thalweg_verbs::{Device, Done, Endpoint, Pair, Remote, Work};
use thalweg_wire::{checksum, FrameHeader, Range, Ranges};

use crate::offers::{corrupt, refused, Offers, RECEIVE};
use crate::outbox::Outbox;
use crate::piece::Piece;
use crate::pool::Pool;
use crate::sides::{Came, Landing, Receives};
use crate::stock::Stock;
use crate::words::{Word, RECORD};
use crate::{GRANTS, NOTES};

/// Ranges that the sender is told of at a time.
const MOST_MISSING: usize = 64;

/// A chunk that is put together.
struct Run {
    header: FrameHeader,
    landing: Landing,
    bytes: Claim,
    there: Ranges,
}

/// The receiving side.
pub(crate) struct Assembling {
    stock: Stock,
    pair: Option<Box<dyn Pair>>,
    /// The slot; `None` while it is opened.
    slot: Option<Remote>,
    epoch: u32,
    offers: Offers,
    runs: BTreeMap<u64, Run>,
    /// Chunks that the sender has sent.
    asked: VecDeque<u64>,
    came: VecDeque<Came>,
    waker: Option<Waker>,
}

impl Assembling {
    /// Over a pair to which the slot is open.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        pool: Arc<Pool>,
        (pair, key, address): (Box<dyn Pair>, u32, usize),
    ) -> Self {
        Self {
            stock: Stock::new(device, pool),
            pair: Some(pair),
            slot: Some(Remote { address: address as u64, key }),
            epoch: 0,
            offers: Offers::default(),
            runs: BTreeMap::new(),
            asked: VecDeque::new(),
            came: VecDeque::new(),
            waker: None,
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn handle_offer(&mut self, number: u64, header: FrameHeader) -> Result<()> {
        self.offers.add(number, header, self.runs.len() + self.came.len())?;
        Ok(())
    }

    fn handle_withdraw(&mut self, number: u64) -> Result<()> {
        self.offers.withdraw(number)?;
        if let Some(run) = self.runs.remove(&number) {
            drop(run.bytes);
            self.stock.done(run.header.length() as u64, run.landing);
        }
        Ok(())
    }

    /// The sender has lost its pair and made another: joins it, and opens the slot to it.
    fn handle_renew(&mut self, epoch: u32, endpoint: &Endpoint, outbox: &Outbox) -> Result<()> {
        if epoch <= self.epoch {
            return Err(corrupt("an old pair"));
        }
        let mut context = Context::from_waker(Waker::noop());
        self.take_all(&mut context, outbox, false)?;
        let open = self.pair.take().map(|mut pair| pair.break_off()).unwrap_or_default();
        let slot = open.into_iter().map(|(_, memory)| memory).find(|memory| memory.len() > 0);
        let slot = slot.ok_or_else(|| corrupt("a pair that was not whole"))?;
        let mut pair = self.stock.device.pair(NOTES).map_err(|error| refused(&error))?;
        pair.connect(endpoint).map_err(|error| refused(&error))?;
        pair.post(0, Work::Open(slot)).map_err(|error| refused(&error))?;
        (self.epoch, self.slot, self.pair) = (epoch, None, Some(pair));
        Ok(())
    }

    /// Takes what has happened to the pair; whether it was lost only if that is `told`.
    fn take_all(&mut self, context: &mut Context<'_>, outbox: &Outbox, told: bool) -> Result<()> {
        let mut done = Vec::new();
        while let Some(pair) = &mut self.pair {
            if pair.poll(context, &mut done).is_pending() {
                break;
            }
            for done in done.drain(..) {
                if told || !matches!(done, Done::Lost(_)) {
                    self.handle(done, outbox)?;
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Opened(_, slot) => {
                let Some(pair) = &self.pair else { return Ok(()) };
                self.slot = Some(slot);
                outbox.say(&Word::Ring { epoch: self.epoch, endpoint: pair.endpoint(), ring: slot });
                for &number in self.runs.keys() {
                    outbox.say(&Word::Grant { number, to: slot });
                }
            }
            Done::Noted(_) => self.take_out(),
            Done::Lost(fault) if fault.may_retry() => outbox.say(&Word::Broken { epoch: self.epoch }),
            Done::Lost(_) => return Err(Error::closed(RECEIVE, "the device broke the pair (access error)")),
            Done::Written(_) | Done::Closed(..) | Done::Read(..) => {}
        }
        Ok(())
    }

    /// Takes out of the slot what is in it now: not always what the note was about.
    fn take_out(&mut self) {
        let (Some(pair), Some(Remote { key, .. })) = (&self.pair, self.slot) else { return };
        let mut header = [0; RECORD];
        if !pair.peek(key, 0, &mut header) {
            return;
        }
        let Some(Piece { number, range, checksum: sum }) = Piece::decode(&header) else { return };
        let Some(run) = self.runs.get_mut(&number) else { return };
        let all = Range::new(0, run.header.length() as u64);
        // Bytes that are there stay, whatever is written over the slot meanwhile.
        if range.end > all.end || run.there.within(range).next().is_some() {
            return;
        }
        let place = &mut run.bytes[range.start as usize..range.end as usize];
        if !pair.peek(key, RECORD, place) || checksum(place) != sum {
            return;
        }
        run.there.insert(range);
        if run.there.covers(all) {
            if let Some(Run { header, landing, bytes, .. }) = self.runs.remove(&number) {
                self.came.push_back(Came { number, header, bytes, landing, copies: 1 });
            }
        }
    }

    /// Tells the sender what is missing of chunks that it has sent.
    fn answer(&mut self, outbox: &Outbox) {
        for number in std::mem::take(&mut self.asked) {
            let Some(run) = self.runs.get(&number) else { continue };
            let all = Range::new(0, run.header.length() as u64);
            for range in run.there.missing_in(all).into_iter().take(MOST_MISSING) {
                outbox.say(&Word::Missing { number, range });
            }
        }
    }
}

impl Receives for Assembling {
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()> {
        match word {
            Word::Offer { number, header } => self.handle_offer(number, header)?,
            Word::Withdraw { number, .. } => self.handle_withdraw(number)?,
            Word::Renew { epoch, endpoint } => self.handle_renew(epoch, &endpoint, outbox)?,
            // Answered by whoever receives: who does not receive loses pieces, and need not be sent them again.
            Word::Sent { number } if self.asked.len() <= GRANTS => self.asked.push_back(number),
            _ => return Err(corrupt("a word of another mode")),
        }
        self.wake();
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<()> {
        self.waker = Some(context.waker().clone());
        self.take_all(context, outbox, true)?;
        if self.slot.is_some() {
            self.answer(outbox);
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
        self.slot.and_then(|_| self.offers.next(offers, &mut self.stock))
    }

    fn grant(
        &mut self,
        number: u64,
        header: FrameHeader,
        place: Option<Claim>,
        outbox: &Outbox,
    ) -> Result<()> {
        let length = header.length() as u64;
        if !self.offers.placed(number, length, &mut self.stock) {
            return Ok(()); // it was withdrawn meanwhile
        }
        let (bytes, landing) = self.stock.keep(length, place)?;
        self.runs.insert(number, Run { header, landing, bytes, there: Ranges::new() });
        // While pairs are exchanged, it is said when the slot is open again.
        if let Some(to) = self.slot {
            outbox.say(&Word::Grant { number, to });
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        true // what is withdrawn is dropped at once
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
#[path = "assembling_tests.rs"]
mod tests;
