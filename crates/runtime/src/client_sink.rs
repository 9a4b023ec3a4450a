//! Where the global model's chunks go: into the client's arena.

use std::sync::Arc;

use thalweg_proto::Fit;
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, Range, WireError};

use crate::client::Shared;
use crate::lock;
use crate::server_sink::part;

/// The sink of a client's link.
pub(crate) struct ClientSink(pub Arc<Shared>);

impl ClientSink {
    fn copy(&self, chunk: &ChunkHeader, bytes: &[u8], fresh: &[Range]) {
        let Some(arena) = self.0.arena() else { return };
        for range in fresh {
            if let Ok(mut claim) = arena.claim(*range) {
                claim.copy_from_slice(part(chunk, bytes, *range));
            }
        }
    }
}

impl Sink for ClientSink {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let fit = lock(&self.0.machine).place(self.0.now(), chunk);
        match fit {
            Fit::Nothing => None,
            Fit::New => self.0.arena()?.claim(chunk.range()).ok().map(Target::Place),
            Fit::Part => Some(Target::Scratch(vec![0; chunk.length as usize])),
        }
    }

    fn progress(&self, bytes: u64) {
        lock(&self.0.machine).progress(self.0.now(), bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        let fresh = lock(&self.0.machine).stored(self.0.now(), chunk, outcome.is_ok());
        if let Target::Scratch(bytes) = &target {
            self.copy(chunk, bytes, &fresh);
        }
    }
}
