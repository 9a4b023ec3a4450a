//! The receiving side of FedRDMA's first version (section 3.1). Pieces arrive in one slot, each behind a
//! header. This side copies them out and assembles the chunk elsewhere.
//!
//! The sender may write the next piece before this side has copied out the previous one (section 3.2): the
//! sender waits only for its own device's completion, and perhaps for a fixed delay. A piece that was
//! overwritten is missing. When the sender has sent all pieces of a chunk, this side tells it which ranges
//! are missing.
//!
//! This side reads notes only while `receive` is called, and its device has room for [`NOTES`] of them. The
//! sender writes no piece whose note has no room: the piece would not complete, so it could not be withdrawn
//! and its bytes would stay in use. [`Word::Noted`] tells the sender how many notes were read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Context;

use thalweg_arena::Claim;
use thalweg_transport::Result;
use thalweg_verbs::{Device, Done, Endpoint, Pair};
use thalweg_wire::{checksum, Range, Ranges};

use crate::arrivals::Arrivals;
use crate::extent::Part;
use crate::joined::{Joined, FIRST};
use crate::offers::corrupt;
use crate::outbox::Outbox;
use crate::piece::Piece;
use crate::pool::Pool;
use crate::sides::{Came, Landing, Receives};
use crate::words::{Word, ONLY, RECORD};
use crate::{GRANTS, NOTES};

/// Maximum number of missing ranges of a chunk that one answer lists.
const MOST_MISSING: usize = 64;
/// After so many notes the receiver reports to the sender that it has read them.
const NOTED: u32 = NOTES as u32 / 4;

/// A part that is being assembled.
struct Run {
    part: Part,
    /// The part's checksum, once the sender has said it.
    sum: Option<u32>,
    landing: Landing,
    bytes: Claim,
    there: Ranges,
}

/// The receiving side of a link whose peer writes pieces into one slot.
pub(crate) struct Assembling {
    arrivals: Arrivals,
    /// The pair; its first memory is the slot.
    joined: Joined,
    runs: BTreeMap<u64, Run>,
    /// Chunks that the sender has sent completely, and about which it waits for an answer.
    asked: VecDeque<u64>,
    /// Notes of this pair that were read, and of which the sender was not told yet.
    noted: u32,
}

impl Assembling {
    /// Takes a pair that has opened the slot, with its key and address.
    pub(crate) fn new(device: Arc<dyn Device>, pool: Arc<Pool>, joined: (Box<dyn Pair>, u32, usize)) -> Self {
        Self {
            arrivals: Arrivals::new(device.clone(), pool),
            joined: Joined::new(device, ONLY, joined),
            runs: BTreeMap::new(),
            asked: VecDeque::new(),
            noted: 0,
        }
    }

    fn handle_withdraw(&mut self, number: u64) -> Result<()> {
        self.arrivals.withdraw(number)?;
        if let Some(run) = self.runs.remove(&number) {
            drop(run.bytes);
            self.arrivals.stock.done(run.part.bytes, run.landing);
        }
        Ok(())
    }

    /// Handles the message that the sender has lost its pair and made another. Joins the new pair and opens
    /// the slot to it.
    fn handle_renew(&mut self, epoch: u32, endpoint: &Endpoint, outbox: &Outbox) -> Result<()> {
        self.joined.check(epoch)?;
        while let Some(done) = self.joined.next_before_renewal(outbox) {
            self.handle(done, outbox);
        }
        self.joined.renew(epoch, endpoint)?;
        self.noted = 0;
        Ok(())
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) {
        match done {
            Done::Opened(FIRST, slot) => {
                for &number in self.runs.keys() {
                    outbox.say(&Word::Grant { number, pair: ONLY, to: slot });
                }
            }
            Done::Noted(_) => {
                self.take_out();
                self.count_note(outbox);
            }
            Done::Opened(..) | Done::Written(_) | Done::Closed(..) | Done::Read(..) | Done::Lost(_) => {}
        }
    }

