//! The two sides of a link, whoever of them moves the bytes.

use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

use bytes::Bytes;
use thalweg_arena::{Arena, Claim};
use thalweg_transport::Result;
use thalweg_wire::FrameHeader;

use crate::arrivals::Arrivals;
use crate::outbox::Outbox;
use crate::tracker::Tracker;
use crate::words::Word;

/// The side that has chunks.
pub(crate) trait Sends: Send {
    /// Whether a chunk of so many bytes may be offered now.
    fn has_room(&self, bytes: u64) -> bool;

    /// How many chunks were offered and have not ended. Whenever they become fewer there may be room, and none may be leaving.
    fn chunks(&self) -> usize;

    /// Whether a chunk that nobody wants any more waits for a completion before the peer can be told.
    fn is_leaving(&self) -> bool;

    /// Offers a chunk, whose bytes lie in registered memory.
    ///
    /// # Errors
    /// Of the device.
    fn offer(
        &mut self,
        header: FrameHeader,
        bytes: Bytes,
        staged: Option<Arena>,
        tracker: &Arc<Tracker>,
        outbox: &Outbox,
    ) -> Result<()>;

    /// Takes a chunk back. Its bytes are free when its tracker says so.
    fn withdraw(&mut self, number: u64, outbox: &Outbox);

    /// The receiving side has said something.
    ///
    /// # Errors
    /// With which the link ends.
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()>;

    /// Goes on as far as it can, and says when it can again without anything happening before.
    ///
    /// # Errors
    /// With which the link ends: three pairs were lost without progress, or the peer forbids what it allowed.
    fn poll(&mut self, context: &mut Context<'_>, outbox: &Outbox) -> Result<Option<Instant>>;

    /// Ends it: no device uses the bytes from here on, and all trackers are told.
    fn stop(&mut self);
}

/// The side that gets them.
pub(crate) trait Receives: Send {
    /// The sending side has said something.
    ///
    /// # Errors
    /// With which the link ends.
    fn handle_word(&mut self, word: Word, outbox: &Outbox) -> Result<()>;

    /// Takes what has happened, unless [`Self::drive`] does. Whoever receives is woken when there is more.
    ///
    /// # Errors
    /// With which the link ends.
    fn poll(&mut self, context: &mut Context<'_>, _: &Outbox) -> Result<()> {
        self.arrivals().receiver_waits(context);
        Ok(())
    }

    /// Goes on by itself, as [`Sends::poll`] does, where the peer does not move everything.
    ///
    /// # Errors
    /// As there.
    fn drive(&mut self, _: &mut Context<'_>, _: &Outbox) -> Result<Option<Instant>> {
        Ok(None)
    }

    /// What has come.
    fn arrivals(&mut self) -> &mut Arrivals;

    /// How many offers there have been.
    fn offers(&self) -> u64;

    /// The next of the first `offers` offers for which there is credit, which is taken now. To be granted.
    fn next_offer(&mut self, offers: u64) -> Option<(u64, FrameHeader)>;

    /// Grants an offer memory: the claim that the sink gave, or some of the link's own.
    ///
    /// # Errors
    /// [`thalweg_transport::ErrorKind::System`] where there is no memory, or none that may be registered.
    fn grant(
        &mut self,
        number: u64,
        header: FrameHeader,
        place: Option<Claim>,
        outbox: &Outbox,
    ) -> Result<()>;

    /// Whether nothing is under way of what the peer has committed or has stopped sending.
    fn is_settled(&self) -> bool;

    /// Ends it: all memory is free from here on.
    fn stop(&mut self);
}

/// Where the bytes of a chunk are received.
pub(crate) enum Landing {
    /// In the place that the sink gave.
    Place,
    /// In memory of the link's own, and then in the sink's place if it gave one.
    Pool(Arena, Option<Claim>),
}

/// A chunk that has come, in memory that the peer cannot reach any more.
pub(crate) struct Came {
    pub(crate) number: u64,
    pub(crate) header: FrameHeader,
    /// The bytes, as long as the chunk.
    pub(crate) bytes: Claim,
    pub(crate) landing: Landing,
    /// How often they were copied on the way here.
    pub(crate) copies: u64,
}
