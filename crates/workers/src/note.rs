//! Notes: messages of 64 bytes between a node and a worker.
//!
//! | bytes | content, little-endian |
//! |---|---|
//! | 0..2, 2..4 | destination and source: 0 is the node; each worker process has a number of its own |
//! | 4..8 | task: the worker's epoch |
//! | 8..12 | round |
//! | 12..16 | sequence: number of the update in the round |
//! | 16..18 | kind |
//! | 18..20 | number: counts the notes from this sender to this receiver, over either connection |
//! | 20..24 | slot: of the pool, or of the worker's sums |
//! | 24..32 | generation of the slot |
//! | 32..48 | key |
//! | 48..56 | weight, an f64 |
//! | 56..64 | number of bytes that follow the note |
//!
//! `Folded` is followed by the time at which the worker opened the object, in nanoseconds of the monotonic
//! clock (8 bytes). `Refused` is followed by a reason. `Committed` is followed by the CPU time of the process
//! in nanoseconds (8 bytes) and the head of its sums. `Merge` has the other worker's index as its sequence, and
//! the slot of that worker's sums; their head follows.

use thalweg_shm_pool::{Key, Name};

/// Bytes of a note.
pub const NOTE_BYTES: usize = 64;
/// Maximum number of bytes that may follow a note. A head of sums with one and a half million weight runs
/// fits.
pub(crate) const MOST_FOLLOWING: u64 = 64 << 20;

/// Kind of a note: an order to a worker, or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// To a worker: a round begins.
    Begin = 1,
    /// To a worker: discard the updates that are not committed.
    Rollback = 2,
    /// To a worker: commit the sums.
    Commit = 3,
    /// To a worker: add an object to the sums.
    Fold = 4,
    /// From a worker: the object was added.
    Folded = 5,
    /// From a worker: the object cannot be added.
    Refused = 6,
    /// From a worker: the sums are committed.
    Committed = 7,
    /// To a worker: send the committed sums over the connection for copies.
    Send = 8,
    /// From a worker, always first: it has mapped its memory and takes orders.
    Ready = 9,
    /// To a worker: add the committed sums of another worker to the sums.
    Merge = 10,
    /// From a worker: the other worker's sums were added.
    Merged = 11,
}

impl Kind {
    fn of(number: u16) -> Option<Self> {
        let all = [
            Self::Begin,
            Self::Rollback,
            Self::Commit,
            Self::Fold,
            Self::Folded,
            Self::Refused,
            Self::Committed,
            Self::Send,
            Self::Ready,
            Self::Merge,
            Self::Merged,
        ];
        all.into_iter().find(|&kind| kind as u16 == number)
    }
}

/// A message of fixed size: an order to a worker, or its answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Note {
    /// Number of the receiving process; 0 is the node.
    pub destination: u16,
    /// Number of the sending process; 0 is the node.
    pub source: u16,
    /// The worker's epoch; see [`Action::Tell`](crate::Action::Tell).
    pub task: u32,
    /// Number of the round.
    pub round: u32,
    /// Sequence number of the update in the round.
    pub sequence: u32,
    /// Kind of the note.
    pub kind: Kind,
    /// Number of earlier notes from this sender to this receiver, modulo 2^16. It restores the order of notes
    /// that took two connections.
    pub number: u16,
    /// Name of the object. In [`Kind::Committed`], its slot is the slot of the sums.
    pub name: Name,
    /// The update's weight.
    pub weight: f64,
    /// Number of bytes that follow the note.
    pub following: u64,
}

impl Note {
    /// A note about no object.
    pub(crate) fn plain(source: u16, destination: u16, task: u32, kind: Kind) -> Self {
        let name = Name { slot: 0, generation: 0, key: Key::default() };
        Self {
            destination,
            source,
            task,
            round: 0,
            sequence: 0,
            kind,
            number: 0,
            name,
            weight: 0.0,
            following: 0,
        }
    }

    /// The note's bytes, in the format of the module's table.
    pub fn encode(&self) -> [u8; NOTE_BYTES] {
        let mut out = [0; NOTE_BYTES];
        out[0..2].copy_from_slice(&self.destination.to_le_bytes());
        out[2..4].copy_from_slice(&self.source.to_le_bytes());
        out[4..8].copy_from_slice(&self.task.to_le_bytes());
        out[8..12].copy_from_slice(&self.round.to_le_bytes());
        out[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..18].copy_from_slice(&(self.kind as u16).to_le_bytes());
        out[18..20].copy_from_slice(&self.number.to_le_bytes());
        out[20..24].copy_from_slice(&self.name.slot.to_le_bytes());
        out[24..32].copy_from_slice(&self.name.generation.to_le_bytes());
        out[32..48].copy_from_slice(&self.name.key);
        out[48..56].copy_from_slice(&self.weight.to_le_bytes());
        out[56..64].copy_from_slice(&self.following.to_le_bytes());
        out
    }

    /// Decodes a note; `None` if the kind is unknown or too many bytes are to follow.
    pub fn decode(bytes: &[u8; NOTE_BYTES]) -> Option<Self> {
        let name = Name {
            slot: u32::from_le_bytes(at(bytes, 20)),
            generation: u64::from_le_bytes(at(bytes, 24)),
            key: at(bytes, 32),
        };
        let note = Self {
            destination: u16::from_le_bytes(at(bytes, 0)),
            source: u16::from_le_bytes(at(bytes, 2)),
            task: u32::from_le_bytes(at(bytes, 4)),
            round: u32::from_le_bytes(at(bytes, 8)),
            sequence: u32::from_le_bytes(at(bytes, 12)),
            kind: Kind::of(u16::from_le_bytes(at(bytes, 16)))?,
            number: u16::from_le_bytes(at(bytes, 18)),
            name,
            weight: f64::from_le_bytes(at(bytes, 48)),
            following: u64::from_le_bytes(at(bytes, 56)),
        };
        (note.following <= MOST_FOLLOWING).then_some(note)
    }
}

fn at<const N: usize>(bytes: &[u8; NOTE_BYTES], start: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[start..start + N]);
    out
}
