//! The memory that a receiving side has promised to chunks.

use std::sync::Arc;

use thalweg_arena::{Arena, Claim};
use thalweg_pieces::Credits;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::Device;
use thalweg_wire::Range;

use crate::pool::Pool;
use crate::sides::Landing;
use crate::GRANTS;

/// Bytes that are promised at a time.
const GRANTED: u64 = 256 << 20;
/// Those of them that lie in memory of the link's own.
const POOLED: u64 = 32 << 20;

/// Credits, and memory of the link's own.
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

    /// Takes credit for a chunk, if there is some now. Memory of the link's own may be needed for any chunk.
    pub(crate) fn take(&mut self, length: u64) -> bool {
        if !self.pooled.take(length) {
            return false;
        }
        self.pooled.give(length);
        self.credits.take(length)
    }

    /// Memory for a chunk that has credit: the sink's place if the device knows it, else some of the link's own.
    ///
    /// # Errors
    /// [`ErrorKind::System`] where there is no memory, or none that may be registered.
    pub(crate) fn land(&mut self, length: u64, place: Option<Claim>) -> Result<(Claim, Landing)> {
        let known =
            |claim: &Claim| Arena::of(claim).is_some_and(|(arena, _)| self.device.register(&arena).is_ok());
        match place {
            Some(claim) if known(&claim) => Ok((claim, Landing::Place)),
            other => self.keep(length, other),
        }
    }

    /// Memory of the link's own for a chunk that has credit.
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

    /// Credit for a chunk that was never landed is free.
    pub(crate) fn give(&mut self, length: u64) {
        self.credits.give(length);
    }

    /// A chunk is taken or dropped, and its credit is free.
    pub(crate) fn done(&mut self, length: u64, landing: Landing) {
        self.credits.give(length);
        if let Landing::Pool(arena, place) = landing {
            drop(place);
            self.pooled.give(length);
            self.pool.give(arena);
        }
    }
}
