//! A sink for the time before the first message.

use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, WireError};

/// Takes nothing: before the first message there is nothing to take.
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    fn place(&self, _chunk: &ChunkHeader) -> Option<Target> {
        None
    }

    fn progress(&self, _bytes: u64) {}

    fn stored(&self, _chunk: &ChunkHeader, _target: Target, _outcome: Result<(), WireError>) {}
}
