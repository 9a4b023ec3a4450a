//! Where received chunks go.

use thalweg_arena::Claim;
use thalweg_wire::{ChunkHeader, Ranges, WireError};

/// The place a chunk is received into.
#[derive(Debug)]
pub enum Target {
    /// Its final place.
    Place(Claim),
    /// A buffer to be folded or copied from; exactly as long as the chunk.
    Scratch(Vec<u8>),
}

impl Target {
    /// The bytes to write; as long as the chunk.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Target::Place(claim) => claim,
            Target::Scratch(buffer) => buffer,
        }
    }

    /// The bytes received.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Target::Place(claim) => claim,
            Target::Scratch(buffer) => buffer,
        }
    }
}

/// Takes what a link receives. Called from several tasks at once where a link has several streams. Where parts of a chunk
/// are lost, what came of it may be handed over as chunks of their own.
pub trait Sink: Send + Sync {
    /// Where the chunk goes; `None` if nobody wants it (late, duplicate, not ours): the transport drops it.
    fn place(&self, chunk: &ChunkHeader) -> Option<Target>;

    /// Where the chunk will go, asked before any of its bytes come, by a transport whose peer writes there by itself. A
    /// chunk for which the sink gives a claim, as long as the chunk, is not asked for again: when its bytes are there,
    /// `stored` gets the claim as its target. If they never come, the transport drops the claim. `None` if the sink does
    /// not say beforehand, or if nobody wants it: the transport asks for a place when the chunk comes.
    fn prepare(&self, _chunk: &ChunkHeader) -> Option<Claim> {
        None
    }

    /// The first bytes of `chunk` have reached this end, and its place is asked for later: whoever calls this has to have
    /// the chunk whole first. It is called for the first chunk of an update at least.
    ///
    /// So the receiving of an update begins at the same time over all transports: when its first bytes reach the receiver.
    /// Where chunks are received straight into their places, [`Sink::place`] is called then. This call tells a time and
    /// nothing else: only the header has been checked, and the chunk may never come.
    fn begun(&self, _chunk: &ChunkHeader) {}

    /// `bytes` more bytes of chunks have come, in order to tell a slow peer from a dead one.
    fn progress(&self, bytes: u64);

    /// The chunk is in its place and its checksum matches, or `Err` says that it does not.
    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>);

    /// The chunk is in its place but for `holes`, offsets from its begin, of which nothing will come. A sink that makes
    /// nothing of a whole chunk with holes gives the target back, and gets the parts that came ([`crate::hand_over`]).
    fn holed(&self, _chunk: &ChunkHeader, target: Target, _holes: &Ranges) -> Option<Target> {
        Some(target)
    }
}

/// A sink that takes no chunk, for whoever waits for a message before there can be any.
#[derive(Debug, Clone, Copy)]
pub struct NoChunks;

impl Sink for NoChunks {
    fn place(&self, _: &ChunkHeader) -> Option<Target> {
        None
    }

    fn progress(&self, _: u64) {}

    fn stored(&self, _: &ChunkHeader, _: Target, _: Result<(), WireError>) {}
}
