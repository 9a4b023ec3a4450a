//! The state that the sending side keeps for each offered chunk, and the buffer for commit records and
//! headers of pieces.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_rdma_proto::Grant;
use thalweg_transport::{Error, ErrorKind, Result};
use thalweg_verbs::{Remote, Work};
use thalweg_wire::{checksum, Range};

use crate::piece::Piece;
use crate::pool::Pool;
use crate::settings::{Style, SLOTS};
use crate::tracker::Tracker;
use crate::words::RECORD;

/// Number of records that the send buffer holds: twice the slots of the ring. The receiver may free a slot
/// before this side sees the completion of the record that it wrote there.
const RECORDS: u64 = 2 * SLOTS as u64;

pub(crate) enum State {
    Offered,
    Granted,
    /// The chunk was withdrawn. If it is committed, the entry ends when the peer has taken it; else with the
    /// last completion of its work requests.
    Leaving {
        committed: bool,
    },
}

/// A chunk that was offered and not yet taken.
pub(crate) struct Entry {
    pub(crate) state: State,
    pub(crate) length: u64,
    pub(crate) bytes: Bytes,
    /// The pool arena with a copy of the bytes, if the bytes were in no registered arena.
    pub(crate) staged: Option<Arena>,
    /// To be notified when the chunk's bytes are free.
    pub(crate) tracker: Option<Arc<Tracker>>,
}

impl Entry {
    /// Notifies the tracker that the chunk's bytes are free.
    pub(crate) fn release(&mut self, number: u64) {
        if let Some(tracker) = self.tracker.take() {
            tracker.ended(number);
        }
    }
}

/// A ring buffer of commit records and headers that are being sent.
pub(crate) struct Records {
    arena: Arena,
    next: u64,
}

impl Records {
    /// # Errors
    /// [`ErrorKind::System`] if no memory is left, or no more may be registered.
    pub(crate) fn new(pool: &Pool) -> Result<Self> {
        Ok(Self { arena: pool.take(RECORDS as usize * RECORD)?, next: 0 })
    }

    /// Copies a record into registered memory.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the record written there before is still being sent.
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

    /// The work request that writes a piece of a chunk, and how many bytes it writes.
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
            // The chunk's header stands in front of its data. It is written together with the first piece.
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