    /// Copies out the piece that is in the slot now. It need not be the piece that the note announced.
    fn take_out(&mut self) {
        let mut header = [0; RECORD];
        if !self.joined.peek_first(0, &mut header) {
            return;
        }
        let Some(Piece { number, range, checksum: sum }) = Piece::decode(&header) else { return };
        let Some(run) = self.runs.get_mut(&number) else { return };
        let all = Range::new(0, run.part.bytes);
        // Drop the piece if it lies outside its part, or if it overlaps bytes that were copied out with a
        // correct checksum.
        if range.end > all.end || run.there.within(range).next().is_some() {
            return;
        }
        let place = &mut run.bytes[range.start as usize..range.end as usize];
        if !self.joined.peek_first(RECORD, place) || checksum(place) != sum {
            return;
        }
        run.there.insert(range);
        self.end(number);
    }

    /// Queues a part for delivery once all of it and its checksum are there.
    fn end(&mut self, number: u64) {
        let all = |run: &Run| run.sum.filter(|_| run.there.covers(Range::new(0, run.part.bytes)));
        let Some(sum) = self.runs.get(&number).and_then(all) else { return };
        if let Some(Run { part, landing, bytes, .. }) = self.runs.remove(&number) {
            self.arrivals.push(Came { number, part, sum, bytes: vec![bytes], landing, copies: 1 });
        }
    }

    fn handle_sum(&mut self, number: u64, sum: u32) {
        if let Some(run) = self.runs.get_mut(&number) {
            run.sum = Some(sum);
            self.end(number);
        }
    }

    fn count_note(&mut self, outbox: &Outbox) {
        self.noted += 1;
        if self.noted == NOTED {
            outbox.say(&Word::Noted { count: std::mem::take(&mut self.noted) });
        }
    }

    /// Tells the sender which ranges are missing of the chunks that it has sent completely.
    fn answer(&mut self, outbox: &Outbox) {
        for number in std::mem::take(&mut self.asked) {
            let Some(run) = self.runs.get(&number) else { continue };
            let all = Range::new(0, run.part.bytes);
            for range in run.there.missing_in(all).into_iter().take(MOST_MISSING) {
                outbox.say(&Word::Missing { number, range });
            }
        }
    }
}

impl Receives for Assembling {
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()> {
        match word {
            Word::Offer { number, extent } => self.arrivals.offered(number, extent, self.runs.len())?,
            Word::Ready { number } => self.arrivals.ready(number, self.runs.len())?,
            Word::Sum { number, sum } => self.handle_sum(number, sum),
            Word::Withdraw { number, .. } => self.handle_withdraw(number)?,
            Word::Renew { pair: ONLY, epoch, endpoint } => self.handle_renew(epoch, &endpoint, outbox)?,
            // `poll` answers this message, and only `receive` calls `poll`. While nobody receives, further
            // pieces would get lost in the slot, so the sender should not send them again.
            Word::Sent { number } if self.asked.len() <= GRANTS => self.asked.push_back(number),
            _ => return Err(corrupt("a word of another mode")),
        }
        self.arrivals.wake();
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<()> {
        self.arrivals.receiver_waits(context);
        while let Some(done) = self.joined.next(context, outbox)? {
            self.handle(done, outbox);
        }
        if self.joined.first().is_some() {
            self.answer(outbox);
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
        outbox: &Outbox,
    ) -> Result<()> {
        let (bytes, landing) = self.arrivals.stock.keep(part.bytes, places)?;
        self.runs.insert(number, Run { part, sum: None, landing, bytes, there: Ranges::new() });
        // While a lost pair is being replaced, `handle` sends the grant once the slot is open again.
        if let Some(to) = self.joined.first() {
            outbox.say(&Word::Grant { number, pair: ONLY, to });
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        true // a withdrawn chunk is dropped at once
    }

    fn stop(&mut self) {
        self.joined.stop();
        self.runs.clear();
        self.arrivals.stop();
    }
}

#[cfg(test)]
#[path = "assembling_tests.rs"]
mod tests;
