//! Limits how much memory a receiver grants to parts at a time, and hands that memory out.

use std::sync::Arc;

use thalweg_arena::{Arena, Claim};
use thalweg_rdma_proto::Credits;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Device, Memory};
use thalweg_wire::Range;

use crate::pool::Pool;
use crate::sides::Landing;
use crate::GRANTS;

/// Maximum number of bytes that are granted at a time.
const GRANTED: u64 = 256 << 20;
/// Maximum number of granted bytes that lie in the link's own pool.
const POOLED: u64 = 32 << 20;

/// Credit for parts, and the pool for parts whose chunks have no places that the device can use.
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

    /// Takes credit for a part; false if there is not enough now. There must be room in the pool too: only
    /// the sink's answer shows later whether the part needs it.
    pub(crate) fn take(&mut self, length: u64) -> bool {
        if !self.pooled.take(length) {
            return false;
        }
        self.pooled.give(length);
        self.credits.take(length)
    }

    /// Gives memory to a part that has credit: the sink's places for its chunks if they are contiguous and the
    /// device can register their arena, else an arena of the pool.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if no memory is left, or no more may be registered.
    pub(crate) fn land(&mut self, bytes: u64, places: Vec<Option<Claim>>) -> Result<(Memory, Landing)> {
        let known = |claim: &Claim| {
            let arena = Arena::of(claim).map(|(arena, _)| arena);
            arena.filter(|arena| self.device.register(arena).is_ok()).map(|arena| arena.as_ptr())
        };
        let follows = |two: &[Option<Claim>]| match two {
            [Some(one), Some(next)] => std::ptr::eq(one.as_ptr_range().end, next.as_ptr()),
            _ => false,
        };
        let first = places.first().and_then(|place| known(place.as_ref()?));
        let last = places.last().and_then(|place| known(place.as_ref()?));
        if first.is_some() && first == last && places.windows(2).all(follows) {
            if let Some(memory) = Memory::new(places.into_iter().flatten().collect()) {
                return Ok((memory, Landing::Places));
            }
            return Err(Error::new(ErrorKind::System, "receive", "places that are not contiguous"));
        }
        let (claim, landing) = self.keep(bytes, places)?;
        Ok((claim.into(), landing))
    }

    /// Gives pool memory to a part that has credit. When the link delivers the part, it copies the bytes to
    /// `places`, as far as there are some.
    ///
    /// # Errors
    /// As [`Self::land`].
    pub(crate) fn keep(&mut self, bytes: u64, places: Vec<Option<Claim>>) -> Result<(Claim, Landing)> {
        self.pooled.take(bytes);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        let arena = self.pool.take(length)?;
        let claim = arena.claim(Range::new(0, bytes));
        let claim = claim.map_err(|e| Error::new(ErrorKind::System, "receive", e.to_string()))?;
        Ok((claim, Landing::Pool(arena, places)))
    }

    /// Returns the credit of a chunk that was withdrawn before it got memory.
    pub(crate) fn give(&mut self, length: u64) {
        self.credits.give(length);
    }

    /// Returns the credit of a part that was delivered or dropped, and its pool memory.
    pub(crate) fn done(&mut self, length: u64, landing: Landing) {
        self.credits.give(length);
        if let Landing::Pool(arena, places) = landing {
            drop(places);
            self.pooled.give(length);
            self.pool.give(arena);
        }
    }
}
