//! Where a client's chunks go: into staging, or straight into the accumulator.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use thalweg_arena::Claim;
use thalweg_proto::{LinkId, Place, Stored};
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, Range, WireError};

use crate::lock;
use crate::server::Shared;

/// Scratch buffers a link keeps; several streams need several.
const SPARE: usize = 4;

/// The sink of one link.
pub(crate) struct ServerSink {
    shared: Arc<Shared>,
    link: LinkId,
    ordered: bool,
    spare: Mutex<Vec<Vec<u8>>>,
    /// Bits of the weight of the update that comes, the same for all chunks of a round.
    weight: AtomicU64,
}

impl ServerSink {
    pub fn new(shared: Arc<Shared>, link: LinkId, ordered: bool) -> Self {
        Self { shared, link, ordered, spare: Mutex::default(), weight: AtomicU64::new(0) }
    }

    fn scratch(&self, length: usize) -> Target {
        let mut buffer = lock(&self.spare).pop().unwrap_or_default();
        buffer.resize(length, 0);
        Target::Scratch(buffer)
    }

    fn recycle(&self, target: Target) {
        if let Target::Scratch(buffer) = target {
            let mut spare = lock(&self.spare);
            if spare.len() < SPARE {
                spare.push(buffer);
            }
        }
    }

    /// Uses what is new of a chunk, while nobody can end the round. `Err(None)`: it has to come again.
    fn take(&self, chunk: &ChunkHeader, target: &Target) -> Result<(), Option<String>> {
        let weight = f64::from_bits(self.weight.load(Ordering::Relaxed));
        let judged = self.shared.accumulator.check(chunk.offset, target.bytes(), weight);
        judged.map_err(|error| Some(error.to_string()))?;
        let _folding = self.shared.folding.read().unwrap_or_else(PoisonError::into_inner);
        let mut aside = self.aside(chunk, target)?;
        let (stored, due) = {
            let mut machine = lock(&self.shared.machine);
            let stored = machine.stored(self.shared.now(), self.link, chunk, Ok(()));
            (stored, machine.has_action())
        };
        let mut due = due || !self.ordered;
        if let Some(stored) = stored.filter(|stored| !stored.fresh.is_empty()) {
            if self.shared.keep {
                due |= self.keep(chunk, target, &stored);
            } else if let Some(claim) = &mut aside {
                copy_fresh(chunk, target, &stored, claim);
            }
        }
        // What trailed behind the update's end may have been the last of it.
        if due {
            self.shared.wake();
        }
        Ok(())
    }

    /// Folds what is new of a chunk, and says whether that worked; returns whether there is something to do then.
    fn keep(&self, chunk: &ChunkHeader, target: &Target, stored: &Stored) -> bool {
        let fold = |range: &Range| {
            let folded =
                self.shared.accumulator.fold(range.start, part(chunk, target.bytes(), *range), stored.weight);
            let folded = folded.map_err(|error| error.to_string())?;
            (folded == *range).then_some(()).ok_or_else(|| format!("{folded:?} of {range:?} are elements"))
        };
        let outcomes: Vec<_> = stored.fresh.iter().map(|range| (*range, fold(range))).collect();
        let mut machine = lock(&self.shared.machine);
        for (range, outcome) in outcomes {
            let outcome = outcome.map_err(|reason| format!("sent what cannot be added up: {reason}"));
            machine.kept(self.shared.now(), self.link, chunk, &[range], outcome);
        }
        machine.has_action()
    }

    /// Where the new parts of a staged chunk go that was received aside. Claimed before the chunk counts as
    /// received: if another chunk of it is being written, it comes again.
    fn aside(&self, chunk: &ChunkHeader, target: &Target) -> Result<Option<Claim>, Option<String>> {
        if self.shared.keep || matches!(target, Target::Place(_)) {
            return Ok(None);
        }
        self.shared.staging.claim(chunk.sender, chunk.range()).map(Some).ok_or(None)
    }

    fn refuse(&self, chunk: &ChunkHeader, reason: Option<String>) {
        // Refused, or counted as corrupt: nothing of it is used.
        let _ = lock(&self.shared.machine).stored(self.shared.now(), self.link, chunk, Err(reason));
        self.shared.wake();
    }
}

/// Copies what is new of a chunk that was received aside.
fn copy_fresh(chunk: &ChunkHeader, target: &Target, stored: &Stored, claim: &mut Claim) {
    for range in &stored.fresh {
        let bytes = part(chunk, target.bytes(), *range);
        let at = range.start.saturating_sub(chunk.offset) as usize;
        claim[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// The bytes of `range` in a chunk.
pub(crate) fn part<'a>(chunk: &ChunkHeader, bytes: &'a [u8], range: Range) -> &'a [u8] {
    let start = range.start.saturating_sub(chunk.offset) as usize;
    let end = range.end.saturating_sub(chunk.offset) as usize;
    bytes.get(start..end).unwrap_or_default()
}

impl Sink for ServerSink {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let place = lock(&self.shared.machine).place(self.shared.now(), self.link, chunk);
        if let Place::New { weight, .. } | Place::Part { weight, .. } = place {
            self.weight.store(weight.to_bits(), Ordering::Relaxed);
        }
        match place {
            Place::Nothing => None,
            Place::New { sender, .. } if !self.shared.keep => {
                self.shared.staging.claim(sender, chunk.range()).map(Target::Place)
            }
            Place::New { .. } | Place::Part { .. } => Some(self.scratch(chunk.length as usize)),
        }
    }

    fn begun(&self, chunk: &ChunkHeader) {
        lock(&self.shared.machine).begun(self.shared.now(), self.link, chunk);
    }

    fn progress(&self, bytes: u64) {
        lock(&self.shared.machine).progress(self.shared.now(), self.link, bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        match outcome {
            Err(_) => self.refuse(chunk, None),
            Ok(()) => {
                if let Err(reason) = self.take(chunk, &target) {
                    self.refuse(chunk, reason.map(|r| format!("sent what no update may hold: {r}")));
                }
            }
        }
        self.recycle(target);
    }
}
