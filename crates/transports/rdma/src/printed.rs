//! The receiving side of FedRDMA-E by the rule that the paper prints (section 3.2), for comparison only. An
//! update's memory begins with a header, and the receiver polls for it. The rule assumes that the whole update
//! has arrived once the header is visible.
//!
//! That is not always so: the header may be visible before the end of its own piece has arrived. This side
//! copies the bytes when it sees the header, as the rule would. The update's checksum then shows whether that
//! was too early. The memory is revoked only after the commit record has arrived, behind all data. So a late
//! write still finds its key open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use thalweg_arena::{Arena, Claim};
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Device, Done, Endpoint, Pair, Work};
use thalweg_wire::Range;

use crate::arrivals::Arrivals;
use crate::extent::Part;
use crate::joined::{Joined, FIRST};
use crate::offers::{corrupt, RECEIVE};
use crate::outbox::Outbox;
use crate::piece::Piece;
use crate::pool::Pool;
use crate::sides::{Came, Landing, Receives};
use crate::words::{recorded, Word, ONLY, RECORD};

/// Interval at which the receiver looks for headers.
const EVERY: Duration = Duration::from_millis(1);

/// A part that the peer writes to memory of the link's pool.
struct Run {
    part: Part,
    memory: Arena,
    /// The peer's key to that memory; `None` while it is being opened.
    key: Option<u32>,
    /// The copy that is made when the header is seen.
    bytes: Claim,
    landing: Landing,
    seen: bool,
    /// The part's checksum, once the commit record has arrived with it.
    sent: Option<u32>,
    /// Whether the peer has withdrawn the chunk. If the peer had already committed the chunk, `wanted` stays
    /// true.
    trailing: bool,
    wanted: bool,
    closing: bool,
}

/// The receiving side of a link that follows the rule as the paper prints it.
pub(crate) struct Printed {
    arrivals: Arrivals,
    /// The pair; its first memory is the ring.
    joined: Joined,
    runs: BTreeMap<u64, Run>,
}

impl Printed {
    /// Takes a pair that has opened the ring, with its key and address.
    pub(crate) fn new(device: Arc<dyn Device>, pool: Arc<Pool>, joined: (Box<dyn Pair>, u32, usize)) -> Self {
        Self {
            arrivals: Arrivals::new(device.clone(), pool),
            joined: Joined::new(device, ONLY, joined),
            runs: BTreeMap::new(),
        }
    }

    fn handle_withdraw(&mut self, number: u64, committed: bool) -> Result<()> {
        self.arrivals.withdraw(number)?;
        if let Some(run) = self.runs.get_mut(&number) {
            run.wanted &= committed;
            run.trailing = true;
        }
        self.close(number)
    }

    /// Revokes the memory of a chunk that is complete or not wanted. While the device is still opening it,
    /// this does nothing; the `Opened` event calls it again.
    fn close(&mut self, number: u64) -> Result<()> {
        let Some(run) = self.runs.get_mut(&number) else { return Ok(()) };
        let over = !run.wanted || (run.seen && run.sent.is_some());
        match run.key {
            Some(key) if over && !run.closing => {
                run.closing = true;
                self.joined.post(number, Work::Close { key })
            }
            _ => Ok(()),
        }
    }

    /// Called when the peer cannot reach a chunk's memory any more. Queues the copy for delivery, or drops
    /// it.
    fn over(&mut self, number: u64) {
        let Some(Run { part, memory, bytes, landing, seen, sent, wanted, .. }) = self.runs.remove(&number)
        else {
            return;
        };
        self.arrivals.stock.pool.give(memory);
        match sent.filter(|_| wanted && seen) {
            Some(sum) => {
                self.arrivals.push(Came { number, part, sum, bytes: vec![bytes], landing, copies: 1 });
            }
            None => {
                drop(bytes);
                self.arrivals.stock.done(part.bytes, landing);
            }
        }
    }

    /// Applies the paper's rule: a valid header counts as the whole chunk. Copies the bytes of each such
    /// chunk.
    fn look(&mut self) -> Result<()> {
        let mut found = Vec::new();
        for (&number, run) in self.runs.iter_mut().filter(|(_, run)| !run.seen && !run.closing) {
            let (Some(key), mut header) = (run.key, [0; RECORD]) else { continue };
            let there = self.joined.peek(key, 0, &mut header);
            if there && Piece::decode(&header).is_some_and(|piece| piece.number == number) {
                run.seen = self.joined.peek(key, RECORD, &mut run.bytes);
                found.push(number);
            }
        }
        found.into_iter().try_for_each(|number| self.close(number))
    }

