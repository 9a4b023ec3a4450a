//! What the sinks of all policies share.

use std::sync::Mutex;

use thalweg_arena::Claim;
use thalweg_transport::Target;
use thalweg_wire::{ChunkHeader, Range};

use crate::lock;

/// Buffers kept for chunks that are received aside.
const SPARE: usize = 8;

/// Buffers for chunks that are received aside, used again.
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
            if spare.len() < SPARE {
                spare.push(buffer);
            }
        }
    }
}

/// The bytes of `range` in a chunk.
pub(crate) fn part<'a>(chunk: &ChunkHeader, bytes: &'a [u8], range: Range) -> &'a [u8] {
    let start = range.start.saturating_sub(chunk.offset) as usize;
    let end = range.end.saturating_sub(chunk.offset) as usize;
    bytes.get(start..end).unwrap_or_default()
}

/// Stores a chunk that came whole (`ok`) or damaged. `stored` marks it, and says what of it is new. Of a chunk that was
/// received aside that is copied into its place, which `claim` gives before the chunk is marked: while another chunk
/// is being written there, this one counts as damaged and comes again.
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
