//! The sending side of a link whose receiver reads. This side lends chunks to it.
//!
//! A chunk is lent, read and taken; then the loan ends. The chunk's bytes are free only after the loan has
//! ended. The peer can read nothing but lent chunks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_transport::{ChunkRef, Error, ErrorKind, Result};
use thalweg_verbs::{Device, Done, Endpoint, Pair, Remote, Work};

use crate::extent::{checksum_of_chunks, Extent};
use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::sides::{Offered, Sends};
use crate::tracker::Tracker;
use crate::words::{Word, ONLY};
use crate::{GRANTS, NOTES};

const SEND: &str = "send update";
/// Maximum number of bytes that are lent at one time.
const LENT: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The device was asked to lend the chunk, or will be when there is a pair.
    Opening,
    Lent {
        key: u32,
    },
    Closing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Wanted,
    /// The chunk was withdrawn before the peer was notified of it.
    Unsaid,
    /// The chunk was withdrawn. The peer may go on reading it until it answers `Taken`.
    Leaving,
    /// The peer has taken the chunk. Its loan ends next.
    Taken,
}

/// A chunk that was offered: it is lent, or will be lent.
struct Entry {
    /// The extent that the part belongs to, and the number of that extent's first part.
    extent: (u64, Extent),
    length: u64,
    bytes: Bytes,
    chunks: Vec<ChunkRef>,
    /// The pool arena with a copy of the bytes, if the bytes were in no registered arena.
    staged: Option<Arena>,
    tracker: Arc<Tracker>,
    state: State,
    fate: Fate,
    /// Whether the peer was notified of the chunk.
    said: bool,
}

/// The sending side of a link whose receiver reads.
pub(crate) struct Lending {
    device: Arc<dyn Device>,
    pool: Arc<Pool>,
    /// `None` after a loss, until the peer has made another pair.
    pair: Option<Box<dyn Pair>>,
    epoch: u32,
    entries: BTreeMap<u64, Entry>,
    lent: u64,
    next: u64,
    /// The extent that is being offered, and the number of its first part.
    extent: Option<(u64, Extent)>,
    /// Number of the first part of the extent that was last offered to the peer.
    said: Option<u64>,
    sent: Arc<AtomicU64>,
    waker: Option<Waker>,
}

fn refused(error: &thalweg_verbs::Error) -> Error {
    Error::new(ErrorKind::System, SEND, error.to_string())
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "receive", format!("{what} from the peer of an rdma link"))
}

