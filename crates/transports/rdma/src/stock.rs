//! Limits how much memory a receiver grants to chunks at a time, and hands that memory out.

use std::sync::Arc;

use thalweg_arena::{Arena, Claim};
use thalweg_rdma_proto::Credits;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::Device;
use thalweg_wire::Range;

use crate::pool::Pool;
use crate::sides::Landing;
use crate::GRANTS;

/// Maximum number of bytes that are granted at a time.
const GRANTED: u64 = 256 << 20;
/// Maximum number of granted bytes that lie in the link's own pool.
const POOLED: u64 = 32 << 20;

/// Credit for chunks, and the pool for chunks whose place the device cannot use.
pub(crate) struct Stock {
    device: Arc<dyn Device>,
    pub(crate) pool: Arc<Pool>,
    credits: Credits,
    pooled: Credits,
}

impl Stock {
    pub(crate) fn new(device: Arc<dyn Device>, pool: Arc<Pool>) -> Self {
        let (credits, pooled) = (Credits::new(GRANTED, GRANTS), Credits::new(POOLED, GRANTS));
        Self { device, pool, credits, pooled }
    }

    /// Takes credit for a chunk; false if there is not enough now. There must be room in the pool too: only
    /// the sink's answer shows later whether the chunk needs it.
    pub(crate) fn take(&mut self, length: u64) -> bool {
        if !self.pooled.take(length) {
            return false;
        }
        self.pooled.give(length);
        self.credits.take(length)
    }

    /// Gives memory to a chunk that has credit: the sink's place if the device can register its arena, else a
    /// part of the pool.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if no memory is left, or no more may be registered.
    pub(crate) fn land(&mut self, length: u64, place: Option<Claim>) -> Result<(Claim, Landing)> {
        let known =
            |claim: &Claim| Arena::of(claim).is_some_and(|(arena, _)| self.device.register(&arena).is_ok());
        match place {
            Some(claim) if known(&claim) => Ok((claim, Landing::Place)),
            other => self.keep(length, other),
        }
    }

    /// Gives pool memory to a chunk that has credit. When the link delivers the chunk, it copies the bytes to
    /// `place`, if there is one.
    ///
    /// # Errors
    /// As [`Self::land`].
    pub(crate) fn keep(&mut self, length: u64, place: Option<Claim>) -> Result<(Claim, Landing)> {
        self.pooled.take(length);
        let arena = self.pool.take(length as usize)?;
        let claim = arena.claim(Range::new(0, length));
        let claim = claim.map_err(|e| Error::new(ErrorKind::System, "receive", e.to_string()))?;
        Ok((claim, Landing::Pool(arena, place)))
    }

    /// Returns the credit of a chunk that was withdrawn before it got memory.
    pub(crate) fn give(&mut self, length: u64) {
        self.credits.give(length);
    }

    /// Returns the credit of a chunk that was delivered or dropped, and its pool memory.
    pub(crate) fn done(&mut self, length: u64, landing: Landing) {
        self.credits.give(length);
        if let Landing::Pool(arena, place) = landing {
            drop(place);
            self.pooled.give(length);
            self.pool.give(arena);
        }
    }
}