    /// Handles a commit record: all bytes of its chunk have arrived.
    fn noted(&mut self, slot: u32) -> Result<()> {
        let (mut record, at) = ([0; RECORD], slot as usize * RECORD);
        let found = self.joined.peek_first(at, &mut record);
        let (number, sum) = recorded(&record);
        let run = self.runs.get_mut(&number).filter(|_| found);
        let run = run.ok_or_else(|| corrupt("a commit record of nothing that was granted"))?;
        run.sent = Some(sum);
        self.look()?;
        self.close(number)
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Opened(FIRST, _) => {}
            Done::Opened(number, to) => {
                let Some(run) = self.runs.get_mut(&number) else { return Ok(()) };
                run.key = Some(to.key);
                if run.wanted {
                    outbox.say(&Word::Grant { number, pair: ONLY, to });
                }
                self.close(number)?;
            }
            Done::Closed(number, memory) => {
                drop(memory);
                self.over(number);
            }
            Done::Noted(slot) => self.noted(slot)?,
            Done::Written(_) | Done::Read(..) | Done::Lost(_) => {}
        }
        Ok(())
    }

    /// Handles the message that the sender has lost its pair and made another. Joins the new pair, and opens
    /// to it the memory of chunks that the sender may still write to.
    fn handle_renew(&mut self, epoch: u32, endpoint: &Endpoint) -> Result<()> {
        self.joined.check(epoch)?;
        self.look()?;
        let mut memory = self.joined.renew(epoch, endpoint)?;
        for number in self.runs.keys().copied().collect::<Vec<_>>() {
            let Some(run) = self.runs.get_mut(&number) else { continue };
            let memory = memory.remove(&(run.memory.as_ptr() as u64));
            match memory {
                Some(memory) if run.wanted && run.sent.is_none() && !run.trailing => {
                    (run.key, run.seen) = (None, false);
                    self.joined.post(number, Work::Open(memory))?;
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
            Word::Offer { number, extent } => self.arrivals.offered(number, extent, self.runs.len())?,
            Word::Ready { number } => self.arrivals.ready(number, self.runs.len())?,
            Word::Withdraw { number, committed } => self.handle_withdraw(number, committed)?,
            Word::Renew { pair: ONLY, epoch, endpoint } => self.handle_renew(epoch, &endpoint)?,
            _ => return Err(corrupt("a word of another mode")),
        }
        self.arrivals.wake();
        Ok(())
    }

    fn drive(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Instant>> {
        self.arrivals.driver_waits(context);
        let before = self.arrivals.len();
        while let Some(done) = self.joined.next(context, outbox)? {
            self.handle(done, outbox)?;
        }
        self.look()?;
        if self.arrivals.len() > before {
            self.arrivals.wake_receiver();
        }
        let waits = self.runs.values().any(|run| run.key.is_some() && !run.seen && !run.closing);
        Ok(waits.then(|| Instant::now() + EVERY))
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
        let (bytes, landing) = self.arrivals.stock.keep(part.bytes, places)?;
        let length = (RECORD as u64).saturating_add(part.bytes);
        let memory = self.arrivals.stock.pool.take(usize::try_from(length).unwrap_or(usize::MAX))?;
        let claim = memory.claim(Range::new(0, length));
        let mut claim = claim.map_err(|e| Error::new(ErrorKind::System, RECEIVE, e.to_string()))?;
        // Erase the header of an earlier chunk, which the memory may hold and `look` would accept.
        claim[..RECORD].fill(0);
        let (seen, sent, trailing, wanted, closing) = (false, None, false, true, false);
        let run = Run { part, memory, key: None, bytes, landing, seen, sent, trailing, wanted, closing };
        self.runs.insert(number, run);
        self.joined.post(number, Work::Open(claim.into()))?;
        self.arrivals.wake_driver();
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.runs.values().all(|run| run.wanted && !run.seen && !run.trailing)
    }

    fn stop(&mut self) {
        self.joined.stop();
        self.runs.clear();
        self.arrivals.stop();
    }
}

#[cfg(test)]
#[path = "printed_tests.rs"]
mod tests;
