//! The receiving end of the pair over which the peer writes, and the memory that the peer is told of first: the ring of
//! commit records, or the slot.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::{Context, Waker};

use thalweg_arena::Claim;
use thalweg_transport::{Error, Result};
use thalweg_verbs::{Device, Done, Endpoint, Pair, Remote, Work};

use crate::offers::{corrupt, refused, RECEIVE};
use crate::outbox::Outbox;
use crate::words::Word;
use crate::NOTES;

/// The work request that opens the first memory. Grants have their numbers.
pub(crate) const FIRST: u64 = u64::MAX;

/// A pair that is joined again whenever the peer has lost it.
pub(crate) struct Joined {
    device: Arc<dyn Device>,
    /// `None` once the link has ended.
    pair: Option<Box<dyn Pair>>,
    epoch: u32,
    /// By which the peer writes to the first memory; `None` while that is opened.
    first: Option<Remote>,
    address: u64,
    /// What the pair says, and what of it was not looked at yet.
    polled: Vec<Done>,
    waiting: VecDeque<Done>,
}

impl Joined {
    /// Over a pair to which the first memory at `address` is open by a key.
    pub(crate) fn new(device: Arc<dyn Device>, (pair, key, address): (Box<dyn Pair>, u32, usize)) -> Self {
        let address = address as u64;
        let first = Some(Remote { address, key });
        let (polled, waiting) = (Vec::new(), VecDeque::new());
        Self { device, pair: Some(pair), epoch: 0, first, address, polled, waiting }
    }

    /// By which the peer writes to the first memory; `None` while pairs are exchanged: nothing can be opened then.
    pub(crate) fn first(&self) -> Option<Remote> {
        self.first
    }

    pub(crate) fn post(&mut self, id: u64, work: Work) -> Result<()> {
        self.pair.as_mut().map_or(Ok(()), |pair| pair.post(id, work)).map_err(|error| refused(&error))
    }

    /// Copies what is at `at` of the memory that this key opens; whether there is so much.
    pub(crate) fn peek(&self, key: u32, at: usize, into: &mut [u8]) -> bool {
        self.pair.as_ref().is_some_and(|pair| pair.peek(key, at, into))
    }

    /// The same of the first memory.
    pub(crate) fn peek_first(&self, at: usize, into: &mut [u8]) -> bool {
        self.first.is_some_and(|first| self.peek(first.key, at, into))
    }

    /// What has happened next. The peer is told of its new pair, and of a pair that is lost.
    ///
    /// # Errors
    /// With which the link ends.
    pub(crate) fn next(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Done>> {
        while let Some(done) = self.poll(context) {
            match done {
                Done::Lost(fault) if fault.may_retry() => outbox.say(&Word::Broken { epoch: self.epoch }),
                Done::Lost(_) => {
                    return Err(Error::closed(RECEIVE, "the device broke the pair (access error)"))
                }
                done => return Ok(Some(self.look(done, outbox))),
            }
        }
        Ok(None)
    }

    /// What has happened next to a pair that the peer has lost.
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
            outbox.say(&Word::Ring { epoch: self.epoch, endpoint: pair.endpoint(), ring: *ring });
        }
        done
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`](thalweg_transport::ErrorKind::Corrupt) if this is no pair after the last.
    pub(crate) fn check(&self, epoch: u32) -> Result<()> {
        if epoch <= self.epoch {
            return Err(corrupt("an old pair"));
        }
        Ok(())
    }

    /// The peer has lost its pair and made another: joins it, and opens the first memory to it. Returns the other memory that
    /// was open, by where it begins. All of each was claimed at once.
    ///
    /// # Errors
    /// [`ErrorKind::System`](thalweg_transport::ErrorKind::System) if the device cannot.
    pub(crate) fn renew(&mut self, epoch: u32, endpoint: &Endpoint) -> Result<BTreeMap<u64, Claim>> {
        let open = self.pair.take().map(|mut pair| pair.break_off()).unwrap_or_default();
        let mut memory: BTreeMap<u64, Claim> = open
            .into_iter()
            .filter_map(|(_, memory)| memory.into_claims().pop())
            .map(|claim| (claim.as_ptr() as u64, claim))
            .collect();
        let mut pair = self.device.pair(NOTES).map_err(|error| refused(&error))?;
        pair.connect(endpoint).map_err(|error| refused(&error))?;
        (self.epoch, self.first, self.pair) = (epoch, None, Some(pair));
        let first = memory.remove(&self.address).ok_or_else(|| corrupt("a pair that was not whole"))?;
        self.post(FIRST, Work::Open(first.into()))?;
        Ok(memory)
    }

    /// Ends it: the peer writes to no memory from here on.
    pub(crate) fn stop(&mut self) {
        if let Some(mut pair) = self.pair.take() {
            drop(pair.break_off());
        }
        self.waiting.clear();
    }
}
