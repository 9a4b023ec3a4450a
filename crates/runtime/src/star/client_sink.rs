//! The sink of a client: it puts the global model's chunks into the client's arena.

use std::sync::Arc;

use thalweg_arena::Claim;
use thalweg_proto::{ChunkReceiver, ClientMachine, Fit};
use thalweg_transport::{Sink, Target};
use thalweg_wire::{ChunkHeader, WireError};

use super::client::Trainer;
use crate::engine::{store, Dialer, Scratch};
use crate::lock;

/// The sink of a client's link.
pub(crate) struct ClientSink {
    pub dialer: Arc<Dialer<Trainer>>,
    pub ordered: bool,
    pub scratch: Scratch,
}

impl Sink for ClientSink {
    fn prepare(&self, chunk: &ChunkHeader) -> Option<Claim> {
        let foreseen = lock(&self.dialer.machine).foresees(chunk);
        self.dialer.policy.arena().filter(|_| foreseen)?.claim(chunk.range()).ok()
    }

    fn place(&self, chunk: &ChunkHeader) -> Option<Target> {
        let (fit, _) = lock(&self.dialer.machine).fit(self.dialer.now(), chunk);
        match fit {
            Fit::Nothing => None,
            Fit::New => self.dialer.policy.arena()?.claim(chunk.range()).ok().map(Target::Place),
            Fit::Part => Some(self.scratch.take(chunk.length as usize)),
        }
    }

    fn begun(&self, chunk: &ChunkHeader) {
        lock(&self.dialer.machine).begun(self.dialer.now(), chunk);
    }

    fn progress(&self, bytes: u64) {
        lock(&self.dialer.machine).progress(self.dialer.now(), bytes);
    }

    fn stored(&self, chunk: &ChunkHeader, target: Target, outcome: Result<(), WireError>) {
        let claim = |range| self.dialer.policy.arena()?.claim(range).ok();
        let stored = |ok| lock(&self.dialer.machine).stored(self.dialer.now(), chunk, ok);
        store(chunk, &target, outcome.is_ok(), claim, stored);
        self.scratch.give_back(target);
        if !self.ordered {
            self.dialer.wake(); // a chunk that arrives after the model's end may complete it
        }
    }
}
