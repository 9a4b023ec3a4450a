//! Traits for the sending and the receiving side of a link. The mode decides which of them moves the bytes.

use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

use bytes::Bytes;
use thalweg_arena::{Arena, Claim};
use thalweg_transport::{ChunkRef, Result};

use crate::arrivals::Arrivals;
use crate::extent::{Extent, Part};
use crate::outbox::Outbox;
use crate::tracker::Tracker;
use crate::words::Word;

/// A part that is offered. Its bytes lie in registered memory.
pub(crate) struct Offered {
    pub(crate) bytes: Bytes,
    /// The pool arena with a copy of the bytes, if the bytes were copied.
    pub(crate) staged: Option<Arena>,
    pub(crate) chunks: Vec<ChunkRef>,
}

/// The side that sends parts.
pub(crate) trait Sends: Send {
    /// Whether a part of `bytes` bytes may be offered now. `copied`: they were copied into memory of the link's own.
    fn has_room(&self, bytes: u64, copied: bool) -> bool;

    /// Number of parts that were offered and have not ended. When the number falls, `has_room` and
    /// `is_leaving` may change.
    fn chunks(&self) -> usize;

    /// Whether a withdrawn part still waits for a completion before its `Withdraw` can be sent.
    fn is_leaving(&self) -> bool;

    /// Offers the next part of an extent: with `extent`, the first one, and the extent with it.
    ///
    /// # Errors
    /// Errors of the device.
    fn offer(
        &mut self,
        extent: Option<Extent>,
        part: Offered,
        tracker: &Arc<Tracker>,
        outbox: &Outbox,
    ) -> Result<()>;

    /// Withdraws a part. Its bytes are free once its tracker lists the part as ended.
    fn withdraw(&mut self, number: u64, outbox: &Outbox);

    /// Handles a message from the receiving side.
    ///
    /// # Errors
    /// Every error ends the link.
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()>;

    /// Makes as much progress as possible. Returns when to poll again if no event arrives earlier.
    ///
    /// # Errors
    /// Every error ends the link: three pairs were lost without progress, or the peer forbids what it
    /// allowed.
    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Instant>>;

    /// Stops the side. From here on the device uses no bytes of it, and all its chunks count as ended.
    fn stop(&mut self);
}

/// The side that receives chunks.
pub(crate) trait Receives: Send {
    /// Handles a message from the sending side.
    ///
    /// # Errors
    /// Every error ends the link.
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()>;

    /// Handles the pair's events, unless [`Self::drive`] does so. Registers the waker of `receive`.
    ///
    /// # Errors
    /// Every error ends the link.
    fn poll(&mut self, context: &mut Context<'_>, _: &Outbox) -> Result<()> {
        self.arrivals().receiver_waits(context);
        Ok(())
    }

    /// Makes progress without `receive` being called, where this side reads or polls for headers. Works as
    /// [`Sends::poll`].
    ///
    /// # Errors
    /// Every error ends the link.
    fn drive(&mut self, _: &mut Context<'_>, _: &Outbox) -> Result<Option<Instant>> {
        Ok(None)
    }

    /// The peer's offers, the credit for parts, and the parts that have arrived.
    fn arrivals(&mut self) -> &mut Arrivals;

    /// Whether memory can be granted now. False while a lost pair is being replaced.
    fn may_grant(&self) -> bool {
        true
    }

    /// The oldest offer that is not yet granted, if its number is below `count` and there is credit for it.
    /// Takes that credit. The caller then calls [`Self::grant`].
    fn next_offer(&mut self, count: u64) -> Option<(u64, Part)> {
        self.may_grant().then(|| self.arrivals().next_offer(count)).flatten()
    }

    /// Grants memory for an offer, unless the peer has withdrawn it while the sink was asked for its place.
    ///
    /// # Errors
    /// As [`Self::grant_memory`].
    fn grant(&mut self, number: u64, part: Part, places: Vec<Option<Claim>>, outbox: &Outbox) -> Result<()> {
        if !self.arrivals().placed(number, part.bytes) {
            return Ok(());
        }
        self.grant_memory(number, part, places, outbox)
    }

    /// Grants memory to a part: the places that the sink gave for its chunks, or an arena of the link's pool.
    ///
    /// # Errors
    /// [`thalweg_transport::ErrorKind::System`] if no memory is left, or no more may be registered.
    fn grant_memory(
        &mut self,
        number: u64,
        part: Part,
        places: Vec<Option<Claim>>,
        outbox: &Outbox,
    ) -> Result<()>;

    /// Whether no chunk that the peer has committed or withdrawn is still on its way.
    fn is_settled(&self) -> bool;

    /// Stops the side. From here on the device uses no memory of it.
    fn stop(&mut self);
}

/// Where a part's bytes are received.
pub(crate) enum Landing {
    /// In the places that the sink has given, one for each chunk.
    Places,
    /// In an arena of the pool. The link then copies them to the places that the sink gave for the chunks.
    Pool(Arena, Vec<Option<Claim>>),
}

/// A part that has arrived, in memory that the peer cannot reach any more.
pub(crate) struct Came {
    pub(crate) number: u64,
    pub(crate) part: Part,
    /// The part's checksum, as its sender says.
    pub(crate) sum: u32,
    /// The part's bytes: a claim for each chunk, or one for all.
    pub(crate) bytes: Vec<Claim>,
    pub(crate) landing: Landing,
    /// How often the bytes were copied so far.
    pub(crate) copies: u64,
}