impl Lending {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        pool: Arc<Pool>,
        pair: Box<dyn Pair>,
        sent: Arc<AtomicU64>,
    ) -> Self {
        let (entries, pair) = (BTreeMap::new(), Some(pair));
        Self {
            device,
            pool,
            pair,
            epoch: 0,
            entries,
            lent: 0,
            next: 0,
            extent: None,
            said: None,
            sent,
            waker: None,
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn post(&mut self, number: u64, work: Work) -> Result<()> {
        self.pair.as_mut().map_or(Ok(()), |pair| pair.post(number, work)).map_err(|error| refused(&error))
    }

    fn lend(&mut self, number: u64) -> Result<()> {
        let Some(entry) = self.entries.get_mut(&number) else { return Ok(()) };
        entry.state = State::Opening;
        let work = Work::Lend(entry.bytes.clone());
        self.post(number, work)
    }

    /// Ends the loan of a chunk. While the device is still opening it, this does nothing; the `Opened` event
    /// calls it again.
    fn close(&mut self, number: u64) -> Result<()> {
        let Some(entry) = self.entries.get_mut(&number) else { return Ok(()) };
        let State::Lent { key } = entry.state else { return Ok(()) };
        entry.state = State::Closing;
        self.post(number, Work::Close { key })
    }

    fn remove(&mut self, number: u64) {
        let Some(entry) = self.entries.remove(&number) else { return };
        self.lent -= entry.length;
        drop(entry.bytes);
        if let Some(staged) = entry.staged {
            self.pool.give(staged);
        }
        entry.tracker.ended(number);
    }

    fn handle(&mut self, done: Done, outbox: &Outbox) -> Result<()> {
        match done {
            Done::Opened(number, from) => {
                let Some(entry) = self.entries.get_mut(&number) else { return Ok(()) };
                entry.state = State::Lent { key: from.key };
                if matches!(entry.fate, Fate::Unsaid | Fate::Taken) {
                    return self.close(number);
                }
                if entry.fate == Fate::Wanted {
                    entry.said = true;
                    let (first, extent) = entry.extent;
                    if self.said.replace(first) != Some(first) {
                        outbox.say(&Word::Offer { number: first, extent });
                    }
                    let sum = checksum_of_chunks(&entry.chunks, &entry.bytes);
                    outbox.say(&Word::Lent { number, sum, from });
                }
            }
            Done::Closed(number, _) => self.remove(number),
            Done::Lost(fault) if fault.may_retry() => {
                outbox.say(&Word::Broken { pair: ONLY, epoch: self.epoch });
                self.pair = None;
            }
            Done::Lost(_) => return Err(Error::closed(SEND, "the device broke the pair (access error)")),
            Done::Written(_) | Done::Read(..) | Done::Noted(_) => {}
        }
        Ok(())
    }

    fn taken(&mut self, number: u64) -> Result<()> {
        if number >= self.next {
            return Err(corrupt("word of what was not lent"));
        }
        if let Some(entry) = self.entries.get_mut(&number) {
            if entry.fate == Fate::Wanted {
                let length = entry.length;
                self.sent.fetch_add(length, Ordering::Relaxed);
                entry.tracker.handed_over(length);
                entry.tracker.written();
            }
            entry.fate = Fate::Taken;
            self.close(number)?;
        }
        Ok(())
    }

    /// Handles the message that the peer has lost the pair over which it reads, and made another. Joins the
    /// new pair and lends the remaining chunks to it.
    fn renew(&mut self, epoch: u32, endpoint: &Endpoint, outbox: &Outbox) -> Result<()> {
        if epoch <= self.epoch {
            return Err(corrupt("an old pair"));
        }
        self.pair = None; // from here on the peer cannot read over the old pair
        let mut pair = self.device.pair(NOTES).map_err(|error| refused(&error))?;
        pair.connect(endpoint).map_err(|error| refused(&error))?;
        let ring = Remote { address: 0, key: 0 };
        outbox.say(&Word::Ring { pair: ONLY, epoch, endpoint: pair.endpoint(), ring });
        (self.epoch, self.pair) = (epoch, Some(pair));
        for (number, fate) in self.entries.iter().map(|(&n, e)| (n, e.fate)).collect::<Vec<_>>() {
            if fate == Fate::Wanted {
                self.lend(number)?;
            } else {
                self.remove(number);
            }
        }
        Ok(())
    }
}

impl Sends for Lending {
    fn has_room(&self, bytes: u64, _: bool) -> bool {
        self.entries.is_empty() || (self.entries.len() < GRANTS && self.lent.saturating_add(bytes) <= LENT)
    }

    fn chunks(&self) -> usize {
        self.entries.len()
    }

    fn is_leaving(&self) -> bool {
        false // `withdraw` notifies the peer at once
    }

    fn offer(
        &mut self,
        extent: Option<Extent>,
        Offered { bytes, staged, chunks }: Offered,
        tracker: &Arc<Tracker>,
        _: &Outbox,
    ) -> Result<()> {
        let (number, length, tracker) = (self.next, bytes.len() as u64, tracker.clone());
        self.extent = extent.map(|extent| (number, extent)).or(self.extent);
        let extent = self.extent.ok_or_else(|| Error::new(ErrorKind::System, SEND, "a part of no extent"))?;
        self.next += 1;
        self.lent += length;
        tracker.began(number);
        let (state, fate, said) = (State::Opening, Fate::Wanted, false);
        let entry = Entry { extent, length, bytes, chunks, staged, tracker, state, fate, said };
        self.entries.insert(number, entry);
        self.lend(number)?;
        self.wake();
        Ok(())
    }

    fn withdraw(&mut self, number: u64, outbox: &Outbox) {
        let Some(entry) = self.entries.get_mut(&number).filter(|entry| entry.fate == Fate::Wanted) else {
            return;
        };
        if entry.said {
            entry.fate = Fate::Leaving;
            outbox.say(&Word::Withdraw { number, committed: false });
        } else {
            entry.fate = Fate::Unsaid;
        }
        if self.pair.is_none() {
            self.remove(number);
        }
        self.wake();
    }

    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()> {
        match word {
            Word::Taken { number } => self.taken(number)?,
            Word::Renew { pair: ONLY, epoch, endpoint } => self.renew(epoch, &endpoint, outbox)?,
            _ => return Err(corrupt("a word of another mode")),
        }
        self.wake();
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Instant>> {
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
        Ok(None)
    }

    fn stop(&mut self) {
        self.pair = None;
        for number in self.entries.keys().copied().collect::<Vec<_>>() {
            self.remove(number);
        }
        self.wake();
    }
}
