//! The sink of a link. It adds neighbours' chunks to the sums of their iteration, or stores them until their
//! weights are known. It averages pieces of segments that are complete.

use std::sync::{Arc, PoisonError};

use thalweg_fold::check_finite;
use thalweg_proto::{Neighbour, NodePlace, MEAN};
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, Range, WireError};

use super::doors::Shared;
use crate::engine::{part, store, Scratch};
use crate::lock;

/// The sink of one link.
pub(crate) struct NodeSink {
    shared: Arc<Shared>,
    who: Neighbour,
    /// Chunks arrive one after the other, so none is left incomplete while the link goes on.
    ordered: bool,
    scratch: Scratch,
}

impl NodeSink {
    pub fn new(shared: Arc<Shared>, who: Neighbour, ordered: bool) -> Self {
        Self { shared, who, ordered, scratch: Scratch::default() }
    }

    /// Keeps a chunk of a neighbour's mean.
    fn keep(&self, chunk: &ChunkHeader, target: Target, ok: bool) {
        let shared = &self.shared;
        let Some(means) = &shared.means else { return };
        let _folding = shared.folding.read().unwrap_or_else(PoisonError::into_inner);
        let mut taken = None;
        let claim = |range| means.claim(range);
        store(chunk, &target, ok, claim, |ok| {
            taken = shared.tell(|node| node.stored(shared.now(), self.who, chunk, ok));
            taken.as_ref().map(|taken| taken.fresh.clone()).unwrap_or_default()
        });
        let judged = taken.map(|taken| {
            let is_finite = |range: &Range| {
                check_finite(&shared.layout, range.start, part(chunk, target.bytes(), *range)).is_ok()
            };
            let ok = taken.fresh.iter().all(is_finite);
            (taken, ok)
        });
        // The mean can be used only when its memory is free again.
        self.scratch.give_back(target);
        if let Some((taken, ok)) = judged {
            shared.tell(|node| node.mean_kept(shared.now(), taken.peer, taken.round, &taken.fresh, ok));
        }
    }

    /// Adds the ranges of a chunk of a model that are new.
    fn take(&self, chunk: &ChunkHeader, bytes: &[u8]) {
        let shared = &self.shared;
        let _folding = shared.folding.read().unwrap_or_else(PoisonError::into_inner);
        let taken = shared.tell(|node| node.stored(shared.now(), self.who, chunk, true));
        let Some(taken) = taken else { return };
        let sums = shared.slots.of(taken.round);
        for range in taken.fresh {
            let bytes = part(chunk, bytes, range);
            let judged = sums.check(range.start, bytes, taken.weight);
            let ok = judged.is_ok() && {
                if let Some(stages) = &shared.stages {
                    let model = stages.of(taken.round, taken.peer);
                    lock(&model)[range.start as usize..range.end as usize].copy_from_slice(bytes);
                    true
                } else {
                    sums.fold(range.start, bytes, taken.weight).is_ok_and(|folded| folded == range)
                }
            };
            shared.tell(|node| node.folded(shared.now(), taken.peer, taken.round, &[range], ok));
        }
        shared.average_due();
    }
}

impl Sink for NodeSink {
    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let scratch = || self.scratch.take(chunk.length as usize);
        match self.shared.tell(|node| node.place(self.shared.now(), self.who, chunk)) {
            NodePlace::Nothing => None,
            NodePlace::Mean { fresh: true } if self.ordered => {
                let claim = self.shared.means.as_ref().and_then(|means| means.claim(chunk.range()));
                Some(claim.map_or_else(scratch, Target::Place))
            }
            NodePlace::Fold { .. } | NodePlace::Stage { .. } | NodePlace::Mean { .. } => Some(scratch()),
        }
    }

    fn progress(&self, bytes: u64) {
        self.shared.tell(|node| node.progress(self.shared.now(), self.who, bytes));
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        if chunk.round & MEAN != 0 {
            return self.keep(chunk, target, outcome.is_ok());
        }
        if outcome.is_ok() {
            self.take(chunk, target.bytes());
        } else {
            self.shared.tell(|node| node.stored(self.shared.now(), self.who, chunk, false));
        }
        self.scratch.give_back(target);
    }
}
