//! Where the global model's chunks go: into the client's arena.

use std::sync::Arc;

use thalweg_proto::Fit;
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, Range, WireError};

use crate::client::Shared;
use crate::lock;
use crate::server_sink::part;

/// The sink of a client's link.
pub(crate) struct ClientSink {
    pub shared: Arc<Shared>,
    pub ordered: bool,
}

impl ClientSink {
    fn copy(&self, chunk: &ChunkHeader, bytes: &[u8], fresh: &[Range]) {
        let Some(arena) = self.shared.arena() else { return };
        for range in fresh {
            if let Ok(mut claim) = arena.claim(*range) {
                claim.copy_from_slice(part(chunk, bytes, *range));
            }
        }
    }
}

impl Sink for ClientSink {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let fit = lock(&self.shared.machine).place(self.shared.now(), chunk);
        match fit {
            Fit::Nothing => None,
            Fit::New => self.shared.arena()?.claim(chunk.range()).ok().map(Target::Place),
            Fit::Part => Some(Target::Scratch(vec![0; chunk.length as usize])),
        }
    }

    fn begun(&self, chunk: &ChunkHeader) {
        lock(&self.shared.machine).begun(self.shared.now(), chunk);
    }

    fn progress(&self, bytes: u64) {
        lock(&self.shared.machine).progress(self.shared.now(), bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        let fresh = lock(&self.shared.machine).stored(self.shared.now(), chunk, outcome.is_ok());
        if let Target::Scratch(bytes) = &target {
            self.copy(chunk, bytes, &fresh);
        }
        if !self.ordered {
            self.shared.wake(); // what trailed behind the model's end may have been the last of it
        }
    }
}
