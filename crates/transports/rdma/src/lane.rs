//! What a side that writes keeps for each of its pairs: the pair, the peer's ring, and the pieces on their way.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Context;

use thalweg_rdma_proto::{Config, Mover, Time, Verdict};
use thalweg_transport::Result;
use thalweg_verbs::{Device, Done, Endpoint, Pair, Remote, Work};

use crate::entry::Records;
use crate::outbox::Outbox;
use crate::outgoing::refused;
use crate::pool::Pool;
use crate::words::Word;
use crate::NOTES;

/// One pair of a side that writes. Lanes share nothing: each has a window of its own, and commit records that
/// wait for a slow pair take no place from those of another.
pub(crate) struct Lane {
    /// Number of the pair among the pairs of its direction.
    number: u8,
    pair: Option<Box<dyn Pair>>,
    /// The peer's ring or slot; `None` while a lost pair is being replaced.
    pub(crate) ring: Option<Remote>,
    epoch: u32,
    pub(crate) mover: Mover,
    /// The grant of each work request in flight.
    pub(crate) posted: HashMap<u64, u64>,
    pub(crate) records: Records,
}

impl Lane {
    /// The lane of one of `pairs` pairs that is connected to the peer's ring or slot.
    ///
    /// # Errors
    /// As [`Records::new`].
    pub(crate) fn new(
        (number, pairs): (u8, usize),
        (pair, ring): (Box<dyn Pair>, Remote),
        config: Config,
        pool: &Pool,
    ) -> Result<Self> {
        let (mover, records) = (Mover::sharing(config, pairs), Records::new(pool)?);
        let (pair, ring) = (Some(pair), Some(ring));
        Ok(Self { number, pair, ring, epoch: 0, mover, posted: HashMap::new(), records })
    }

    /// Whether a work request of this part has not completed yet.
    pub(crate) fn flies(&self, number: u64) -> bool {
        self.posted.values().any(|&of| of == number)
    }

    /// Whether a message about this epoch of the pair is about the present pair, not about one that was replaced.
    pub(crate) fn is_current(&self, epoch: u32) -> bool {
        epoch == self.epoch
    }

    /// Adds the pair's new events to `done`; false if there are none.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, done: &mut Vec<Done>) -> bool {
        self.pair.as_mut().is_some_and(|pair| pair.poll(context, done).is_ready())
    }

    /// Posts a work request of a part; false if there is no pair.
    ///
    /// # Errors
    /// [`thalweg_transport::ErrorKind::System`] if the device refuses.
    pub(crate) fn post(&mut self, piece: u64, number: u64, work: Work) -> Result<bool> {
        let Some(pair) = self.pair.as_mut() else { return Ok(false) };
        pair.post(piece, work).map_err(|error| refused(&error))?;
        self.posted.insert(piece, number);
        Ok(true)
    }

    /// Connects the new pair to the peer's end. Returns whether it was the one that waits for this.
    ///
    /// # Errors
    /// [`thalweg_transport::ErrorKind::System`] if the device cannot connect to it.
    pub(crate) fn connect(&mut self, epoch: u32, endpoint: &Endpoint, ring: Remote) -> Result<bool> {
        let waits = epoch == self.epoch && self.ring.is_none();
        let Some(pair) = self.pair.as_mut().filter(|_| waits) else { return Ok(false) };
        pair.connect(endpoint).map_err(|error| refused(&error))?;
        self.ring = Some(ring);
        Ok(true)
    }

    /// Breaks the pair off. From here on the device uses no bytes of its work requests.
    pub(crate) fn break_off(&mut self) {
        self.ring = None;
        if let Some(mut pair) = self.pair.take() {
            pair.break_off();
        }
    }

    /// Forgets the work requests of a pair that was broken off, and counts the loss. Says whether the pair is to be
    /// replaced, or was lost too often.
    pub(crate) fn lose(&mut self, now: Time) -> Verdict {
        self.posted.clear();
        self.mover.handle_lost_pair(now)
    }

    /// Makes the pair that follows a lost one.
    ///
    /// # Errors
    /// [`thalweg_transport::ErrorKind::System`] if the device refuses.
    pub(crate) fn renew(&mut self, device: &Arc<dyn Device>, outbox: &Outbox) -> Result<()> {
        let pair = device.pair(NOTES).map_err(|error| refused(&error))?;
        self.epoch += 1;
        outbox.say(&Word::Renew { pair: self.number, epoch: self.epoch, endpoint: pair.endpoint() });
        self.pair = Some(pair);
        Ok(())
    }
}
