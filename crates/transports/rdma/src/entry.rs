//! Chunks that were offered, and the records that go with them: commits, or headers of pieces.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_pieces::Grant;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Remote, Work};
use thalweg_wire::{checksum, Range};

use crate::piece::Piece;
use crate::pool::Pool;
use crate::settings::{Style, SLOTS};
use crate::tracker::Tracker;
use crate::words::RECORD;

/// Records are written here before they leave: more than there are slots, as a slot may be free before its last
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

/// Records on their way out.
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

    /// A record in registered memory.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if more are on their way than there are slots.
    pub(crate) fn write(&mut self, record: &[u8; RECORD]) -> Result<Bytes> {
        let start = self.next % RECORDS * RECORD as u64;
        self.next += 1;
        let place = Range::new(start, start + RECORD as u64);
        let busy = |error: thalweg_arena::ArenaError| {
            Error::new(ErrorKind::System, "send update", error.to_string())
        };
        self.arena.claim(place).map_err(busy)?.copy_from_slice(record);
        self.arena.lend(place).map_err(busy)
    }

    /// The work request that writes a piece of a chunk, and how many bytes it has.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn piece(
        &mut self,
        style: Style,
        grant: &Grant,
        range: Range,
        bytes: Bytes,
        slot: Remote,
    ) -> Result<(Work, u64)> {
        let Grant { number, length, address, key } = *grant;
        let at = |start: u64| Remote { address: address.wrapping_add(start), key };
        let (bare, headed) = (range.len(), range.len() + RECORD as u64);
        match style {
            Style::Slot => {
                let piece = Piece { number, range, checksum: checksum(&bytes) };
                let bytes = vec![self.write(&piece.encode())?, bytes];
                Ok((Work::Note { bytes, to: slot, note: 0 }, headed))
            }
            // The header stands in front of the data, and goes with its first piece.
            Style::Printed if range.start == 0 => {
                let whole = Piece { number, range: Range::new(0, length), checksum: 0 };
                let bytes = vec![self.write(&whole.encode())?, bytes];
                Ok((Work::Write { bytes, to: at(0) }, headed))
            }
            Style::Printed => {
                Ok((Work::Write { bytes: vec![bytes], to: at(range.start + RECORD as u64) }, bare))
            }
            Style::Writes | Style::Pull => {
                Ok((Work::Write { bytes: vec![bytes], to: at(range.start) }, bare))
            }
        }
    }
}
