//! The sink of a server: it puts a client's chunks into staging, or folds them into the accumulator.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use thalweg_arena::Claim;
use thalweg_proto::{LinkId, Place, ServerMachine, Stored};
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, Range, WireError};

use super::server::Star;
use crate::engine::{part, Hub, Scratch};
use crate::lock;

/// The sink of one link.
pub(crate) struct ServerSink {
    hub: Arc<Hub<Star>>,
    link: LinkId,
    ordered: bool,
    scratch: Scratch,
    /// Bits of the weight of the incoming update. It is the same for all chunks of a round.
    weight: AtomicU64,
}

impl ServerSink {
    pub fn new(hub: Arc<Hub<Star>>, link: LinkId, ordered: bool) -> Self {
        Self { hub, link, ordered, scratch: Scratch::default(), weight: AtomicU64::new(0) }
    }

    /// Uses the new ranges of a chunk, while the round cannot end. `Err(None)`: the chunk must be sent again.
    fn take(&self, chunk: &ChunkHeader, target: &Target) -> Result<(), Option<String>> {
        let weight = f64::from_bits(self.weight.load(Ordering::Relaxed));
        self.hub.policy.reducer.judge(chunk.offset, target.bytes(), weight).map_err(Some)?;
        let _receiving = self.hub.policy.reducer.receiving();
        let mut aside = self.aside(chunk, target)?;
        let (stored, due) = {
            let mut machine = lock(&self.hub.machine);
            let stored = machine.stored(self.hub.now(), self.link, chunk, Ok(()));
            (stored, machine.has_action())
        };
        let mut due = due || !self.ordered;
        if let Some(stored) = stored.filter(|stored| !stored.fresh.is_empty()) {
            if self.hub.policy.keep {
                due |= self.keep(chunk, target, &stored);
            } else if let Some(claim) = &mut aside {
                copy_fresh(chunk, target, &stored, claim);
            }
        }
        // On a link without order, a chunk that arrives after the update's end may complete it.
        if due {
            self.hub.wake();
        }
        Ok(())
    }

    /// Folds the new ranges of a chunk and records the outcomes. Returns whether the machine has actions
    /// then.
    fn keep(&self, chunk: &ChunkHeader, target: &Target, stored: &Stored) -> bool {
        let reducer = &self.hub.policy.reducer;
        let fold = |range: &Range| reducer.keep(*range, part(chunk, target.bytes(), *range), stored.weight);
        let outcomes: Vec<_> = stored.fresh.iter().map(|range| (*range, fold(range))).collect();
        let mut machine = lock(&self.hub.machine);
        for (range, outcome) in outcomes {
            let outcome = outcome.map_err(|reason| format!("sent what cannot be added up: {reason}"));
            machine.kept(self.hub.now(), self.link, chunk, &[range], outcome);
        }
        machine.has_action()
    }

    /// The staging memory for a chunk in a scratch buffer. It is claimed before the chunk counts as received:
    /// if another chunk is being written there, this one must be sent again.
    fn aside(&self, chunk: &ChunkHeader, target: &Target) -> Result<Option<Claim>, Option<String>> {
        if self.hub.policy.keep || matches!(target, Target::Place(_)) {
            return Ok(None);
        }
        self.hub.policy.reducer.place(chunk.sender, chunk.range()).map(Some).ok_or(None)
    }

    fn refuse(&self, chunk: &ChunkHeader, reason: Option<String>) {
        // The update is refused, or the chunk counts as corrupt. In both cases none of the chunk's bytes are
        // used.
        let _ = lock(&self.hub.machine).stored(self.hub.now(), self.link, chunk, Err(reason));
        self.hub.wake();
    }
}

/// Copies the new ranges of a chunk from its scratch buffer.
fn copy_fresh(chunk: &ChunkHeader, target: &Target, stored: &Stored, claim: &mut Claim) {
    for range in &stored.fresh {
        let bytes = part(chunk, target.bytes(), *range);
        let at = range.start.saturating_sub(chunk.offset) as usize;
        claim[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Sink for ServerSink {
    fn prepare(&self, chunk: &ChunkHeader) -> Option<Claim> {
        // What is folded on arrival has no place of its own.
        if self.hub.policy.keep {
            return None;
        }
        let Some(Place::New { sender, weight }) = lock(&self.hub.machine).foresee(self.link, chunk) else {
            return None;
        };
        self.weight.store(weight.to_bits(), Ordering::Relaxed);
        self.hub.policy.reducer.place(sender, chunk.range())
    }

    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let place = lock(&self.hub.machine).place(self.hub.now(), self.link, chunk);
        if let Place::New { weight, .. } | Place::Part { weight, .. } = place {
            self.weight.store(weight.to_bits(), Ordering::Relaxed);
        }
        match place {
            Place::Nothing => None,
            Place::New { sender, .. } if !self.hub.policy.keep => {
                self.hub.policy.reducer.place(sender, chunk.range()).map(Target::Place)
            }
            Place::New { .. } | Place::Part { .. } => Some(self.scratch.take(chunk.length as usize)),
        }
    }

    fn begun(&self, chunk: &ChunkHeader) {
        lock(&self.hub.machine).begun(self.hub.now(), self.link, chunk);
    }

    fn progress(&self, bytes: u64) {
        lock(&self.hub.machine).progress(self.hub.now(), self.link, bytes);
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
        self.scratch.give_back(target);
    }
}
