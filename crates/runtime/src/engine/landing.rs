//! Code that the sinks of all policies share: scratch buffers, and storing a chunk.

use std::sync::Mutex;

use thalweg_arena::Claim;
use thalweg_transport::Target;
use thalweg_wire::{ChunkHeader, Range};

use crate::lock;

/// Maximum number of free buffers that are kept.
const MAX_FREE: usize = 8;

/// Reusable buffers for chunks that are not received directly into their place.
#[derive(Default)]
pub(crate) struct Scratch(Mutex<Vec<Vec<u8>>>);

impl Scratch {
    pub fn take(&self, length: usize) -> Target {
        let mut buffer = lock(&self.0).pop().unwrap_or_default();
        buffer.resize(length, 0);
        Target::Scratch(buffer)
    }

    pub fn give_back(&self, target: Target) {
        if let Target::Scratch(buffer) = target {
            let mut spare = lock(&self.0);
            if spare.len() < MAX_FREE {
                spare.push(buffer);
            }
        }
    }
}

/// The bytes of `range` within a chunk.
pub(crate) fn part<'a>(chunk: &ChunkHeader, bytes: &'a [u8], range: Range) -> &'a [u8] {
    let start = range.start.saturating_sub(chunk.offset) as usize;
    let end = range.end.saturating_sub(chunk.offset) as usize;
    bytes.get(start..end).unwrap_or_default()
}

/// Stores a chunk that arrived whole (`ok`) or damaged. `stored` records it and returns the ranges that are
/// new. If the chunk is in a scratch buffer, these ranges are copied to their place. `claim` gives that place
/// before the chunk is recorded. If another chunk is being written to the same place, this chunk counts as
/// damaged and is sent again.
pub(crate) fn store(
    chunk: &ChunkHeader,
    target: &Target,
    ok: bool,
    claim: impl FnOnce(Range) -> Option<Claim>,
    stored: impl FnOnce(bool) -> Vec<Range>,
) {
    let Target::Scratch(bytes) = target else {
        stored(ok);
        return;
    };
    let Some(mut place) = Some(()).filter(|()| ok).and_then(|()| claim(chunk.range())) else {
        stored(false);
        return;
    };
    for range in stored(true) {
        let from = part(chunk, bytes, range);
        let at = range.start.saturating_sub(chunk.offset) as usize;
        place[at..at + from.len()].copy_from_slice(from);
    }
}
