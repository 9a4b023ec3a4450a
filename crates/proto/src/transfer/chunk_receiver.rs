//! What all clients do with the chunks of a parcel.

use thalweg_wire::{ChunkHeader, Range};

use super::{Fit, Incoming};
use crate::Time;

/// A machine that receives parcels in chunks.
pub trait ChunkReceiver {
    /// The parcel of this chunk, while it is being received.
    fn receiving(&mut self, chunk: &ChunkHeader) -> Option<&mut Incoming>;

    /// How a chunk fits the parcel that is being received, and the bytes of the whole parcel.
    fn fit(&mut self, now: Time, chunk: &ChunkHeader) -> (Fit, u64) {
        let Some(incoming) = self.receiving(chunk) else { return (Fit::Nothing, 0) };
        (incoming.fit(now, chunk.range()), incoming.reassembly().total())
    }

    /// Whether all of a chunk would be new, before any of its bytes arrive. It changes no state, because the
    /// chunk may never arrive.
    fn foresees(&mut self, chunk: &ChunkHeader) -> bool {
        self.receiving(chunk).is_some_and(|incoming| incoming.reassembly().fit(chunk.range()) == Fit::New)
    }

    /// Reports that the first bytes of a chunk have arrived. The driver asks for its place later, when it
    /// knows the chunk's length.
    fn begun(&mut self, now: Time, chunk: &ChunkHeader) {
        if let Some(incoming) = self.receiving(chunk) {
            incoming.reassembly_mut().touch(now);
        }
    }

    /// Reports that a chunk was received intact (`ok`) or damaged. Returns its new ranges.
    fn stored(&mut self, now: Time, chunk: &ChunkHeader, ok: bool) -> Vec<Range> {
        let Some(incoming) = self.receiving(chunk) else { return Vec::new() };
        if !ok {
            incoming.reassembly_mut().corrupt();
            return Vec::new();
        }
        incoming.store(now, chunk.range())
    }
}
