//! The receiving end of the pair over which the peer writes. It also holds the pair's "first memory", whose
//! address the peer gets with the endpoint: the ring of commit records, or the slot.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

use thalweg_transport::{Error, Result};
use thalweg_verbs::{Device, Done, Endpoint, Memory, Pair, Remote, Work};

use crate::offers::{corrupt, refused, RECEIVE};
use crate::outbox::Outbox;
use crate::words::Word;
use crate::NOTES;

/// Number of the work request that opens the first memory. Grants use their own numbers.
pub(crate) const FIRST: u64 = u64::MAX;

/// A pair that joins the peer's next pair whenever the peer has lost one.
pub(crate) struct Joined {
    device: Arc<dyn Device>,
    /// Number of the pair among the pairs of its direction.
    number: u8,
    /// `None` once the link has ended.
    pair: Option<Box<dyn Pair>>,
    epoch: u32,
    /// How the peer addresses the first memory; `None` while it is being opened.
    first: Option<Remote>,
    address: u64,
    /// Whether the device has reported that the pair is lost. The peer's next pair follows.
    lost: bool,
    /// Events in the order of the pair: `polled` is the buffer for `poll`, `waiting` holds those not handled
    /// yet.
    polled: Vec<Done>,
    waiting: VecDeque<Done>,
}

impl Joined {
    /// Takes a pair that has opened the first memory, with this key and address.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        number: u8,
        (pair, key, address): (Box<dyn Pair>, u32, usize),
    ) -> Self {
        let address = address as u64;
        let first = Some(Remote { address, key });
        let (polled, waiting) = (Vec::new(), VecDeque::new());
        Self { device, number, pair: Some(pair), epoch: 0, first, address, lost: false, polled, waiting }
    }

    /// How the peer addresses the first memory. `None` from the loss of the pair, as soon as the device reports it or
    /// the peer does, until the next one is ready: nothing can be opened meanwhile.
    pub(crate) fn first(&self) -> Option<Remote> {
        self.first.filter(|_| !self.lost)
    }

    pub(crate) fn post(&mut self, id: u64, work: Work) -> Result<()> {
        self.pair.as_mut().map_or(Ok(()), |pair| pair.post(id, work)).map_err(|error| refused(&error))
    }

    /// Copies the bytes at offset `at` of the memory with this key; false if they are out of range.
    pub(crate) fn peek(&self, key: u32, at: usize, into: &mut [u8]) -> bool {
        self.pair.as_ref().is_some_and(|pair| pair.peek(key, at, into))
    }

    /// Copies what is at offset `at` of the first memory; false if it is out of range.
    pub(crate) fn peek_first(&self, at: usize, into: &mut [u8]) -> bool {
        self.first.is_some_and(|first| self.peek(first.key, at, into))
    }

    /// The next event. Sends `Ring` to the peer when a new pair is ready, and `Broken` when this end is lost.
    ///
    /// # Errors
    /// Every error ends the link.
    pub(crate) fn next(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Done>> {
        while let Some(done) = self.poll(context) {
            match done {
                Done::Lost(fault) if fault.may_retry() => {
                    self.lost = true;
                    outbox.say(&Word::Broken { pair: self.number, epoch: self.epoch });
                }
                Done::Lost(_) => {
                    return Err(Error::closed(RECEIVE, "the device broke the pair (access error)"))
                }
                done => return Ok(Some(self.look(done, outbox))),
            }
        }
        Ok(None)
    }

    /// The next unhandled event of a pair which the peer has lost.
    pub(crate) fn next_before_renewal(&mut self, outbox: &Outbox) -> Option<Done> {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let done = self.poll(&mut context)?;
            if !matches!(done, Done::Lost(_)) {
                return Some(self.look(done, outbox));
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Option<Done> {
        while self.waiting.is_empty() {
            if self.pair.as_mut()?.poll(context, &mut self.polled).is_pending() {
                return None;
            }
            self.waiting.extend(self.polled.drain(..));
        }
        self.waiting.pop_front()
    }

    fn look(&mut self, done: Done, outbox: &Outbox) -> Done {
        if let (Done::Opened(FIRST, ring), Some(pair)) = (&done, &self.pair) {
            self.first = Some(*ring);
            let (number, epoch, endpoint) = (self.number, self.epoch, pair.endpoint());
            outbox.say(&Word::Ring { pair: number, epoch, endpoint, ring: *ring });
        }
        done
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`](thalweg_transport::ErrorKind::Corrupt) if the epoch is not later than the
    /// current one.
    pub(crate) fn check(&self, epoch: u32) -> Result<()> {
        if epoch <= self.epoch {
            return Err(corrupt("an old pair"));
        }
        Ok(())
    }

    /// Handles the message that the peer has lost its pair and made another. Joins the new pair and opens the
    /// first memory to it. Returns all other memory that was open, by its address.
    ///
    /// # Errors
    /// [`ErrorKind::System`](thalweg_transport::ErrorKind::System) if the device refuses.
    pub(crate) fn renew(&mut self, epoch: u32, endpoint: &Endpoint) -> Result<BTreeMap<u64, Memory>> {
        let open = self.pair.take().map(|mut pair| pair.break_off()).unwrap_or_default();
        let mut memory: BTreeMap<u64, Memory> =
            open.into_iter().map(|(_, memory)| (memory.address(), memory)).collect();
        let mut pair = self.device.pair(NOTES).map_err(|error| refused(&error))?;
        pair.connect(endpoint).map_err(|error| refused(&error))?;
        (self.epoch, self.first, self.pair, self.lost) = (epoch, None, Some(pair), false);
        let first = memory.remove(&self.address).ok_or_else(|| corrupt("a pair that was not whole"))?;
        self.post(FIRST, Work::Open(first))?;
        Ok(memory)
    }

    /// Stops the pair. From here on the peer cannot write.
    pub(crate) fn stop(&mut self) {
        if let Some(mut pair) = self.pair.take() {
            drop(pair.break_off());
        }
        self.waiting.clear();
    }
}
