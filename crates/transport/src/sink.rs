//! The sink: a link gives it the chunks that it receives, and the sink gives each chunk its place.

use thalweg_arena::Claim;
use thalweg_wire::{ChunkHeader, Ranges, WireError};

/// The memory that a chunk is received into.
#[derive(Debug)]
pub enum Target {
    /// The chunk's final place in an arena.
    Place(Claim),
    /// A buffer, exactly as long as the chunk. The sink folds or copies the bytes from there.
    Scratch(Vec<u8>),
}

impl Target {
    /// The bytes to write, as many as the chunk has.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Target::Place(claim) => claim,
            Target::Scratch(buffer) => buffer,
        }
    }

    /// The bytes that were received.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Target::Place(claim) => claim,
            Target::Scratch(buffer) => buffer,
        }
    }
}

/// Takes the chunks that a link receives. A link with several streams calls it from several tasks at the same
/// time. If parts of a chunk are lost, the received parts may arrive as chunks of their own.
pub trait Sink: Send + Sync {
    /// Returns the place for a chunk. `None` if the chunk is not wanted (it is late, a duplicate, or not
    /// ours); then the transport drops it.
    fn place(&self, chunk: &ChunkHeader) -> Option<Target>;

    /// Returns the claim for a chunk before any of its bytes arrive, for transports whose peer writes there
    /// by itself. If the sink returns a claim, which is as long as the chunk, the transport does not call
    /// [`Sink::place`] for it. When the bytes have arrived, `stored` gets the claim as its target; if they
    /// never arrive, the transport drops the claim. `None` if the sink does not decide beforehand, or does
    /// not want the chunk: then the transport calls [`Sink::place`] when the chunk arrives.
    fn prepare(&self, _chunk: &ChunkHeader) -> Option<Claim> {
        None
    }

    /// Reports that the first bytes of `chunk` have reached this end. The transport asks for its place later.
    /// Transports that must have a whole chunk first call this, at least for the first chunk of an update.
    ///
    /// It makes the start of an update comparable over all transports: the time when its first bytes reach
    /// the receiver. A transport that receives chunks straight into their places calls [`Sink::place`] at
    /// that time. This call reports a time and nothing else: only the header has been checked, and the chunk
    /// may never arrive.
    fn begun(&self, _chunk: &ChunkHeader) {}

    /// Reports that `bytes` more bytes of chunks have arrived. This distinguishes a slow peer from a dead
    /// one.
    fn progress(&self, bytes: u64);

    /// Reports that the chunk is in its place. `outcome` is the result of the checksum's verification.
    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>);

    /// Reports that the chunk is in its place except for `holes`, offsets from the chunk's beginning; their
    /// bytes will never arrive. A sink that cannot use a chunk with holes returns the target, and gets the
    /// received parts ([`crate::hand_over`]).
    fn holed(&self, _chunk: &ChunkHeader, target: Target, _holes: &Ranges) -> Option<Target> {
        Some(target)
    }
}

/// A sink that takes no chunk, for waiting for a message before there can be any chunks.
#[derive(Debug, Clone, Copy)]
pub struct NoChunks;

impl Sink for NoChunks {
    fn place(&self, _: &ChunkHeader) -> Option<Target> {
        None
    }

    fn progress(&self, _: u64) {}

    fn stored(&self, _: &ChunkHeader, _: Target, _: Result<(), WireError>) {}
}
