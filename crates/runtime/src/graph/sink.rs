//! The sink of a link. It adds neighbours' chunks to the sums of their iteration, or stores them until their
//! weights are known. It averages pieces of segments that are complete.

use std::sync::{Arc, PoisonError};

use thalweg_proto::{Neighbour, NodePlace};
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, WireError};

use super::doors::Shared;
use crate::engine::{part, Scratch};
use crate::lock;

/// The sink of one link.
pub(crate) struct NodeSink {
    shared: Arc<Shared>,
    who: Neighbour,
    scratch: Scratch,
}

impl NodeSink {
    pub fn new(shared: Arc<Shared>, who: Neighbour) -> Self {
        Self { shared, who, scratch: Scratch::default() }
    }

    /// Adds the ranges of a chunk that are new.
    fn take(&self, chunk: &ChunkHeader, bytes: &[u8]) {
        let shared = &self.shared;
        let _folding = shared.folding.read().unwrap_or_else(PoisonError::into_inner);
        let taken = shared.tell(|node| node.stored(shared.now(), self.who, chunk, true));
        let Some(taken) = taken else { return };
        if taken.mean {
            for range in taken.fresh {
                let bytes = part(chunk, bytes, range);
                let means = shared.means.as_ref();
                let ok = means.is_some_and(|means| means.keep(&shared.layout, range, bytes));
                let now = shared.now();
                shared.tell(|node| node.mean_kept(now, taken.peer, taken.round, &[range], ok));
            }
            return;
        }
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
        match self.shared.tell(|node| node.place(self.shared.now(), self.who, chunk)) {
            NodePlace::Nothing => None,
            NodePlace::Fold { .. } | NodePlace::Stage { .. } | NodePlace::Mean { .. } => {
                Some(self.scratch.take(chunk.length as usize))
            }
        }
    }

    fn progress(&self, bytes: u64) {
        self.shared.tell(|node| node.progress(self.shared.now(), self.who, bytes));
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        if outcome.is_ok() {
            self.take(chunk, target.bytes());
        } else {
            self.shared.tell(|node| node.stored(self.shared.now(), self.who, chunk, false));
        }
        self.scratch.give_back(target);
    }
}
