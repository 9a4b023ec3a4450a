//! Chunks that were offered, and the commit records that follow them.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_wire::Range;

use crate::pool::Pool;
use crate::settings::SLOTS;
use crate::tracker::Tracker;
use crate::words::{record, RECORD};

/// Commit records are written here before they leave: more than there are slots, as a slot may be free before its last
/// record's completion is known.
const RECORDS: u64 = 2 * SLOTS as u64;

pub(crate) enum State {
    Offered,
    Granted,
    /// Nobody wants it here any more. It ends with its last completion, or if it is committed, when the peer has taken it.
    Leaving {
        committed: bool,
    },
}

/// A chunk that was offered and not yet taken.
pub(crate) struct Entry {
    pub(crate) state: State,
    pub(crate) length: u64,
    pub(crate) bytes: Bytes,
    /// Where the bytes were copied to, if they lay in no registered arena.
    pub(crate) staged: Option<Arena>,
    /// Whom to tell when nothing of the chunk is used any more.
    pub(crate) tracker: Option<Arc<Tracker>>,
}

impl Entry {
    /// Nothing of the chunk is used any more.
    pub(crate) fn release(&mut self, number: u64) {
        if let Some(tracker) = self.tracker.take() {
            tracker.ended(number);
        }
    }
}

/// Commit records on their way out.
pub(crate) struct Records {
    arena: Arena,
    next: u64,
}

impl Records {
    /// # Errors
    /// [`ErrorKind::System`] without memory that may be registered.
    pub(crate) fn new(pool: &Pool) -> Result<Self> {
        Ok(Self { arena: pool.take(RECORDS as usize * RECORD)?, next: 0 })
    }

    /// The record of a grant, in registered memory.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if more are on their way than there are slots.
    pub(crate) fn write(&mut self, number: u64) -> Result<Bytes> {
        let start = self.next % RECORDS * RECORD as u64;
        self.next += 1;
        let place = Range::new(start, start + RECORD as u64);
        let busy = |error: thalweg_arena::ArenaError| {
            Error::new(ErrorKind::System, "send update", error.to_string())
        };
        self.arena.claim(place).map_err(busy)?.copy_from_slice(&record(number));
        self.arena.lend(place).map_err(busy)
    }
}
