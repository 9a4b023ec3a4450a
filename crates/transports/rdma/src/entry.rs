//! The state that the sending side keeps for each offered part, and the buffer for commit records and
//! headers of pieces.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_arena::Arena;
use thalweg_transport::{ChunkRef, Error, ErrorKind, Result};
use thalweg_wire::Range;

use crate::extent::checksum_of_chunks;
use crate::pool::Pool;
use crate::settings::SLOTS;
use crate::tracker::Tracker;
use crate::words::RECORD;

/// Number of records that the send buffer holds: twice the slots of the ring. The receiver may free a slot
/// before this side sees the completion of the record that it wrote there.
const RECORDS: u64 = 2 * SLOTS as u64;

pub(crate) enum State {
    Offered,
    Granted,
    /// The part was withdrawn. If it was `committed` before, the entry stays until the peer answers `Taken`.
    /// Otherwise it stays until the last of its work requests has completed.
    Leaving {
        committed: bool,
    },
    /// The peer has said that it has taken the part, but a work request of the part has not completed yet. Until it
    /// completes, the device holds the part's bytes. The two events travel by different ways, so either may be first.
    Taken,
}

/// A part that was offered. The entry stays until the peer has taken the part, and the device has freed its bytes.
pub(crate) struct Entry {
    pub(crate) state: State,
    /// Index of the pair that the peer granted memory to. It stays the same when that pair is replaced.
    pub(crate) pair: Option<usize>,
    pub(crate) length: u64,
    pub(crate) bytes: Bytes,
    pub(crate) chunks: Vec<ChunkRef>,
    /// The pool arena with a copy of the bytes, if the bytes were in no registered arena.
    pub(crate) staged: Option<Arena>,
    /// To be notified when the part's bytes are free.
    pub(crate) tracker: Option<Arc<Tracker>>,
}

impl Entry {
    /// The part's checksum. It computes those of the chunks that have none yet.
    pub(crate) fn sum(&self) -> u32 {
        checksum_of_chunks(&self.chunks, &self.bytes)
    }

    /// Notifies the tracker that the part's bytes are free.
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
}
